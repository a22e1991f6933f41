"""The preparation of a job: what is wrong is said before anything is made, and what its phases are started with."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.code import check_files, check_python, survey
from orchestrator.places.preparation.phases import Emulation, environment_of, phases, pod_scripts
from orchestrator.places.preparation.requirements import warnings
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.text.scripts import Environment
from tests.fakes.leases import lease_and_request
from tests.waiting import ran


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    for name in ("train.py", "pkg/__main__.py", "plain.sh", "left.py", "my tool"):
        (tmp_path / "src" / name).write_text("print(1)\n")
    (tmp_path / "src" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "src" / "run.sh").chmod(0o755)
    (tmp_path / "src" / "my tool").chmod(0o755)
    (tmp_path / "src" / ".gitignore").write_text("left.py\nout/\n")
    (tmp_path / "src" / "out").mkdir()
    (tmp_path / "src" / ".venv").mkdir()
    (tmp_path / "src" / ".venv" / "pyvenv.cfg").touch()
    (tmp_path / "src" / "empty").mkdir()
    (tmp_path / "src" / "out" / "a.py").write_text("x")
    (tmp_path / "src" / "link").symlink_to("pkg")
    return tmp_path / "job.yaml"


def problems(job: Path, text: str) -> list[str]:
    spec = job_spec.load(text, path="job.yaml")
    try:
        check_files(spec, survey(spec, job))
    except JobSpecError as error:
        return error.problems
    return []


IN_CODE = "is not in `code: src`, where the commands of the job start"
NO_PROGRAM = "is no program: a list is the words of one program"
VENV = "is of a virtual environment, which is not shipped"


@pytest.mark.parametrize(("text", "why"), [
    ("command: python missing.py", f"2: command: `missing.py` {IN_CODE}; make it there, or in"),
    ("command: [python3, trian.py]", f"2: command: `trian.py` {IN_CODE}; did you mean `train.py`?"),
    ("command: python src/train.py", f"`src/train.py` {IN_CODE}; did you mean `train.py`?"),
    ("command: python empty/train.py", f"`empty/train.py` {IN_CODE}; did you mean `train.py`?"),
    ("command: python ../train.py", f"`../train.py` {IN_CODE}"),
    ("command: python left.py", "is not shipped: it is left out (.gitignore:1); a line `!left.py` in .tpujobignore"),
    ("command: python out/a.py", "is not shipped: it is left out (.gitignore:2); a line `!out/a.py` in .tpujobignore"),
    ("command: ./plain.sh", "2: command: `./plain.sh` is not executable; `chmod +x plain.sh` makes it so"),
    ("command: train.py", "2: command: `train.py` is not in the PATH; write `python train.py`"),
    ("command: [set -e, python3 train.py]", f"2: command: `set -e` {NO_PROGRAM}"),
    ("command: [python3 train.py]\nsetup: make", f"`python3 train.py` {NO_PROGRAM}"),
    ("command: [for i in 1 2; do echo $i; done]", f"`for i in 1 2; do echo $i; done` {NO_PROGRAM}"),
    ("command: [/usr/bin/python3 src/a.py, x]\nsetup: make", f"`/usr/bin/python3 src/a.py` {NO_PROGRAM}"),
    ("command: [A=1 python3, x]\nsetup: make", f"`A=1 python3` {NO_PROGRAM}"),
    ("command: [export A=$B, x]\non: gke", f"`export A=$B` {NO_PROGRAM}"),
    ("command: [for i in 1 2; do ./x $i; done]\nsetup: make", f"`for i in 1 2; do ./x $i; done` {NO_PROGRAM}"),
    ("command: [A=/x python3, x]\nsetup: make", f"`A=/x python3` {NO_PROGRAM}"),
    ("command: [torchrun src/$X, b]\non: gke", f"`torchrun src/$X` {NO_PROGRAM}"),
    ("command: [/opt/my prog/x, b]", f"`/opt/my prog/x` {NO_PROGRAM}"),
    ("command: '\"./a b.sh\"'", f"`./a b.sh` {IN_CODE}; make it there"),
    (f"command: bash {'a' * 300}/x.sh", f"…` {IN_CODE}"),
    ("command: bash runn.sh", f"`runn.sh` {IN_CODE}; did you mean `run.sh`?"),
    ("command: .venv/bin/python train.py", f"`.venv/bin/python` {VENV}; write `python3`, and name its packages in"),
    ("command: bash .venv/bin/tool", f"`.venv/bin/tool` {VENV}; write `tool`"),
    ("command: 'true'\nsetup:\n  - pip install x\n  - pip install -r r.txt", f"5: setup[1]: `r.txt` {IN_CODE}"),
    ("train: {}\nsetup: pip install -r r.txt", f"3: setup: `r.txt` {IN_CODE}"),
])  # fmt: skip
def test_what_a_command_needs_and_no_worker_gets_is_refused_at_its_line(job: Path, text: str, why: str) -> None:
    (found,) = problems(job, f"code: src\n{text}\n")
    assert why in found and found.startswith("job.yaml:")


def test_what_is_shipped_has_no_key_where_there_is_no_job_file(job: Path) -> None:
    with pytest.raises(JobSpecError) as caught:
        check_files(spec := job_spec.from_values({"command": ["python3", "0"], "code": "src"}), survey(spec, job))
    place = f"the directory that is shipped ({job.parent / 'src'})"
    assert caught.value.problems == [
        f"command: `0` is not in {place}, where the commands of the job start; make it there"
    ]


def test_a_job_that_ships_no_code_has_no_files_of_its_own(job: Path) -> None:
    (found,) = problems(job, "command: python train.py\n")
    assert found == (
        "job.yaml:1: command: `train.py` is not on the workers: the job ships no code; write `code: .`, "
        "or the directory that has it"
    )


@pytest.mark.parametrize("text", [
    "command: python train.py", "command: python ./pkg/../train.py", "command: python pkg", "command: ./run.sh",
    "command: python .", "command: bash plain.sh", "command: [my tool, x]", "command: python link/__main__.py",
    "command: python /opt/missing.py", "command: rst2html.py x", "command: .py x", "command: ..sh", "train: {}",
    "command: python missing.py\nsetup: git clone x .", "command: python -m x", "command: python x.py || true",
    "command: train.py\nsetup: pip install .", "command: train.py\nrequirements: [.]", "command: train.py\non: gke",
    "command: PATH=.:$PATH run.sh", "command: run.sh\nenv: {PATH: '.:/bin'}", "command: train.py\non: local",
    "command: python build/lib/x.py\nrequirements: [.]",
    "command: python build/lib/x.py\nsetup: pip install -r train.py",
    "command: bash missing\nsetup: make", "command: bash gettext.sh\nrequirements: [x]", "command: bash pydoc3",
    "command: [/opt/my prog/x, b]\nsetup: make", "command: [/opt/my prog/x, b]\non: gke", "command: '\"a b\" c'",
    "command: [./my prog/x]\nsetup: make",
    "command: [a-tool, b c]",
    "command: python l/x.py\nsetup: pip install x\nenv: {PYTHONUSERBASE: l}",
    "command: python l/x.py\nsetup: pip install x\nenv: {PIP_TARGET: l}",
])  # fmt: skip
def test_what_is_there_or_may_be_there_is_not_refused(job: Path, text: str) -> None:
    assert problems(job, f"code: src\n{text}\n") == []


RUN = RunRecord("r1", "job", "job.yaml", "google", 0.0, "runs/job-r1")


def read(directory: Path, text: str, **extra: str | None) -> Environment:
    spec = job_spec.load(f"command: 'true'\n{text}\n", path="job.yaml")
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


def made_in(directory: Path, spec: job_spec.JobSpec, emulation: Emulation | None = None) -> Environment | None:
    return environment_of(spec, requirements.read(spec, directory / "job.yaml"), emulation)


def scripts_of(directory: Path, text: str, emulation: Emulation | None) -> list[str]:
    spec = job_spec.load(text, path="job.yaml")
    made = phases(
        spec, RUN, shipment=None, env={}, emulation=emulation, environment=made_in(directory, spec, emulation)
    )
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
    spec = job_spec.load(f'train: {{}}\npython: "{other}"\n', path="job.yaml")
    check_python(spec, "google")
    with pytest.raises(JobSpecError, match="emulated workers train with the torch of tpujob's own Python"):
        check_python(spec, "emulated")


CUDA = 'import torch\ndevice = "cuda" if torch.cuda.is_available() else "cpu"\n'
COMMAND = "command: python train.py --lr 1\n"


@pytest.mark.parametrize(
    ("job", "script", "said"),
    [
        (COMMAND + "requirements: [jax>=0.4, numpy]\n", "", ["jax without `jax[tpu]`"]),
        (COMMAND + "requirements: [Flax]\n", "", ["flax without `jax[tpu]`"]),
        (COMMAND + "requirements: ['jax[cuda12]', torch]\n", "", ["jax without `jax[tpu]`"]),
        (COMMAND + "requirements: ['jax[k8s,tpu]==0.6', torch, flax]\n", "", []),
        (COMMAND + "requirements: [jax]\nsetup: pip install libtpu\n", "", []),
        (COMMAND + "requirements: [torch==2.9.0, numpy]\n", "", ["torch without torch_xla or torch_tpu"]),
        (COMMAND + "requirements: [torch==2.4.1]\n", "", ["add `torch_xla[tpu]==2.4.1`, or"]),
        (COMMAND + "requirements: [torch, 'torch-xla[tpu]==2.9.0']\n", "", []),
        (COMMAND + "requirements: [torch, torch_tpu]\n", CUDA, ["train.py:2 names CUDA ("]),
        (COMMAND + "on: local\nrequirements: [jax, torch]\n", CUDA, []),
        (COMMAND, CUDA, ["train.py:2 names CUDA ("]),
        (
            "command: torchrun --nproc_per_node 4 train.py\n",
            "model.cuda()\n",
            ["train.py:1 names CUDA (.cuda()) and no TPU"],
        ),
        ("command: python other.py && python train.py\n", "x.to('cuda:0')\n", ["train.py:1 names CUDA ('cuda:0')"]),
        (COMMAND, CUDA + "output = model(x)\n", ["train.py:2 names CUDA ("]),
        *((COMMAND, f"{CUDA}{names_it}\n", []) for names_it in ("if on_tpu: go()", "import torch_xla", "x = 'TPU'")),
        (COMMAND, "from accelerate import Accelerator\n" + CUDA, []),
        ("command: python /opt/train.py\n", CUDA, []),
        ("train: {}\n", CUDA, []),
    ],
)
def test_a_job_that_would_not_use_the_tpu_is_named_before_the_create(
    tmp_path: Path, job: str, script: str, said: list[str]
) -> None:
    (tmp_path / "train.py").write_text(script)
    found = warnings(
        job_spec.load(f"{job}code: .\n" if "train:" not in job else job, path="job.yaml"), tmp_path / "job.yaml"
    )
    assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True)), found


def test_a_job_finds_the_addresses_of_all_hosts_and_how_the_chips_are_wired(tmp_path: Path) -> None:
    lease = replace(lease_and_request().lease, accelerator_type="v5litepod-16")
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(tmp_path))
    (main,) = phases(
        job_spec.load("command: 'true'\n", path="job.yaml"),
        run,
        shipment=None,
        env={},
        emulation=None,
        environment=None,
    )
    hosts = ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
    seen = main.request(Attempt("r1-1", "r1"), lease, hosts, "10.0.0.2:8476").env_by_worker
    assert [variables["TPUJOB_WORKER"] for variables in seen] == ["0", "1", "2", "3"]
    assert {variables["TPUJOB_HOSTS"] for variables in seen} == {"10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5"}
    assert {(variables["TPUJOB_WORKERS"], variables["TPUJOB_TOPOLOGY"]) for variables in seen} == {("4", "4x4")}


def main_script(directory: Path, text: str, emulation: Emulation | None = None) -> str:
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(directory))
    spec = job_spec.load(text, path="job.yaml")
    *_, main = phases(
        spec, run, shipment=None, env={}, emulation=emulation, environment=made_in(directory, spec, emulation)
    )
    return main.request(Attempt("r1-1", "r1"), lease_and_request().lease, ("10.0.0.2",), "10.0.0.2:8476").script


def test_the_metrics_of_a_tpu_are_sampled_by_the_python_that_the_job_has(tmp_path: Path) -> None:
    script = main_script(tmp_path, "command: python train.py\nrequirements: [jax]\n")
    sampler = script.index('.zip}" tpu_metrics "$TPUJOB_ARTIFACTS"')
    assert script.index("VIRTUAL_ENV/bin") < sampler < script.index("python train.py")
    assert "tpu_metrics" in main_script(tmp_path, "train: {}\n")


def test_they_are_not_sampled_where_the_job_says_so_or_where_the_tpu_is_emulated(tmp_path: Path) -> None:
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\ntpu_metrics: false\n")
    assert "tpu_metrics" not in main_script(tmp_path, "command: 'true'\n", Emulation(2))


def test_the_packages_of_the_job_and_its_host_are_looked_at_beside_it(tmp_path: Path) -> None:
    script = main_script(tmp_path, "command: python train.py\nrequirements: [jax]\n")
    listing = script.index('python3 "${TPUJOB_AGENT:-')
    assert (
        script.index("VIRTUAL_ENV/bin")
        < listing
        < script.index('job_packages "$TPUJOB_ARTIFACTS"')
        < script.index("train.py")
    )
    assert '[ "$TPUJOB_WORKER" != 0 ] || exec python3 "$' in script, "one list for all workers"
    assert '.zip}" host_metrics "$TPUJOB_ARTIFACTS" 5' in script and "!= 0 ] || exec python3 -IS" not in script
    assert script.count("exec python3") == 4, "no shell waits for one of them, which would count as left running"
    emulated = main_script(tmp_path, "command: 'true'\n", Emulation(2))
    assert '[ "$TPUJOB_WORKER" != 0 ] || exec python3 -IS' in emulated, "all emulated workers are on one machine"
    quiet = main_script(tmp_path, "command: 'true'\ntpu_metrics: false\n")
    assert "TPUJOB_ARTIFACTS" not in quiet, "nothing but the job writes there"


def pod_scripts_of(directory: Path, text: str) -> dict[str, str]:
    spec = job_spec.load(f"on: gke\n{text}", path="job.yaml")
    return dict(pod_scripts(spec, code_id=None, environment=made_in(directory, spec)))


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
    setup = pod_scripts_of(directory, "train: {checkpoint: false}\nsetup: echo own\n")["setup"]
    path = f"{python_with(directory, *modules)}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "TPUJOB_WORKER": "0", "HOME": str(directory), "TPUJOB_AGENT": "agent.zip"}
    return ran(["bash", "-c", setup], env=environ)


def test_a_training_uses_the_torch_of_the_image_where_it_has_it(tmp_path: Path) -> None:
    ended = setup_with(tmp_path, "torch", "torch_xla", "numpy")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "the image has torch and torch_xla and numpy: they are used as they are\nown\n"


def test_an_image_without_torch_gets_an_environment_with_it(tmp_path: Path) -> None:
    ended = setup_with(tmp_path, "torch", "numpy")
    assert (ended.returncode, ended.stdout) == (9, "")  # the code of what makes the environment


def test_a_training_with_requirements_has_an_environment_as_on_a_slice(tmp_path: Path) -> None:
    text = "train: {checkpoint: false}\nrequirements: [tqdm]\n"
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
    done = ran(["bash", "-c", script], env=environ)
    assert (done.stdout, done.stderr) == (f"rank={rank}, own torch\n", "")


@pytest.mark.parametrize(("emulation", "asked"), [(Emulation(2), "jax"), (None, "jax[tpu]")])
def test_requirements_for_a_tpu_are_those_without_one_only_where_it_is_emulated(
    tmp_path: Path, emulation: Emulation | None, asked: str
) -> None:
    spec = job_spec.load("command: ls\nrequirements: ['jax[tpu]']\n", path="job.yaml")
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(tmp_path))
    setup, _ = phases(
        spec, run, shipment=None, env={}, emulation=emulation, environment=made_in(tmp_path, spec, emulation)
    )
    script = setup.request(Attempt("r1-1", "r1"), lease_and_request().lease, ("10.0.0.2",), "10.0.0.2:8476").script
    assert f'"requirements": "{asked}\\n"' in script


@pytest.mark.parametrize(("train", "emulated", "shipped"), [
    ("{}", False, False), ("{}", True, True), ("{fallback: sample}", False, True),
    ("{fallback: synthetic}", False, True),
    ("{dataset: fashion-mnist, fallback: synthetic}", True, False),
    ("{entry: 'my:main'}", True, False),
])  # fmt: skip
def test_the_sample_of_mnist_is_shipped_where_the_training_may_fall_back_on_it(
    tmp_path: Path, train: str, emulated: bool, shipped: bool
) -> None:
    found = survey(job_spec.load(f"train: {train}\n", path="job.yaml"), tmp_path / "job.yaml", emulated=emulated)
    names = set(found.entries)
    assert "payload/data/sources.py" in names and "train.json" in names
    samples = {name for name in names if "/mnist_sample/" in name}
    assert len(samples) == (5 if shipped else 0), "four files and their license"


def test_on_a_cluster_the_sample_is_shipped_only_where_it_was_asked_for(tmp_path: Path) -> None:
    def shipped(train: str) -> bool:
        job = f"on: gke\ntrain: {train}\nbucket: gs://my-bucket/x\n"
        found = survey(job_spec.load(job, path="job.yaml"), tmp_path / "job.yaml")
        return found is not None and any("/mnist_sample/" in name for name in found.entries)

    assert shipped("{fallback: sample}")
    assert not shipped("{fallback: synthetic}") and not shipped("{}")
