"""A row of the fault matrix: its number, its title, its world, and the function that plays it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.world import World

Play = Callable[[World], None]


@dataclass(frozen=True)
class Row:
    """`limit`: why tpujob does not do what the row asks for; the row then checks what is documented instead."""

    number: str
    title: str
    play: Play
    world: dict[str, Any] = field(default_factory=dict)  # arguments of `World.make`
    history: dict[str, Any] = field(default_factory=dict)  # arguments of `World.check_history`
    limit: str | None = None

    @property
    def id(self) -> str:
        return f"{self.number} {self.title}"

    @property
    def family(self) -> str:
        return self.play.__module__.rpartition("rows.")[2]


ROWS: list[Row] = []


def row(
    number: str, title: str, *, limit: str | None = None, history: dict[str, Any] | None = None, **world: Any
) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        assert all(other.id != f"{number} {title}" for other in ROWS), f"row {number} {title} is there already"
        ROWS.append(Row(number, title, play, world, history or {}, limit))
        return play

    return register
