"""What workers install is chosen before anything is created: by the real uv, from an index on the loopback address."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.places.preparation import resolving, versions
from orchestrator.places.preparation.phases import Emulation
from orchestrator.places.preparation.resolving import EMULATED, TPU_VM, Resolved, pods_of
from tests.fakes.package_index import Index, package_index

ZEROS = "--hash=sha256:" + 64 * "0"
NEW = "Python 3.12 has it: write"


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with package_index() as made:
        made.wheel("alpha", "0.1")
        made.wheel("alpha", "1.0", ["beta"])
        made.wheel("beta", "1.0")
        made.wheel("beta", "2.0rc1")
        made.wheel("leap", "0.6.2")
        made.wheel("leap", "0.10.2", python=">=3.11")
        made.wheel("step", "2.2.6")
        made.wheel("step", "2.3.0", python=">=3.11")
        made.wheel("fresh", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
        made.wheel("windows", "1.0", tag="py3-none-win_amd64")
        made.wheel("glibc", "1.0", tag="py3-none-manylinux_2_35_x86_64")
        made.wheel("glibc", "2.0", tag="py3-none-manylinux_2_39_x86_64")
        made.wheel("spread", "1.0", ["beta; extra == 'x'"], extras="x")
        made.wheel("picky", "1.0", ["alpha<1"])
        for version in ("2.8.0", "2.9.0", "2.10.0"):
            made.wheel("torch", version)
        made.wheel("torch_xla", "2.9.0", ["libtpu; extra == 'tpu'"], extras="tpu")
        made.wheel("libtpu", "0.1")
        made.wheel("vision", "1.0", ["torch"])
        made.source("stone", "1.0")
        yield made


@dataclass
class Job:
    """A job file in a directory, and the desk of the command that plans it."""

    directory: Path
    said: list[str] = field(default_factory=list)

    def choose(
        self,
        requirements: str,
        more: str = "",
        *,
        workers: resolving.Workers = TPU_VM,
        env: Mapping[str, str] | None = None,
        emulation: Emulation | None = None,
        kind: str = "command: python train.py\ncode: .\n",
    ) -> Resolved:
        (self.directory / "requirements.txt").write_text(requirements)
        text = f"{kind}requirements: requirements.txt\n{more}"
        reporter = SimpleNamespace(progress=lambda stage, line: self.said.append(line))
        desk: Any = SimpleNamespace(directory=self.directory / "state", reporter=reporter)
        spec = job_spec.load(text, path=str(self.directory / "job.yaml"))
        return resolving.resolve(desk, spec, self.directory / "job.yaml", env or {}, workers, emulation)

    def refused(self, requirements: str, more: str = "") -> tuple[str, str]:
        """Return the one line that refuses it, from the requirements on, and the hint."""
        with pytest.raises(JobSpecError) as caught:
            self.choose(requirements, more)
        (line,) = caught.value.message.splitlines()
        return line.partition("requirements: ")[2], caught.value.hint or ""


@pytest.fixture
def job(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "lib"
    package.mkdir()
    (package / "pyproject.toml").write_text('[project]\nname = "lib"\nversion = "3"\ndependencies = ["alpha"]\n')
    (tmp_path / "more.txt").write_text("beta\n")
    (tmp_path / "only.txt").write_text("alpha<1\n")
    return Job(tmp_path)


@pytest.mark.parametrize(("requirements", "versions"), [
    ("alpha", {"alpha": "1.0", "beta": "1.0"}),
    ("Alpha == 1.0  # a comment\n\n", {"alpha": "1.0", "beta": "1.0"}),
    ("-r more.txt", {"beta": "1.0"}),
    ("-c only.txt\nalpha", {"alpha": "0.1"}),
    ("picky\nalpha", {"picky": "1.0", "alpha": "0.1"}),
    ("spread[x]", {"spread": "1.0", "beta": "1.0"}),
    ("spread[y]", {"spread": "1.0"}),
    ("alpha<1; python_version > '3.11'\nbeta", {"beta": "1.0"}),
    ("alpha<1; sys_platform == 'linux'", {"alpha": "0.1"}),
    ("beta>=2.0rc1", {"beta": "2.0rc1"}),
    ("--pre\nbeta", {"beta": "2.0rc1"}),
    ("--prefer-binary\nbeta", {"beta": "1.0"}),
    ("--trusted-host example.org\nbeta", {"beta": "1.0"}),
    ("leap\nstep", {"leap": "0.6.2", "step": "2.2.6"}),
    ("glibc", {"glibc": "1.0"}),
    ("vision\ntorch_xla[tpu]\ntorch", {"vision": "1.0", "torch": "2.9.0", "torch-xla": "2.9.0", "libtpu": "0.1"}),
    ("-e ./lib", {"alpha": "1.0", "beta": "1.0"}),
    ("./lib\nbeta", {"alpha": "1.0", "beta": "1.0"}),
])  # fmt: skip
def test_versions_are_those_for_the_python_and_the_system_of_a_tpu_vm(
    job: Job, requirements: str, versions: dict[str, str]
) -> None:
    found = job.choose(requirements)
    assert found.shape == {"python": "3.10", "for": "a TPU VM", "packages": versions}
    lines = found.files["requirements.lock"].splitlines()[1:]
    assert [line for line in lines if " --hash=sha256:" not in line] == ["./lib"] * ("./lib" in requirements)


@pytest.mark.parametrize(("requirements", "said", "hint"), [
    ("beta\nnosuch", "requirements.txt:2: `nosuch`: for Python 3.10 of a TPU VM: Because nosuch was not found", ""),
    ("alpha>1.0", "requirements.txt:1: `alpha>1.0`: for Python 3.10 of a TPU VM: Because only alpha<=1.0 is available", ""),
    ("alpha>=1\nalpha<1", "requirements.txt:1: `alpha>=1`, requirements.txt:2: `alpha<1`: for Python", ""),
    ("-c only.txt\nalpha>=1", "requirements.txt:2: `alpha>=1`: for Python 3.10 of a TPU VM: Because you require", ""),
    ("picky\nalpha>=1", "requirements.txt:1: `picky`, requirements.txt:2: `alpha>=1`: for Python 3.10", ""),
    ("-r more.txt\nbeta>=7", "more.txt:1: `beta`, requirements.txt:2: `beta>=7`: for Python", ""),
    ("fresh", "requirements.txt:1: `fresh`: for Python 3.10 of a TPU VM: Because fresh==1.0 has no wheels with a", NEW),
    ("leap>=0.10", "requirements.txt:1: `leap>=0.10`: for Python 3.10 of a TPU VM: Because the requested Python", NEW),
    ("windows", "requirements.txt:1: `windows`: for Python 3.10 of a TPU VM: Because windows==1.0 has no wheels with a", ""),
    ("glibc==2.0", "requirements.txt:1: `glibc==2.0`: for Python 3.10 of a TPU VM: Because glibc==2.0 has no wheels", ""),
    (f"beta\nalpha==1.0 {ZEROS}", "requirements.txt:2: `alpha==1.0`: no file of this version that the index has is", ""),
    ("alpha >< 1", "requirements.txt:1: `alpha >< 1`: for Python 3.10 of a TPU VM: not a requirement: no such", ""),
    ("alpha --global-option=x", "requirements.txt:1: `alpha --global-option=x`: for Python 3.10", ""),
    ("./nowhere", "requirements.txt:1: ", ""),
])  # fmt: skip
def test_what_cannot_be_had_is_refused_with_its_line_and_the_reason(
    job: Job, requirements: str, said: str, hint: str
) -> None:
    line, advice = job.refused(requirements)
    assert line.startswith(said) and advice.startswith(hint) and bool(advice) == bool(hint), (line, advice)


@pytest.mark.parametrize(("requirements", "said"), [
    ("stone", "stone"),
    ("--index-url http://127.0.0.1:9/simple\nalpha", "Failed to fetch: http://127.0.0.1:9/simple/alpha/"),
    ("alpha @ http://127.0.0.1:9/alpha-1.0-py3-none-any.whl", "Failed to fetch"),
    ("git+http://127.0.0.1:9/x.git", "Git operation failed"),
    ("/nowhere/on/this/machine", "/nowhere/on/this/machine"),
])  # fmt: skip
def test_what_only_cannot_be_reached_or_built_here_is_left_to_the_workers(
    job: Job, requirements: str, said: str
) -> None:
    found = job.choose(requirements)
    (warning,) = found.warnings
    assert warning.startswith("requirements.txt: the versions cannot be chosen here, so the workers choose them: ")
    assert said in warning and found.shape is None and found.files == {} and len(warning) < 420
    assert found.environment is not None and found.environment.lock == ""


def test_without_uv_the_workers_choose(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.Resolver, "uv", None)
    assert "there is no uv here" in job.choose("alpha").warnings[0]


def test_packages_far_behind_those_of_a_newer_python_are_named_with_what_helps(job: Job) -> None:
    found = job.choose("leap\nstep\nbeta")
    assert found.lines == ("chosen for Python 3.10 of a TPU VM: leap 0.6.2, step 2.2.6, beta 1.0",)
    assert found.warnings == (
        'requirements: Python 3.10 gets leap 0.6.2, and Python 3.12 0.10.2; `python: "3.12"` takes it',
    )
    newer = job.choose("leap\nstep", 'python: "3.12"\n')
    assert newer.shape is not None and newer.shape["packages"] == {"leap": "0.10.2", "step": "2.3.0"}
    assert newer.warnings == ()


def test_the_file_that_a_hash_names_is_the_only_one_that_is_installed(job: Job, index: Index) -> None:
    other = index.wheel("alpha", "0.1", tag="py2.py3-none-any")
    found = job.choose(f"alpha==0.1 {ZEROS} --hash={other}")
    assert found.lock.lines == (f"alpha==0.1 {ZEROS} --hash={other}",)


def test_a_secret_of_a_private_index_is_nowhere(tmp_path: Path, job: Job) -> None:
    with package_index("user:hunter2hunter2") as private:
        private.wheel("inside", "1.0")
        where = private.url.replace("http://", "http://user:${TOKEN}@")
        asked = f"--extra-index-url {where}\ninside\nbeta"
        found = job.choose(asked, env={"TOKEN": "hunter2hunter2"})
        assert found.shape is not None and found.shape["packages"] == {"inside": "1.0", "beta": "1.0"}
        assert found.environment is not None and "${TOKEN}" in found.environment.lock
        closed = job.choose(asked, env={"TOKEN": "wrong-wrong"})
    kept = "".join(path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert "hunter2" not in kept + str(found.environment) + str(found.files)
    assert closed.warnings and "wrong-wrong" not in str(closed)


def test_an_index_of_the_job_counts_more_than_that_of_this_machine(job: Job) -> None:
    with package_index() as other:
        other.wheel("alpha", "7.0")
        found = job.choose("alpha", env={"PIP_INDEX_URL": other.url})
    assert found.lock.versions == {"alpha": "7.0"}


def test_options_for_the_index_stay_with_the_lock(job: Job, index: Index) -> None:
    found = job.choose(f"--extra-index-url {index.url}\nbeta")
    assert found.environment is not None
    option, package = found.environment.lock.splitlines()
    assert option == f"--extra-index-url {index.url}" and package.startswith("beta==1.0 --hash=sha256:")


def test_what_was_chosen_some_minutes_ago_is_chosen_again(
    job: Job, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job.choose("alpha")
    asked = len(index.api.asked)
    assert job.choose("alpha") == first and len(index.api.asked) == asked
    monkeypatch.setattr(versions, "KEPT_S", 0.0)
    assert job.choose("alpha") == first and len(index.api.asked) > asked


def test_the_name_of_an_environment_changes_with_what_is_chosen(job: Job, index: Index) -> None:
    with package_index() as other:
        other.wheel("alpha", "7.0")
        made = [job.choose("alpha", env=env).environment for env in ({}, {}, {"PIP_INDEX_URL": other.url})]
    first, again, newer = (each.name for each in made if each is not None)
    assert first == again != newer


def test_an_emulated_worker_gets_what_fits_this_machine_and_no_lock_for_torch(job: Job) -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = job.choose("leap", workers=EMULATED, emulation=Emulation(2))
    assert found.python == own and found.lock.lines
    lent = job.choose("vision", workers=EMULATED, emulation=Emulation(2))
    assert lent.environment is not None and lent.environment.lock == "" and lent.warnings == ()


def test_a_training_gets_its_own_packages_chosen_with_those_of_the_job(job: Job) -> None:
    found = job.choose("beta", kind="train: {}\n", env={"PIP_INDEX_URL": "http://127.0.0.1:9/simple"})
    assert found.warnings and "torch_xla and requirements.txt" in found.warnings[0]
    with pytest.raises(JobSpecError, match="numpy"):
        job.choose("beta", kind="train: {}\n")


@pytest.mark.parametrize(("image", "python"), [
    ("python:3.12-slim", "3.12"), ("registry.example/x/python:3.11", "3.11"), ("python:3.10.4", "3.10"),
    ("us-docker.pkg.dev/p/r/train:1", ""), ("python:latest", ""), ("cpython:3.12", ""),
])  # fmt: skip
def test_the_name_of_an_image_may_tell_its_python(job: Job, image: str, python: str) -> None:
    assert pods_of(image).python == python
    found = job.choose("glibc", workers=pods_of(image))  # as libtpu, of a later glibc than the oldest that pip knows
    assert (found.shape or {}).get("python", "") == python
    assert bool(found.warnings) == (not python)
