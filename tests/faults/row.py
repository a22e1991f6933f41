"""A row of the fault matrix: its number, its words, what its world is like, and how it plays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.world import World

Play = Callable[[World], None]


@dataclass(frozen=True)
class Row:
    """`limit`: the row asks for something that tpujob does not do; it then asserts what is documented instead."""

    number: str
    words: str
    play: Play
    world: dict[str, Any] = field(default_factory=dict)  # how `World.make` makes it
    history: dict[str, Any] = field(default_factory=dict)  # what is different about `World.check_history`
    limit: str | None = None

    @property
    def id(self) -> str:
        return f"{self.number} {self.words}"

    @property
    def family(self) -> str:
        return self.play.__module__.rpartition("rows_")[2]


ROWS: list[Row] = []


def row(
    number: str, words: str, *, limit: str | None = None, history: dict[str, Any] | None = None, **world: Any
) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        assert all(other.id != f"{number} {words}" for other in ROWS), f"row {number} {words} is there already"
        ROWS.append(Row(number, words, play, world, history or {}, limit))
        return play

    return register
