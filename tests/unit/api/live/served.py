"""A server of `top --open` over runs of a test: what a browser gets, without a cloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

from orchestrator.api.live.serving import Served
from orchestrator.api.live.top import Top, TopRow, Watch
from orchestrator.api.session.reporter import Reporter
from orchestrator.promise.lease.run_and_attempt import RunRecord
from tests.unit.report.page.world import World


class Sessions:
    """Stands for a session: its ledger is that of a world."""

    def __init__(self, world: World, reporter: Reporter) -> None:
        self.ledger, self.reporter, self._world = world.ledger, reporter, world

    def now(self, cloud: str | None = None) -> float:
        return self._world.now

    def know_secrets(self, run: RunRecord) -> None:
        """The reporter knows them."""


class Looks:
    """Stands for a `Watch`: a row for the run of the world."""

    def __init__(self, world: World, **row: Any) -> None:
        self._world, self._row = world, row
        self.awaited: tuple[str, ...] = row.pop("awaited", ())

    def awaits(self, run: str) -> bool:
        return run in self.awaited

    def look(self, *, ended: bool = False) -> Top:
        run, attempt = self._world.ledger.run(self._world.run)
        row: dict[str, Any] = {
            "kind": "run",
            "id": run.id,
            "name": run.name,
            "state": str(attempt.state),
            "has_page": True,
        }
        row |= {"cloud": run.cloud, "ended_at": attempt.ended_at}
        return Top(self._world.now, run.cloud, "of a test", self._world.now, (), (TopRow(**row | self._row),))


@contextmanager
def served(world: World, *, secrets: tuple[str, ...] = (), **row: Any) -> Iterator[Served]:
    """Serve the run of a world. `row`: other fields of its row."""
    reporter = Reporter()
    reporter.secrets.add(*secrets)

    @contextmanager
    def session() -> Iterator[Any]:
        yield Sessions(world, reporter)

    with closing(Served(session, cast("Watch", Looks(world, **row)))) as server:
        yield server
