"""Which files a command surely needs; whatever is not certain, it does not need."""

import pytest

from orchestrator.core.jobfile.commands import Needed, needed_by


def needed(*commands: str) -> list[str]:
    return [each.path for _, each in needed_by(commands)]


@pytest.mark.parametrize(("command", "files"), [
    *((text, ["train.py"]) for text in ("python train.py --epochs 3", "train.py", "python \\\n  train.py \\\n  -x\n")),
    ("python3 -u -X dev -W ignore -O src/train.py | tee log", ["src/train.py"]),
    ("PYTHONPATH=. exec /usr/bin/python3.11 -uB train.py && echo done > ok", ["train.py"]),
    ("# a comment\nset -euo pipefail\npython train.py 2>&1 | tee log\nls", ["train.py"]),
    ("bash -ex -o pipefail run.sh", ["run.sh"]),
    ("set +e\nset -eo pipefail\npython a.py | cat\nls", ["a.py"]),
    *(("./run.sh", ["./run.sh"]), ("scripts/run --fast", ["scripts/run"]), ("bash -e bin/run", ["bin/run"])),
    ("pip install -q -r a.txt -cb.txt --requirement=c.txt", ["a.txt", "b.txt", "c.txt"]),
    ("python3 -m pip install -r a.txt && python train.py", ["a.txt"]),
    ("uv pip install --requirements a.txt", ["a.txt"]),
])  # fmt: skip
def test_a_command_needs_its_program_its_script_and_its_requirements(command: str, files: list[str]) -> None:
    assert needed(command) == files


@pytest.mark.parametrize("command", [
    *("python -m train", "python -c 'import train.py'", "python - train.py", "python", "python -uc x train.py"),
    *("bash -c './run.sh'", "bash -s x.sh", "sh -xc x.sh", "python --version x.py", "bash --rcfile x y.sh"),
    *("python /opt/train.py", "/opt/run.sh", "'/opt/my tools/run'", "~/run.sh", "$HOME/run.sh", "python $SCRIPT"),
    *("python `ls *.py`", "python train*.py", "python {a,b}.py", "torchrun train.py", "env -i ./run.sh", "make"),
    *("python train.py || true", "python train.py; true", "python train.py &", "python < train.py", "(./run.sh)"),
    *("if true; then ./run.sh; fi", "! python train.py", "cd src && python train.py", "echo x | python train.py"),
    *("wget x\npython train.py", "python train.py\nexit 0", "set -x\npython a.py\nls", "python -c 'a\nb'", "", "'"),
    *("pip install -r https://host.example/r.txt", "pip install -r /opt/r.txt", "pip download -r x", "pip -r x"),
    *("X=`./run.sh a` python train.py", "set -e\npython a.py && ls\nls", "set -e\npython a.py | cat\nls"),
    *("pip install x # not: -r old.txt", "uv pip install --directory sub -r a.txt", "bash pydoc3", "sh -x prepare"),
    *("set -e\nset +e\npython a.py\nls", "set -eu +e\npython a.py\nls", "set -e\nset +o errexit\npython a.py\nls"),
    *("PATH=.:$PATH run.sh", "PATH+=:. bash run.sh"),
])  # fmt: skip
def test_of_what_is_not_certain_nothing_is_needed(command: str) -> None:
    assert needed(command) == []


def test_a_file_that_an_earlier_command_may_make_is_not_needed_and_pip_makes_none() -> None:
    assert needed("pip install -r a.txt", "pip install x", "python train.py") == ["a.txt", "train.py"]
    assert list(needed_by(["pip install -qU x", "./run.sh"])) == [(1, Needed("./run.sh", is_program=True))]
    assert needed("pip install 'x>=2' --no-cache-dir -cb.txt", "bash run.sh") == ["b.txt"], "it may be a script of x"


@pytest.mark.parametrize("before", [
    *("git clone x .", "pip install x && ./get.sh", "pip install -e x", "pip install -t . x", "true"),
    *("pip install --root ./root x", "PIP_TARGET=./libs pip install x", "pip install .", "pip install ./lib[extra]"),
    *("pip install --user x", "pip install $OPTIONS x", "pip install git+https://host.example/x", "pip install"),
])  # fmt: skip
def test_after_what_may_make_files_nothing_is_needed(before: str) -> None:
    assert needed(before, "python train.py") == []
