"""The fault matrix: each row a world of its own, with real commands on the real emulator.

Rows mostly wait, so they play side by side in threads and each test waits for its own. What tpujob does not do is a limit:
its row asserts what is documented instead, and LIMITS.md names it.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.row import ROWS, Row
from tests.faults.world import World

for topic in ("death", "create", "queue", "delete", "vm", "net", "ledger", "person"):
    if (Path(__file__).parent / f"rows_{topic}.py").exists():
        importlib.import_module(f"tests.faults.rows_{topic}")

AT_ONCE = int(os.environ.get("TPUJOB_FAULTS_AT_ONCE", "4"))
REPORT = os.environ.get("TPUJOB_FAULTS_REPORT")  # a file for the measured seconds and their bounds


def play(row: Row, directory: Path) -> None:
    world = World.make(directory, **row.world)
    try:
        row.play(world)
        world.check_history(**row.history)
    finally:
        world.close()
        if REPORT:
            with Path(REPORT).open("a") as file:
                file.writelines(f"{json.dumps([row.number, row.words, *one])}\n" for one in world.measured)


@pytest.fixture(scope="module")
def playing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every row that was selected has begun or waits for its turn."""
    wanted = [
        item.callspec.params["row"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {row.id: pool.submit(play, row, tmp_path_factory.mktemp("row") / "world") for row in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(row: Row, playing: dict[str, Future[None]]) -> None:
    playing[row.id].result()


def test_every_row_of_the_matrix_is_played_or_named_as_a_limit() -> None:
    played = {int("".join(filter(str.isdigit, row.number))) for row in ROWS}
    assert played == set(range(1, 61))


def test_every_limit_is_listed_with_its_reason() -> None:
    listed = (Path(__file__).parent / "LIMITS.md").read_text()
    for row in ROWS:
        if row.limit is not None:
            assert f"| {row.number} | {row.words} | {row.limit} |" in listed
