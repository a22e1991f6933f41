"""`tpujob doctor`: what it finds on machines in different condition, and when it calls tpujob unusable."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.guarantee import health_checks
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.rows import GcRun
from orchestrator.settings import Target
from tests.cli_fixture import Tpujob
from tests.waiting import until

ZONE = "us-central1-a"


def examined(cli: Tpujob, *words: str, **env: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    done = cli("doctor", "--json", *words, env={"XDG_RUNTIME_DIR": "", **env})
    return json.loads(done.stdout), done


def check(said: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in said["checks"] if each["name"] == name]
    return found


def test_a_fresh_machine_is_usable_and_learns_what_is_not_live(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_GUARDIAN="on")
    assert done.returncode == 0, done.stderr
    assert said["usable"] and said["slices"] == [] and said["worst_usd"] == 0
    assert check(said, "cloud")["live"] and "gcloud config set project" in check(said, "cloud")["fix"]
    assert "zones" in check(said, "credentials")["text"]
    guardian = check(said, "guardian")
    assert guardian["live"] and guardian["text"].startswith("armed in ")
    assert check(said, "timer")["live"] is False and check(said, "timer")["fix"] == "`tpujob install-gc`"
    assert check(said, "watchdog")["live"] is None
    assert check(said, "gc")["live"] is None
    log = tpujob.directory / "state" / "guardian.log"
    assert log.exists(), "a guardian really started"


def test_gc_runs_that_ran_are_counted_by_age(tpujob: Tpujob) -> None:
    assert tpujob("gc").returncode == 0
    assert tpujob("gc", "--local").returncode == 0
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is True
    assert "the last local gc was" in check(said, "timer")["text"]
    with sqlite3.connect(tpujob.directory / "state" / "ledger.sqlite3") as db:
        db.execute("update gc_run set at = ?", (time.time() - 2 * 86400,))
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is False and "2 d ago" in check(said, "gc")["text"]


def test_a_gc_run_of_some_zones_is_no_gc_run_of_the_project(tpujob: Tpujob) -> None:
    assert tpujob("gc", "--zone", ZONE).returncode == 0
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is None


def test_what_is_alive_is_shown_with_its_watchdogs_and_its_worst_case(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    until(lambda: all(each["armed"] for each in examined(tpujob)[0]["slices"][0]["watchdogs"]))
    said, _ = examined(tpujob)
    (found,) = said["slices"]
    assert (found["name"], found["mode"], found["state"]) == ("alice", "hold", "READY")
    assert found["claimed_until"] == pytest.approx(found["deadline"], abs=2)
    assert found["worst_usd"] == pytest.approx(9.6 * 24, rel=0.01) and said["worst_usd"] == found["worst_usd"]
    assert check(said, "watchdog")["live"] is True
    text = tpujob("doctor").stdout
    assert "watchdog armed on 1 of 1" in text and " emulated\n" in text and "worst case" in text
    assert tpujob("down", "alice").returncode == 0


def test_a_slice_whose_watchdog_says_nothing_is_not_called_safe(tpujob: Tpujob) -> None:
    tpujob.settings(startup_script=False)
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    said, done = examined(tpujob)
    assert done.returncode == 0
    unarmed = check(said, "watchdog")
    assert unarmed["live"] is False and "alice: worker0: its watchdog has published nothing" in unarmed["text"]
    assert "nothing bounds it if this machine is gone" in tpujob("doctor").stdout
    assert tpujob("down", "alice").returncode == 0


def test_no_guardian_is_said_and_one_that_cannot_start_makes_it_unusable(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_GUARDIAN="off")
    assert done.returncode == 0 and check(said, "guardian")["live"] is False
    (tpujob.directory / "state" / "guardian.log").mkdir()
    said, done = examined(tpujob, TPUJOB_GUARDIAN="on")
    assert done.returncode == 70 and not said["usable"]


def test_in_a_ci_job_it_says_what_that_means(tpujob: Tpujob) -> None:
    said, _ = examined(tpujob, TPUJOB_GUARDIAN="on", CI="true")
    assert "but not the end of this CI job" in check(said, "guardian")["text"]


def test_settings_that_cannot_be_used_are_the_diagnosis(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_CLOUD="azure")
    assert done.returncode == 64 and "'azure' is not a cloud" in check(said, "cloud")["text"]


def test_a_token_that_is_refused_is_77(tpujob: Tpujob, tmp_path: Path) -> None:
    tpujob.admin("GET", "status")
    from orchestrator.emulator.daemon import control

    (tmp_path / "token").write_text("wrong")
    url = control.ensure_running(tpujob.emulator_directory).url
    said, done = examined(tpujob, TPUJOB_ENDPOINT=url, TPUJOB_TOKEN_FILE=str(tmp_path / "token"))
    assert done.returncode == 77 and check(said, "credentials")["live"] is False


def test_a_state_directory_or_ledger_that_cannot_be_used_is_the_diagnosis(tpujob: Tpujob) -> None:
    tpujob.admin("GET", "status")
    (tpujob.directory / "state" / "ledger.sqlite3").write_bytes(b"not a database" * 1000)
    said, done = examined(tpujob)
    assert done.returncode == 70 and "cannot be used" in check(said, "state")["text"]
    assert said["slices"] is None and said["worst_usd"] is None
    for layer in ("watchdog", "timer", "gc"):
        assert "not known" in check(said, layer)["text"] and not check(said, layer)["live"], check(said, layer)
    assert "worst case" not in tpujob("doctor").stdout
    (tpujob.directory / "state").chmod(0o777)
    said, done = examined(tpujob)
    assert done.returncode == 64
    (tpujob.directory / "state").chmod(0o700)


def test_a_ledger_that_cannot_say_the_time_ends_no_diagnosis(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.record_gc(GcRun(time.time(), "emulated", "some-project", "all", True, 0, 0))
    assert health_checks.gc(ledger, Target("emulated", "some-project")).live is True
    with sqlite3.connect(ledger.path) as db:
        db.execute("drop table anchor")
    assert health_checks.gc(ledger, Target("emulated", "some-project")).live is None


def test_what_is_owed_outranks_everything(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    tpujob.admin("POST", "faults", {"operation": "nodes.*", "kind": "status", "status": 403})
    tpujob.as_process("down", "alice", env={"TPUJOB_CRASH_AT": "Sleep:1:before"})
    with sqlite3.connect(tpujob.directory / "state" / "ledger.sqlite3") as db:
        assert list(db.execute("select state from lease")) == [("down",)]
    said, done = examined(tpujob)
    assert done.returncode == 75 and said["slices"][0]["lease"] == "down"
