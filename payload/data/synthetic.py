"""Generate digits in the format of MNIST, for `dataset: synthetic` and `fallback: synthetic`.

Five-by-seven glyphs are rotated, scaled, slanted, shifted and blurred at random. The same count of images gives the same bytes
on every machine, and fewer images are a prefix of more. They show that training works; they are not a benchmark.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDE = 28
TRAIN_COUNT, TEST_COUNT = 60_000, 10_000  # as many as MNIST has
VERSION = 1  # part of the cache directory's name: increase it when the images change
_CHUNK = 1_000

_GLYPHS = """
.###. ..#.. .###. ####. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# ..##. #.... #.... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. .###. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... ....# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### ####. ...#. .###. .###. .#... .###. .###.
"""


def draw(split: str, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the first `count` images [count, 28, 28] and labels of the "train" or the "test" split."""
    chunks = [_draw_chunk(split, number) for number in range(-(-count // _CHUNK))]
    images, labels = (np.concatenate(parts)[:count] for parts in zip(*chunks, strict=True))
    return images, labels


def _draw_chunk(split: str, number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    random = np.random.default_rng([VERSION, ("train", "test").index(split), number])
    labels = random.integers(0, 10, _CHUNK, dtype=np.uint8)
    rows, columns = _glyph_coordinates(random, _CHUNK)
    ink: NDArray[np.floating] = _sample(_glyphs(), labels, rows, columns)
    ink = np.clip((ink - random.uniform(0.2, 0.4, (_CHUNK, 1, 1))) * 3, 0, 1)  # thicker and thinner strokes
    ink = ink * random.uniform(0.7, 1.0, (_CHUNK, 1, 1)) + random.normal(0, 0.05, ink.shape) * (ink > 0)
    return (np.clip(ink, 0, 1) * 255).astype(np.uint8), labels


def _glyphs() -> NDArray[np.float32]:
    """Return the glyphs [digit, row, column] with a margin of one, so that samples just outside a glyph are blank."""
    lines = [line.split() for line in _GLYPHS.strip().splitlines()]
    glyphs = [[[cell == "#" for cell in line[digit]] for line in lines] for digit in range(10)]
    return np.pad(np.array(glyphs, np.float32), ((0, 0), (1, 1), (1, 1)))


def _glyph_coordinates(random: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return, for each pixel of each image, its coordinates on the glyph: the inverse of a random affine map."""

    def each(values: NDArray[np.float64]) -> NDArray[np.float32]:
        return values.astype(np.float32).reshape(count, 1, 1)

    angle, slant = each(random.normal(0, 0.15, count)), each(random.normal(0, 0.2, count))
    height, width = each(random.uniform(2.2, 3.2, count)), each(random.uniform(2.0, 3.4, count))  # pixels for each cell
    down, right = each(random.normal(0, 1.5, count)), each(random.normal(0, 1.5, count))
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) - (SIDE - 1) / 2
    y, x = y - down, x - right
    turned_y = y * np.cos(angle) - x * np.sin(angle)
    turned_x = y * np.sin(angle) + x * np.cos(angle) + slant * y
    return turned_y / height + 4, turned_x / width + 3  # 4, 3: the middle of a padded glyph of 9 by 7


def _sample(
    glyphs: NDArray[np.float32], labels: NDArray[np.uint8], rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the glyphs sampled bilinearly at the coordinates."""
    height, width = glyphs.shape[1:]
    rows, columns = np.clip(rows, 0, height - 1.001), np.clip(columns, 0, width - 1.001)
    top, left = rows.astype(np.intp), columns.astype(np.intp)
    low, side = rows - top, columns - left
    digit = labels.reshape(-1, 1, 1)
    above = glyphs[digit, top, left] * (1 - side) + glyphs[digit, top, left + 1] * side
    below = glyphs[digit, top + 1, left] * (1 - side) + glyphs[digit, top + 1, left + 1] * side
    sampled: NDArray[np.float32] = above * (1 - low) + below * low
    return sampled
