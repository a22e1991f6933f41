"""What is wrong with the files of a job is said before anything is made, at the line that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.errors import JobSpecError
from orchestrator.places.preparation.checks import check_files
from orchestrator.places.preparation.sources import survey


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
    spec = keys.load(text, path="job.yaml")
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
        check_files(spec := keys.from_values({"command": ["python3", "0"], "code": "src"}), survey(spec, job))
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
