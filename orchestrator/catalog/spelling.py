"""What users write for an accelerator type: the names of the API, of GKE, of Compute Engine and of everyday speech. Pure.

`read` takes a text apart; which types there are is not known here.
"""

import math
import re
from dataclasses import dataclass

# What names a generation, the longer ones first. GKE has v5-lite-podslice, Compute Engine 5lp, the API V5LITE_POD.
_GENERATIONS = {
    **dict.fromkeys(("v5litepod", "v5-lite", "v5lite", "v5e", "5lp", "5l", "5e"), "v5e"),
    **dict.fromkeys(("v5p", "5p"), "v5p"),
    **dict.fromkeys(("trillium", "v6e", "6e", "v6"), "v6e"),
    **dict.fromkeys(("ironwood", "7x", "v7"), "tpu7x"),
    **{name: f"v{name[-2] if name[-1] == 'p' else name[-1]}" for name in ("v4", "4p", "v3", "3p", "v2")},
    "v5": "v5",  # v5e or v5p
}
_NAMES = "|".join(_GENERATIONS)
_TYPE = re.compile(rf"(?:tpu-?)?v?({_NAMES})-?(?:pod|slice|device|podslice)?(?:[-:/ ]?(\d+(?:x\d+)*))?", re.ASCII)
_WITHIN = re.compile(rf"(?<![a-z0-9])(?:tpu-?|ct)?v?({_NAMES})(?!\d)")
_NUMBER = re.compile(r"tpu-?(?=\d(?:[-:/ ]|$))")  # tpu7 is v7
_MACHINE = re.compile(r"(?:ct|tpu)(\d[a-z]*)-(?:hightpu|standard)-(\d+)t(?:-tpu)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spelled:
    """A generation, and how large a slice of it: by the number of the API's name, by its chips, or by its shape."""

    generation: str  # or how the names of several begin
    number: int | None = None
    chips: int | None = None
    sides: tuple[int, ...] | None = None  # ascending, without those of one chip
    is_guess: bool = False  # it may be another: of several, or named in a text that is not understood

    @property
    def is_whole(self) -> bool:
        """Whether it names a generation and no size."""
        return self.number is None and self.chips is None and not self.is_guess


def read(text: str) -> Spelled | None:
    """Return what a text names, as far as it is understood: at least its generation. None: not even that."""
    plain = text.strip().lower()[:80].replace("_", "")
    if machine := _MACHINE.fullmatch(plain):
        name, chips = machine[1], int(machine[2])
        if generation := _GENERATIONS.get(name) or _GENERATIONS.get(f"v{name}"):
            return Spelled(generation, chips=chips)
    plain = _NUMBER.sub("v", plain)
    if found := _TYPE.fullmatch(plain):
        generation, size = _GENERATIONS[found[1]], found[2]
        if size is None:
            return Spelled(generation, is_guess=generation == "v5")
        sides = [int(side) for side in size.split("x")]
        if len(sides) == 1:
            return Spelled(generation, number=sides[0])
        return Spelled(generation, chips=math.prod(sides), sides=shape(size))
    named = _WITHIN.findall(plain)  # of a runtime, `v2-alpha-tpuv6e`, the last one counts
    return Spelled(_GENERATIONS[named[-1]], is_guess=True) if named else None


def shape(topology: str) -> tuple[int, ...]:
    """Return the sides of a topology in an order of its own, without those of one chip: 2x2 and 2x2x1 are one shape."""
    return tuple(sorted(side for side in map(int, topology.split("x")) if side > 1))
