"""A record of a run that a worker of another machine's slice tells: nothing of it is trusted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.places.preparation.records import read_record, record_of
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from tests.fakes.leases import lease_and_request

RUN = "k3zgazhmv1"
LEASE = replace(lease_and_request().lease, run=RUN, handle="mnist")
SPEC = RunSpec.of({"command": "true", "limits": {"max_results": 7, "max_log": 8}})
MADE = RunRecord(RUN, "mnist", "/home/a/job.yaml", "google", 1.8e9, "/elsewhere", SPEC)
RECORD = record_of(MADE, Attempt(f"{RUN}-2", RUN))


def told(**changes: Any) -> dict[str, Any]:
    return {**RECORD, "run": {**RECORD["run"], **changes}}


def test_what_worker_0_keeps_of_a_run_comes_back_with_a_directory_of_this_machine() -> None:
    found = read_record(RECORD, f"{RUN}-2", LEASE, Path("/runs"))
    assert found is not None
    run, attempt = found
    assert (run.id, run.name, run.directory, run.cloud) == (RUN, "mnist", f"/runs/mnist-{RUN}", LEASE.cloud)
    assert (attempt.id, run.spec.command, run.spec.limits.max_log) == (f"{RUN}-2", "true", 8)


@pytest.mark.parametrize(
    "attempt",
    [
        f"{RUN}-/../../x",
        f"{RUN}-2\n",
        f"{RUN}-0",
        f"{RUN}-99999",
        "other-2",
        RUN,
        "",
        f"{RUN}-\N{ARABIC-INDIC DIGIT TWO}",
    ],
)
def test_an_attempt_that_is_no_name_of_one_is_not_taken(attempt: str) -> None:
    assert read_record({**RECORD, "attempt": attempt}, attempt, LEASE, Path("/runs")) is None


@pytest.mark.parametrize("record", [
    {}, {**RECORD, "run": None}, {**RECORD, "attempt": f"{RUN}-1"}, told(id="0000000000"), told(name="other"),
    told(name="../mnist"), told(name=7), told(job_path=None), told(job_path="x" * 5000),
])  # fmt: skip
def test_a_record_that_is_not_whole_or_of_another_run_is_not_taken(record: dict[str, Any]) -> None:
    assert read_record(record, f"{RUN}-2", LEASE, Path("/runs")) is None


@pytest.mark.parametrize("created_at", [10**400, float("nan"), float("inf"), -1.0, True, "1", None])
def test_a_time_that_is_none_is_that_of_the_slice(created_at: Any) -> None:
    found = read_record(told(created_at=created_at), f"{RUN}-2", LEASE, Path("/runs"))
    assert found is not None and found[0].created_at == LEASE.created_at


def test_nothing_of_it_reaches_the_terminal_or_takes_more_of_the_disk_than_a_job_usually_does() -> None:
    found = read_record(told(job_path="/a\x1b[2J/b", spec={"command": "true"}), f"{RUN}-2", LEASE, Path("/runs"))
    assert found is not None
    assert found[0].job_path == "/a?[2J/b" and found[0].spec.limits.max_results and found[0].spec.limits.max_log
    assert read_record(RECORD, f"{RUN}-2", replace(LEASE, run=None), Path("/runs")) is None


def test_no_worker_says_what_is_run_on_this_machine_when_the_job_ends() -> None:
    spec = {"command": "true", "notify": {"command": "touch /tmp/owned"}}
    found = read_record(told(spec=spec), f"{RUN}-2", LEASE, Path("/runs"))
    assert found is not None and "notify" not in found[0].spec.values
