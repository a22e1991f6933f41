"""What the phases of a job are started with on each worker."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.places.preparation.phases import phases, pod_scripts
from orchestrator.places.preparation.variables import Emulation
from tests.unit.engine.virtual import lease_and_request
from tests.waiting import HANG_S


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
    sampler = script.index('.zip}" tpu_metrics "$TPUJOB_ARTIFACTS"')
    assert script.index("VIRTUAL_ENV/bin") < sampler < script.index("python train.py")
    assert "tpu_metrics" in main_script(tmp_path, "train: {}\n")


def test_they_are_not_sampled_where_the_job_says_so_or_where_the_tpu_is_emulated(tmp_path: Path) -> None:
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\ntpu_metrics: false\n")
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\n", Emulation(2))


def pod_scripts_of(directory: Path, text: str) -> dict[str, str]:
    spec = keys.load(f"on: gke\n{text}", path="job.yaml")
    return dict(pod_scripts(spec, code_id=None, job_path=directory / "job.yaml"))


def test_a_pod_runs_the_same_phases_as_a_worker(tmp_path: Path) -> None:
    text = "command: python train.py\nrequirements: [jax]\nsetup: pip list\n"
    found = pod_scripts_of(tmp_path, text)
    assert list(found) == ["setup", "main"]
    assert found["main"] == main_script(tmp_path, text)
    assert list(pod_scripts_of(tmp_path, "command: 'true'\n")) == ["main"]


def python_with(directory: Path, *modules: str) -> Path:
    """A `python3` that has these modules and nothing else, and whose agent fails."""
    site = directory / "site"
    for module in modules:
        (site / module).mkdir(parents=True)
        (site / module / "__init__.py").write_text("raise RuntimeError('it takes the TPU')")
    program = directory / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" != -IS ] || exit 9\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program.parent


def setup_with(directory: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    setup = pod_scripts_of(directory, "train: {}\nsetup: echo own\n")["setup"]
    path = f"{python_with(directory, *modules)}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "TPUJOB_WORKER": "0", "HOME": str(directory), "TPUJOB_AGENT": "agent.zip"}
    return subprocess.run(
        ["bash", "-c", setup], env=environ, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def test_a_training_uses_the_torch_of_the_image_where_it_has_it(tmp_path: Path) -> None:
    ended = setup_with(tmp_path, "torch", "torch_xla", "numpy")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "the image has torch and torch_xla and numpy: they are used as they are\nown\n"


def test_an_image_without_torch_gets_an_environment_with_it(tmp_path: Path) -> None:
    ended = setup_with(tmp_path, "torch", "numpy")
    assert (ended.returncode, ended.stdout) == (9, "")  # the code of what makes the environment


def test_a_training_with_requirements_has_an_environment_as_on_a_slice(tmp_path: Path) -> None:
    text = "train: {}\nrequirements: [tqdm]\n"
    assert pod_scripts_of(tmp_path, text)["main"] == main_script(tmp_path, text)


@pytest.mark.parametrize(("modules", "rank"), [
    (("torch_xla", "accelerate"), "0"), (("torch_xla",), ""), (("torch", "accelerate"), ""),
    (("torch_xla", "accelerate", "lightning"), ""),
])  # fmt: skip
def test_on_the_cpu_of_the_emulator_accelerate_alone_finds_its_rank_on_the_host(
    tmp_path: Path, modules: tuple[str, ...], rank: str
) -> None:
    """accelerate reads LOCAL_RANK there; a library that is not on XLA would wait for other processes."""
    python_with(tmp_path, *modules, "torch" if "torch" not in modules else "numpy")
    python = tmp_path / "bin" / "python3"
    python.write_text(
        python.read_text().replace(
            ' -S "$@"', f' -Sc \'import sys; sys.path.append("{tmp_path}/site"); exec(sys.argv[2])\' "$@"'
        )
    )
    script = main_script(tmp_path, "command: echo rank=$LOCAL_RANK, ${TPUJOB_EMULATED_LENT:-own torch}\n", Emulation(2))
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", "TPUJOB_WORKER": "0", "TPUJOB_EMULATED_LENT": "torch"}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"rank={rank}, own torch\n", "")


@pytest.mark.parametrize(("emulation", "asked"), [(Emulation(2), "jax"), (None, "jax[tpu]")])
def test_requirements_for_a_tpu_are_those_without_one_only_where_it_is_emulated(
    tmp_path: Path, emulation: Emulation | None, asked: str
) -> None:
    spec = keys.load("command: ls\nrequirements: ['jax[tpu]']\n", path="job.yaml")
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(tmp_path))
    setup, _ = phases(spec, run, shipment=None, env={}, emulation=emulation, job_path=tmp_path / "job.yaml")
    script = setup.request(Attempt("r1-1", "r1"), lease_and_request().lease, ("10.0.0.2",), "10.0.0.2:8476").script
    assert f'"requirements": "{asked}\\n"' in script
