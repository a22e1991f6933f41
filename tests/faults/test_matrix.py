"""The fault matrix: each row is a world of its own, with real commands on the real emulator.

Rows mostly wait, so they play in parallel threads, and each test waits for its own row. What tpujob does not do is a limit:
its row checks what is documented instead, and LIMITS.md names it.
"""

import contextlib
import importlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests import evidence
from tests.faults.world import ROWS, Row, World

ALWAYS = {  # these rows of each family are in the default tier
    "death": "4c",
    "create": "9 17",
    "delete": "20",
    "vm": "41",
    "net": "43",
    "ledger": "45b",
    "person": "55",
    "api": "61a 64b",
}
for topic in ALWAYS:
    importlib.import_module(f"tests.faults.rows.{topic}")

ACT_AT_ONCE = int(os.environ.get("TPUJOB_FAULTS_AT_ONCE", 2 * (os.cpu_count() or 1)))
OPEN_AT_ONCE = 6 * ACT_AT_ONCE  # including rows that wait for the clock of the cloud
REPORT = os.environ.get("TPUJOB_FAULTS_REPORT")  # file for the measured seconds and their bounds
TURNS = threading.Semaphore(ACT_AT_ONCE)


def play(row: Row, directory: Path) -> None:
    with contextlib.ExitStack() as turn:
        turn.callback(TURNS.release)
        world = World.make(directory, **row.world)
        world.release_slot = turn.close
        try:
            row.play(world)
            world.check_history(**row.history)
        except BaseException as error:
            error.add_note(world.output())
            error.add_note(evidence.of(directory))
            raise
        finally:
            world.close()
            if REPORT:
                with Path(REPORT).open("a") as file:
                    file.writelines(f"{json.dumps([row.number, row.title, *one])}\n" for one in world.measured)


@pytest.fixture(scope="module")
def playing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Future[None]]]]:
    """Start all selected rows, in the order of the tests, as slots become free."""
    wanted = [
        item.callspec.params["row"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    # requests walks the environment for proxies, in threads of rows, while pytest changes a variable of it in this one.
    without_proxies: Any = patch("requests.sessions.get_environ_proxies", lambda *arguments, **options: {})
    with without_proxies, ThreadPoolExecutor(OPEN_AT_ONCE) as stages, ThreadPoolExecutor(1) as usher:

        def begin(row: Row) -> Future[None]:
            TURNS.acquire()
            return stages.submit(play, row, tmp_path_factory.mktemp("row") / "world")

        yield {row.id: usher.submit(begin, row) for row in wanted}
        usher.shutdown(cancel_futures=True)


def tier(row: Row) -> tuple[pytest.MarkDecorator, ...]:
    return () if row.number in " ".join(ALWAYS.values()).split() else (pytest.mark.ci,)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id, marks=tier(row)) for row in ROWS])
def test_row(row: Row, playing: dict[str, Future[Future[None]]]) -> None:
    playing[row.id].result().result()


def test_every_family_has_a_row_that_is_always_played() -> None:
    always = [(row.family, row.number) for row in ROWS if not tier(row)]
    assert sorted(always) == sorted((family, number) for family in ALWAYS for number in ALWAYS[family].split())


def test_every_row_of_the_matrix_is_played_or_named_as_a_limit() -> None:
    played = {int("".join(filter(str.isdigit, row.number))) for row in ROWS}
    assert played == set(range(1, 66))


def test_every_limit_is_listed_with_its_reason() -> None:
    listed = (Path(__file__).parent / "LIMITS.md").read_text()
    for row in ROWS:
        if row.limit is not None:
            assert f"| {row.number} | {row.title} | {row.limit} |" in listed
