"""The tests about themselves: a failed one shows what is left of its world, a change of the machine is noticed."""

import os
from pathlib import Path

from orchestrator.core.lease.lease import Intent
from orchestrator.ledger.ledger import Ledger
from tests import evidence, surroundings
from tests.leases import lease_and_request

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


def test_only_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    (tmp_path / "guardian.log").write_text("".join(f"line {n}\n" for n in range(1000)))
    shown = evidence.of(tmp_path)
    assert "line 999" in shown and "line 500\n" not in shown


def test_a_ledger_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_text("not a database")
    (tmp_path / "guardian.log").write_text("still here\n")
    assert "still here" in evidence.of(tmp_path)


def test_a_world_without_any_of_it_shows_nothing(tmp_path: Path) -> None:
    assert evidence.of_test({"tmp_path": tmp_path}) == ""


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
