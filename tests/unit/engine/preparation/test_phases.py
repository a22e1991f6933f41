"""What the phases of a job are started with on each worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.engine.preparation.phases import phases
from tests.unit.engine.virtual import lease_and_request


def test_a_job_finds_the_addresses_of_all_hosts_and_how_the_chips_are_wired(tmp_path: Path) -> None:
    lease = replace(lease_and_request().lease, accelerator_type="v5litepod-16")
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(tmp_path))
    (main,) = phases(
        keys.load("command: 'true'\n", path="job.yaml"),
        run,
        shipment=None,
        env={},
        emulation=None,
        job_path=tmp_path / "job.yaml",
    )
    hosts = ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
    seen = main.request(Attempt("r1-1", "r1"), lease, hosts, "10.0.0.2:8476").env_by_worker
    assert [variables["TPUJOB_WORKER"] for variables in seen] == ["0", "1", "2", "3"]
    assert {variables["TPUJOB_HOSTS"] for variables in seen} == {"10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5"}
    assert {(variables["TPUJOB_WORKERS"], variables["TPUJOB_TOPOLOGY"]) for variables in seen} == {("4", "4x4")}
