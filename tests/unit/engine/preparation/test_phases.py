"""What the phases of a job are started with on each worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.engine.preparation.phases import phases
from orchestrator.engine.preparation.variables import Emulation
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


def main_script(directory: Path, text: str, emulation: Emulation | None = None) -> str:
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(directory))
    spec = keys.load(text, path="job.yaml")
    *_, main = phases(spec, run, shipment=None, env={}, emulation=emulation, job_path=directory / "job.yaml")
    return main.request(Attempt("r1-1", "r1"), lease_and_request().lease, ("10.0.0.2",), "10.0.0.2:8476").script


def test_the_metrics_of_a_tpu_are_sampled_by_the_python_that_the_job_has(tmp_path: Path) -> None:
    script = main_script(tmp_path, "command: python train.py\nrequirements: [jax]\n")
    sampler = script.index('.zip" tpu_metrics "$TPUJOB_ARTIFACTS"')
    assert script.index("VIRTUAL_ENV/bin") < sampler < script.index("python train.py")
    assert "tpu_metrics" in main_script(tmp_path, "train: {}\n")


def test_they_are_not_sampled_where_the_job_says_so_or_where_the_tpu_is_emulated(tmp_path: Path) -> None:
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\ntpu_metrics: false\n")
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\n", Emulation(2))
