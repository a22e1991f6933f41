"""The default topology of a slice: "2x4", "4x4x12". Pure arithmetic.

Small 3-D slices are listed; from 64 chips on they consist of 4x4x4 cubes, arranged as compactly as their number allows
(compared with every shape of v4, v5p and TPU7x that Google's xpk lists).
"""

_SMALL_3D = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_CUBE_CHIPS = 64


def default_topology(chips: int, *, dimensions: int) -> str:
    """Return the API's text for a plane (v2, v3, v5e, v6e) or a torus of three dimensions (v4, v5p, TPU7x) of `chips` chips."""
    if dimensions == 2:
        rows = 2 ** ((chips.bit_length() - 1) // 2)
        return f"{rows}x{chips // rows}"
    if chips in _SMALL_3D:
        return _SMALL_3D[chips]
    return "x".join(str(4 * side) for side in _most_compact(chips // _CUBE_CHIPS))


def _most_compact(cubes: int) -> tuple[int, int, int]:
    """Return three ascending factors with the smallest sum."""
    boxes = [
        (a, b, cubes // (a * b))
        for a in range(1, int(cubes ** (1 / 3)) + 2)
        if cubes % a == 0
        for b in range(a, cubes // a + 1)
        if (cubes // a) % b == 0 and cubes // (a * b) >= b
    ]
    return min(boxes, key=sum)
