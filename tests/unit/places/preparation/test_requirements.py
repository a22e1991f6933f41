"""`requirements:` and `python:` of a job: files are found beside the job file, and mistakes name its line."""

import sys
from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import RunRecord
from orchestrator.core.text.environments import Environment
from orchestrator.errors import JobSpecError
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.checks import check_python
from orchestrator.places.preparation.phases import phases
from orchestrator.places.preparation.variables import Emulation

RUN = RunRecord("r1", "job", "job.yaml", "google", 0.0, "runs/job-r1")


def read(directory: Path, text: str, **extra: str | None) -> Environment:
    spec = keys.load(f"command: 'true'\n{text}\n", path="job.yaml")
    return requirements.read(spec, directory / "job.yaml", **extra)


def refused(directory: Path, text: str) -> list[str]:
    with pytest.raises(JobSpecError) as caught:
        read(directory, text)
    return list(caught.value.problems)


def test_a_file_is_read_beside_the_job_file_and_travels_without_any_code(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n-r more.in\n")
    (tmp_path / "more.in").write_text("pandas\n")
    found = read(tmp_path, "requirements: requirements.txt", code_sha256="abc")
    assert (found.what, found.requirements, found.code_sha256) == ("requirements.txt", "numpy\npandas\n", None)


def test_a_list_and_a_version_of_python(tmp_path: Path) -> None:
    found = read(tmp_path, "requirements: [numpy, pandas]\npython: 3.10")
    assert (found.what, found.requirements, found.python) == ("2 requirements", "numpy\npandas\n", "3.10")
    assert not read(tmp_path, "").is_asked_for


def test_requirements_from_the_code_are_another_environment_when_the_code_changes(tmp_path: Path) -> None:
    (tmp_path / "src" / "lib").mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("-e src/lib\n")
    names = {
        read(tmp_path, "code: src\nrequirements: requirements.txt", code_sha256=sha).name for sha in ("one", "two")
    }
    found = read(tmp_path, "code: src\nrequirements: requirements.txt", code_sha256="one")
    assert len(names) == 2 and found.requirements == "./lib\n"


def test_mistakes_name_the_line_of_the_job_file_and_that_of_the_requirements(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "requirements.txt").write_text("numpy\n./lib\n")
    (line,) = refused(tmp_path, "requirements: requirements.txt")
    assert line == (
        f"job.yaml:2: requirements: requirements.txt:2: {tmp_path / 'lib'} is not on the workers; "
        "name a directory above it in `code:`"
    )
    (tmp_path / "src").mkdir()
    (line,) = refused(tmp_path, "requirements: requirements.txt\ncode: src")
    assert "because it lies outside of `code:`" in line
    assert "does not exist" in refused(tmp_path, f"requirements: [./{'a' * 300}]\ncode: src")[0]
    (line,) = refused(tmp_path, "requirements: other.txt")
    assert line == (
        f"job.yaml:2: requirements: other.txt: {tmp_path / 'other.txt'} cannot be read: no such file or directory"
    )
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe")
    assert refused(tmp_path, "requirements: requirements.txt")[0].endswith("is UTF-16 or binary; save it as UTF-8")
    (tmp_path / "requirements.txt").write_bytes(b"numpy\n\xe9\n")
    assert "is not UTF-8 (byte 0xe9 in line 2); save it" in refused(tmp_path, "requirements: requirements.txt")[0]


@pytest.mark.parametrize(
    "line", ["{}", "-e {}", "x @ file://{}", "{}[extra] ; python_version > '3'", "-f {}", "--find-links=file://{}"]
)
def test_a_path_of_this_machine_is_refused_but_on_it_and_in_an_image(tmp_path: Path, line: str) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line.format(tmp_path / 'w')}\n")
    (mistake,) = refused(tmp_path, "requirements: requirements.txt\ncode: .")
    assert mistake.startswith("job.yaml:2: requirements: requirements.txt:2: names /")
    assert "which exists on this machine; workers do not get it" in mistake
    for on in ("local", "gke"):
        assert str(tmp_path) in read(tmp_path, f"requirements: requirements.txt\non: {on}").requirements
    (tmp_path / "w").rmdir()
    read(tmp_path, "requirements: requirements.txt"), "perhaps one of the worker"


def test_a_place_where_conda_built_a_package_is_refused(tmp_path: Path) -> None:
    (mistake,) = refused(tmp_path, "requirements: ['six @ file:///croot/six_1744271502820/work']")
    assert "names /croot/six_1744271502820/work, where conda built it; workers do not get it" in mistake


@pytest.mark.parametrize("line", [
    "-f /tmp", "--find-links=file:///tmp", "--find-links /usr/lib", "--global-option=/tmp", "--cert {}", "-i {}",
    "x --config-settings=a={}", "x --global-option={}", f"foo @ file:///{'a' * 300}/x.whl", "-e /tmp/",
])  # fmt: skip
def test_a_path_that_a_worker_may_have_is_its_own(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(line.format(tmp_path))
    assert read(tmp_path, "requirements: requirements.txt\ncode: .").requirements


def scripts_of(directory: Path, text: str, emulation: Emulation | None) -> list[str]:
    spec = keys.load(text, path="job.yaml")
    made = phases(spec, RUN, shipment=None, env={}, emulation=emulation, job_path=directory / "job.yaml")
    return [phase.request.text for phase in made]  # type: ignore[attr-defined]


def test_the_environment_is_made_before_the_jobs_own_setup_and_used_by_both(tmp_path: Path) -> None:
    setup, main = scripts_of(tmp_path, "command: run it\nsetup: prepare\nrequirements: [numpy]\n", None)
    assert (
        setup.index(" environment ") < setup.index("numpy") < setup.index("export VIRTUAL_ENV") < setup.index("prepare")
    )
    assert main.index("export VIRTUAL_ENV") < main.index("run it")


@pytest.mark.parametrize("emulation", [None, Emulation(2)])
def test_a_training_adds_its_requirements_to_its_own_environment(tmp_path: Path, emulation: Emulation | None) -> None:
    setup, main = scripts_of(tmp_path, "train: {}\nrequirements: [pandas]\n", emulation)
    assert "pandas" in setup and ("torch==" in setup) == (emulation is None)
    assert ("$TPUJOB_EMULATED_TRAINING/python" in setup) == (emulation is not None)
    assert "exec python3 -m payload" in main and "export VIRTUAL_ENV" in main


def test_an_emulated_training_without_requirements_needs_no_setup(tmp_path: Path) -> None:
    (main,) = scripts_of(tmp_path, "train: {}\n", Emulation(2))
    assert "TPUJOB_EMULATED_TRAINING" in main


def test_an_emulated_training_on_another_python_than_the_one_that_has_torch_is_refused() -> None:
    other = f"3.{sys.version_info.minor + 1}"
    spec = keys.load(f'train: {{}}\npython: "{other}"\n', path="job.yaml")
    check_python(spec, "google")
    with pytest.raises(JobSpecError, match="emulated workers train with the torch of tpujob's own Python"):
        check_python(spec, "emulated")
