"""The tests about themselves: what a failed one shows, that a change of the machine is noticed, and bounds for its load."""

import os
import time
from pathlib import Path

import pytest

from orchestrator.promise.lease.changes import Intent
from orchestrator.promise.ledger.ledger import Ledger
from tests import evidence, surroundings
from tests.fakes.leases import lease_and_request
from tests.faults import bounds
from tests.faults.bounds import Bounds

LEASE, _ = lease_and_request()


def test_logs_and_ledger_below_a_fixtures_directory_are_shown(tmp_path: Path) -> None:
    (tmp_path / "state" / "emulator").mkdir(parents=True)
    (tmp_path / "state" / "emulator" / "daemon.log").write_text("hosts off -> on\n")
    (tmp_path / "state" / "guardian.log").write_text("releasing it\n")
    ledger = Ledger(tmp_path / "state" / "ledger.sqlite3")
    ledger.record(Intent(LEASE))
    ledger.close()
    shown = evidence.of_test({"tmp_path": tmp_path, "number": 7})
    for words in ("hosts off -> on", "releasing it", LEASE.name.node, "the daemon does not run"):
        assert words in shown


def test_what_is_new_or_gone_or_replaced_is_named(tmp_path: Path) -> None:
    for name in ("gone", "kept", "replaced"):
        (tmp_path / name).touch()
    before = surroundings.seen(tmp_path)
    (tmp_path / "gone").unlink()
    (tmp_path / "new").touch()
    (tmp_path / "replaced").unlink()
    os.mkfifo(tmp_path / "replaced")
    (tmp_path / "kept").write_text("more")
    found = surroundings.changes(before, surroundings.seen(tmp_path))
    assert found == [str(tmp_path / name) for name in ("gone", "new", "replaced")]


def test_a_file_in_place_of_a_device_is_named() -> None:
    null = surroundings.seen(Path("/dev"))["/dev/null"]
    assert surroundings.changes({"/dev/null": null}, {"/dev/null": (0o100000, 0)}) == ["/dev/null"]
    assert surroundings.changes({}, {"/dev/loop9": null}) == []


NOW = time.time()


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "measured"
    path.write_text("")
    monkeypatch.setattr(bounds, "_measured", lambda: path)
    monkeypatch.setattr(time, "time", lambda: NOW)
    return path


def write(path: Path, *rows: tuple[float, float]) -> None:
    """Write measures: how many seconds ago each ended, and how long it took."""
    path.write_text("".join(f"{NOW - ago} {took}\n" for ago, took in rows))


def test_a_quiet_machine_makes_no_bound_longer(measured: Path) -> None:
    write(measured, *((ago, 0.02) for ago in range(20, 0, -1)), (0.1, 0.02))
    assert bounds.slowness(NOW - 20) == 1.0


def test_a_machine_on_which_work_takes_five_times_as_long_makes_them_five_times_as_long(measured: Path) -> None:
    write(measured, *((ago, 5 * bounds.QUIET_S) for ago in range(30, 20, -1)), (0.1, 0.02))
    assert bounds.slowness(NOW - 30) == pytest.approx(5.0)
    assert bounds.slowness(NOW - 15) == 1.0, "that was before"
    slow, quiet = Bounds(30, 0, 5.0), Bounds(30, 0)
    assert slow.guardian() == pytest.approx(5 * quiet.guardian())
    assert slow.watchdog() - quiet.watchdog() == pytest.approx(4 * (quiet.seconds("watchdog") - 20 / 30 + 2.0)), (
        "periods stay"
    )


def test_a_measure_that_does_not_end_counts_for_as_long_as_it_takes(measured: Path) -> None:
    write(measured, (bounds.PAUSE_S + 10 * bounds.QUIET_S, 0.02))
    assert bounds.slowness(NOW - 0.1) == pytest.approx(10.0)


def test_a_line_that_is_being_written_does_not_count_yet(measured: Path) -> None:
    write(measured, (0.1, 0.02))
    measured.write_text(measured.read_text() + "17")
    assert bounds.slowness(NOW - 1) == 1.0


def test_this_machine_is_measured() -> None:
    bounds.begin()
    assert bounds.slowness(time.time() - 60) >= 1.0
