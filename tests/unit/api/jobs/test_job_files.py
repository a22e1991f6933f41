"""The job of a command line: from a file or a command, changed by options."""

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.jobs import planning
from orchestrator.api.jobs.job import spec_of
from orchestrator.api.jobs.planning import JobRequest, environment, name_of
from orchestrator.api.session.events import Event, Notice
from orchestrator.api.session.reporter import Reporter
from orchestrator.errors import UserError
from orchestrator.job.job_spec import JobSpec
from tests.unit.job.refused import refused

JOB = """\
name: mine
tpu: {accelerator: v5e-8, zone: us-central1-a, provisioning: on-demand}
command: python train.py
env: {N: 1}
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def read(file: str | None = "job.yaml", **changes: Any) -> JobSpec:
    return spec_of(planning.read(JobRequest(file=Path(file) if file else None, **changes)))


def test_every_option_changes_its_key() -> None:
    spec = read(
        accelerator="v6e-8",
        zone="us-east5,us-central1",
        spot=True,
        name="other",
        max_duration="2h",
        env=("N=2", "M=x"),
        settings=("limits.max_cost=5", "artifacts=[out/*]"),
    )
    (tpu,) = spec.tpu.alternatives
    assert (tpu.accelerator, tpu.zone, tpu.effective_provisioning.spot) == ("v6e-8", ("us-east5", "us-central1"), True)
    assert (spec.name, spec.limits.max_duration_s, spec.limits.max_cost) == ("other", 7200, 5)
    assert (dict(spec.env), spec.artifacts) == ({"N": "2", "M": "x"}, ("out/*",))


def test_without_options_the_file_counts() -> None:
    spec = read()
    assert (spec.name, spec.command, spec.tpu.accelerator) == ("mine", "python train.py", "v5litepod-8")


def test_on_demand_takes_the_place_of_spot() -> None:
    assert not read(settings=("tpu.spot=true",), spot=False).tpu.alternatives[0].effective_provisioning.spot


def test_an_option_of_its_own_counts_more_than_a_setting() -> None:
    assert read(settings=("name=a",), name="b").name == "b"


def test_a_command_takes_the_place_of_the_files() -> None:
    assert read(command=("python", "train.py", "--lr", "3e-4", "a b")).command == "python train.py --lr 3e-4 'a b'"


def test_a_command_cannot_take_the_place_of_a_training(directory: Path) -> None:
    (directory / "job.yaml").write_text("train:\n")
    assert refused(read, command=("ls",)) == [
        "-- ls: a job has either `train:` or `command:`, not both; remove one of them"
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"command": ("echo", "${env:X}")}, "-- echo '${env:X}': command[1]: `${env:…}` is read only in"),
        ({"command": ("",)}, "-- : is empty; write what to run"),
        ({"command": ("", "x")}, "-- '' x: is empty; write what to run"),
        ({"max_duration": "5"}, "--ttl 5: `5` is not a duration: write numbers with units, such as 5h (6m to 7d)"),
        ({"zone": ""}, "--zone : is empty; name a zone or region, or leave it out to take any zone"),
        ({"env": ("1=x",)}, "--env 1: is not a variable name"),
    ],
)
def test_a_mistake_names_the_option(changes: dict[str, Any], problem: str) -> None:
    (found,) = refused(read, **changes)
    assert found.startswith(problem)


def test_a_warning_about_an_option_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    environment(read(env=("PYTHONPATH=x",)), Reporter(told.append))
    assert [each.text for each in told if isinstance(each, Notice)] == [
        "--env PYTHONPATH: changes how programs on the worker start; remove it if the job does not need it"
    ]


def test_a_variable_without_a_value_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abc123def456ghi789")
    reporter = Reporter()
    spec = read(env=("MY_TOKEN",))
    env = environment(spec, reporter)
    assert env["MY_TOKEN"] == "abc123def456ghi789" and "abc123" not in str(spec.env)
    assert "abc123" not in reporter.secrets.hide("the job prints abc123def456ghi789")


# -- without a file ----------------------------------------------------------------------------------------------------


def test_without_a_file_the_code_is_the_working_directory(directory: Path) -> None:
    read_one = planning.read(JobRequest(command=("python", "train.py", "--help"), zone="us-central1"))
    spec, path = spec_of(read_one), read_one.path
    assert (spec.name, spec.command, spec.code) == (
        "train",
        "python train.py --help",
        ".",
    )
    assert path.parent == directory and spec.tpu.zone == ("us-central1",)


def test_without_a_file_the_requirements_of_the_directory_are_installed(directory: Path) -> None:
    (directory / "requirements.txt").write_text("tqdm\n")
    assert read(None, command=("ls",)).requirements == "requirements.txt"
    assert read(None, command=("ls",), settings=("requirements=null",)).requirements is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python -u src/My_Train.py --config x.py", "my-train"),
        ("torchrun --nproc 4 run_all.py", "run-all"),
        ("bash ./go.sh now", "go"),
        ("python -m pkg.train", "pkg-train"),
        ("/usr/bin/nvidia-smi", "nvidia-smi"),
        ("2048", "job"),
        ("bash scripts/train", "train"),
        ("env A=b python x.py", "x"),
        ("LR=1 timeout 10m ./sub/fit --c 1", "fit"),
        ("uv run x.py", "x"),
        ("torchrun --nproc_per_node=1 -m pkg.train --config x.py", "pkg-train"),
        ("accelerate launch --num_processes 1 x.py", "x"),
        ("python -m torch.distributed.run --nproc-per-node 1 x.py", "x"),
        ("cd sub && ./fit", "fit"),
        ("bash setup.sh && python train.py --config x.py", "train"),
        ("python -m pip install -e . && python -m mypkg.train", "mypkg-train"),
        ("wget https://x/y.sh && python train.py | tee log", "train"),
    ],
)
def test_the_job_is_named_after_its_script(command: str, name: str) -> None:
    assert name_of(tuple(command.split())) == name
    assert name_of((command,)) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((("bash", "-c", "cd a && python train.py; ls"), "train"), (("sh", "-xc", "exec ./fit"), "fit")),
        *((("python", "-c", "import x.py"), "python"), (("bash",), "bash"), (('python "my train.py";',), "my-train")),
        *((("python 'open",), "python"), (("(bash s.sh\npython \\\n fit.py)",), "fit")),
        *((("python train.py -c a.py",), "train"), ((), "job")),
    ],
)
def test_so_is_one_whose_text_a_shell_runs(command: tuple[str, ...], name: str) -> None:
    assert name_of(command) == name


def test_one_word_with_spaces_is_a_text_for_bash() -> None:
    assert read(None, command=("python a.py | tee log",)).command == "python a.py | tee log"


def test_nothing_to_run_is_one_line_with_what_to_type() -> None:
    with pytest.raises(UserError) as caught:
        read(None, accelerator="v5e-8")
    assert "name a job file, or a command after `--`" in caught.value.message
    assert "tpujob run -- python train.py" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["train.py", "run.sh"])
def test_a_program_in_place_of_a_job_file_is_answered_with_the_command_that_runs_it(name: str) -> None:
    with pytest.raises(UserError) as caught:
        read(name)
    assert caught.value.message == f"{name} is a program, not a job file"
    assert f"-- {'python' if name.endswith('.py') else 'bash'} {name}`" in (caught.value.hint or "")


def test_a_missing_job_file_is_answered_with_the_one_of_nearly_that_name(directory: Path) -> None:
    (directory / "train.yaml").write_text("command: ls\n")
    for name in ("train.yml", "trian.yaml", "train"):
        with pytest.raises(UserError, match=f"^{name}: there is no such file; did you mean `train.yaml`\\?$"):
            read(name)
    with pytest.raises(UserError, match=r"^x\.yaml: there is no such file$"):
        read("x.yaml")


def test_the_home_directory_is_not_shipped(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory))
    with pytest.raises(UserError, match="would be shipped as the code"):
        read(None, command=("ls",))


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        with pytest.raises(UserError, match="does not exist any more"):
            read(None, command=("ls",))
    finally:
        os.chdir(tmp_path)
