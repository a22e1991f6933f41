"""A failed test shows what is left of its world."""

from pathlib import Path

from orchestrator.core.lease.lease import Intent
from orchestrator.ledger.ledger import Ledger
from tests import evidence
from tests.unit.engine.virtual import lease_and_request

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
