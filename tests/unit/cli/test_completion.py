"""What a shell completes: names of the ledger and the catalog, quickly, without a network, and never with an error."""

from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator.cli import completion
from orchestrator.cli.completion import PLAIN
from orchestrator.core.lease.lease import Intent
from orchestrator.core.lease.run_and_attempt import Attempt, Began, RunRecord
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.rows import SweepRecord
from tests.unit.engine.virtual import lease_and_request
from tests.unit.test_import_cost import CLOUD_AND_SSH, MAIN, SCIENCE, heavy, imported


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "state").mkdir(mode=0o700)
    return Ledger(tmp_path / "state" / "ledger.sqlite3")


def begin(ledger: Ledger, run: str, name: str) -> None:
    record = RunRecord(run, name, "job.yaml", "emulated", 1.0, "runs/x")
    ledger.record(Began(record, Attempt(f"{run}-1", run)))


def words(found: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in found]


def test_runs_are_completed_by_name_and_by_id(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "mnist")
    begin(ledger, "m123456789", "mnist")
    begin(ledger, "9123456789", "hello")
    assert words(completion.runs("m")) == ["mnist", "m123456789"]
    assert ("hello", "newest: pending") in completion.runs("h")
    assert words(completion.runs("912")) == ["9123456789"]


def test_whose_log_to_show_is_completed() -> None:
    assert words(completion.logs("")) == ["all", "0"] and words(completion.logs("a")) == ["all"]


def test_sweeps_are_completed_by_name_where_a_command_takes_them(ledger: Ledger) -> None:
    for identity in ("0123456789", "1123456789"):
        ledger.record_sweep(SweepRecord(identity, "lr-sweep", "s.yaml", 1.0))
    assert completion.runs_and_sweeps("lr") == [("lr-sweep", "sweep")] and completion.runs("lr") == []


def test_an_old_run_is_completed_too_once_its_name_begins(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "mnist")
    for number in range(completion.MOST_RUNS):
        begin(ledger, f"1{number:09d}", "hello")
    assert words(completion.runs("mn")) == ["mnist"] and "mnist" not in words(completion.runs(""))


def test_slices_are_completed_by_name_and_nodes_by_id(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    assert completion.slices(lease.handle[:1]) == [(lease.handle, f"{lease.accelerator_type}, {lease.name.zone}")]
    assert words(completion.nodes("")) == [lease.name.node]


def test_types_are_completed_as_people_and_as_the_api_call_them() -> None:
    assert words(completion.types("v5e-1")) == ["v5e-1", "v5e-16", "v5e-128"]
    assert words(completion.types("v5litepod-1")) == ["v5litepod-1", "v5litepod-16", "v5litepod-128"]
    assert {"v6e", "v6e-8"} <= set(words(completion.types("v6")))


def test_places_are_zones_regions_and_what_follows_a_comma() -> None:
    assert set(catalog.zones()) <= set(words(completion.places("")))
    assert words(completion.places("us-central1-a,us-west4-")) == [
        "us-central1-a,us-west4-a",
        "us-central1-a,us-west4-b",
    ]
    assert words(completion.places("any")) == ["any"]


def test_job_files_are_yaml_and_directories_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    for name in ("mnist.yaml", "other.yml", "train.py", ".hidden.yaml", "jobs/deep.yaml", "$(rm).yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert words(completion.job_files("")) == ["jobs/", "mnist.yaml", "other.yml"]
    assert words(completion.job_files("jobs/d")) == ["jobs/deep.yaml"]
    assert words(completion.job_files("missing/")) == []


def test_a_name_that_a_shell_would_not_take_as_it_is_is_not_offered(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "$(reboot)")
    assert words(completion.runs("")) == ["0123456789"]
    assert not PLAIN.fullmatch("a b") and not PLAIN.fullmatch("a\n")


def test_without_a_state_directory_nothing_is_completed_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "none"))
    assert completion.runs("") == [] and not (tmp_path / "none").exists()


def test_a_ledger_that_cannot_be_read_completes_nothing(ledger: Ledger) -> None:
    for path in Path(ledger.path).parent.glob("ledger*"):
        path.write_bytes(b"no database")
    assert completion.runs("") == []


@pytest.mark.parametrize("line", ["tpujob show ", "tpujob run ", "tpujob up --zone "])
def test_a_completion_imports_neither_cloud_nor_ssh_nor_what_reads_job_files(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("_TPUJOB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    assert heavy(imported(MAIN), CLOUD_AND_SSH | SCIENCE | {"rich", "orchestrator.core.jobfile.keys"}) == []
