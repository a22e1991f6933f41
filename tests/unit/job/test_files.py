"""Which files a job surely needs, by its commands and its requirements files."""

from pathlib import Path, PurePath, PurePosixPath

import pytest

from orchestrator.job.source.commands import Needed, needed_by
from orchestrator.job.source.lock_file import Lock, foreign_wheels
from orchestrator.job.source.requirement_lines import MAX_FILES, Reader, Refused, Requirements


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


HERE = Path("/jobs/job")


def reader(files: dict[str, str]) -> Reader:
    def read(path: PurePath) -> str:
        name = str(PurePosixPath(path)).removeprefix("/jobs/")
        parts: list[str] = []
        for part in name.split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        if (found := "/".join(parts)) not in files:
            raise ValueError(f"{found} cannot be read: no such file")
        return files[found]

    def in_code(path: PurePath) -> str:
        if ".." in path.parts:
            raise ValueError("lies outside")
        return path.relative_to(HERE).as_posix()

    return Reader(read, in_code)


def read(text: str, **files: str) -> Requirements:
    names = {name.replace("__", "/"): content for name, content in files.items()}
    return reader({"job/requirements.txt": text, **names}).file(HERE / "requirements.txt", "requirements.txt")


def refused(text: str, **files: str) -> str:
    with pytest.raises(Refused) as caught:
        read(text, **files)
    return str(caught.value)


def test_comments_and_empty_lines_are_left_out_and_continued_lines_joined() -> None:
    text = "# what we need\n\nnumpy>=1.26  # arrays\ntorch==2.9.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert read(text).lines == ["numpy>=1.26", "torch==2.9.0 --hash=sha256:aa --hash=sha256:bb"]


def test_files_that_are_named_are_read_into_it_each_relative_to_the_file_that_names_it() -> None:
    found = read(
        "-r base/all.txt\n-c limits.txt\nmine\n",
        **{
            "job__base__all.txt": "--requirement=../more.txt\nbase\n",
            "job__more.txt": "more\n",
            "job__limits.txt": "numpy<2\n",
        },
    )
    assert (found.lines, found.constraints) == (["more", "base", "mine"], ["numpy<2"])


@pytest.mark.parametrize(("tag", "fits"), [
    ("py3-none-any", True), ("py2.py3-none-any", True), ("cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
    ("cp38-abi3-linux_x86_64", True), ("cp312-abi3-linux_x86_64", False), ("cp39-cp39-linux_x86_64", False),
    ("cp310-cp310-macosx_11_0_arm64", False), ("cp310-cp310-musllinux_1_2_x86_64", False), ("py2-none-any", False),
    ("py3-none-manylinux_2_17_aarch64", False),
])  # fmt: skip
def test_a_wheel_by_its_path_or_url_fits_linux_and_the_python_or_does_not(tag: str, fits: bool) -> None:
    for line in (
        f"./d/x-1.0-{tag}.whl",
        f"x @ https://h/x-1.0-{tag}.whl#sha256=0",
        f"x-1.0-1-{tag}.whl ; os_name == 'x'",
    ):
        found = foreign_wheels([line], Lock((line,)), "3.10.4")
        assert found == ([] if fits else [(line, tag)])
        assert foreign_wheels([line], Lock(), "3.10") == []


def test_files_that_name_each_other_are_refused() -> None:
    assert refused("-r requirements.txt\n").endswith(
        ": requirements.txt leads back to this file; remove one of the two lines"
    )
    chain = {f"job__{number}.txt": f"-r {number + 1}.txt\n" for number in range(MAX_FILES + 1)}
    assert f"is one of more than {MAX_FILES} files" in refused("-r 0.txt\n", **chain)


@pytest.mark.parametrize(("line", "made"), [
    *((f"{at}wheels/mine-1.0-py3-none-any.whl", "./wheels/mine-1.0-py3-none-any.whl") for at in ("./", "")),
    *(("mine-1.0.tar.gz", "./mine-1.0.tar.gz"), (".", "./."), ("-e .", "./."), ("--editable=./lib", "./lib")),
    (".[extra] ; python_version > '3'", "./.[extra] ; python_version > '3'"),
    ("-f wheels", "--find-links ./wheels"),
])  # fmt: skip
def test_a_local_path_becomes_one_from_the_working_directory_of_the_job(line: str, made: str) -> None:
    found = read(f"{line}\n")
    assert found.lines == [made] and found.uses_code


@pytest.mark.parametrize("line", [
    *("numpy", "torch[extra]>=2 ; sys_platform == 'linux'", "mine @ https://host.example/mine-1.0-py3-none-any.whl"),
    *("git+https://host.example/a/b.git@main", "https://host.example/mine-1.0-py3-none-any.whl"),
    *("/opt/wheels/mine-1.0-py3-none-any.whl", "--find-links /opt/w", "-i https://index.example/simple"),
    *("-f https://host.example/wheels", "-r https://host.example/requirements.txt"),
    "--extra-index-url https://${USER}:${TOKEN}@index.example/simple",
])  # fmt: skip
def test_what_a_worker_can_reach_by_itself_stays_as_it_is_written(line: str) -> None:
    found = read(f"{line}\n")
    assert found.lines == [line] and not found.uses_code and not found.needs_pip


@pytest.mark.parametrize("line", ["--pre", "--prefer-binary", "--trusted-host index.example"])
def test_an_option_that_uv_ignores_asks_for_pip(line: str) -> None:
    assert read(f"{line}\nnumpy\n").needs_pip


def test_a_mistake_names_the_file_and_the_line_where_it_is_written() -> None:
    assert refused("numpy\n../other\n") == "requirements.txt:2: lies outside"
    assert (
        refused("-r missing.txt\n") == "requirements.txt:1: missing.txt: job/missing.txt cannot be read: no such file"
    )
    assert refused("-r base/all.txt\n", **{"job__base__all.txt": "a\n\n../../x\n"}) == "base/all.txt:3: lies outside"


@pytest.mark.parametrize(
    "secret", ["-i https://me:hunter2@index.example/simple", "x @ https://ghp_" + "a" * 36 + "@h.example/x"]
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(secret: str) -> None:
    assert refused(f"{secret}\n") == (
        "requirements.txt:1: holds a secret; write ${NAME} in its place, and set NAME in the job's `env:`"
    )


def test_a_list_of_packages_is_taken_as_it_is_and_options_are_refused() -> None:
    assert reader({}).packages(["numpy>=1.26", "./lib"], HERE).lines == ["numpy>=1.26", "./lib"]
    with pytest.raises(Refused, match=r"`-r more\.txt` is an option, and those belong in a requirements file"):
        reader({}).packages(["-r more.txt"], HERE)


def pyproject(text: str) -> list[str]:
    return reader({"job/pyproject.toml": text}).pyproject(HERE / "pyproject.toml", "pyproject.toml").lines


def test_a_pyproject_has_the_dependencies_of_its_project() -> None:
    assert pyproject("[project]\nname = 'x'\ndependencies = ['numpy>=1.26', 'torch\\t>=2']\n") == [
        "numpy>=1.26",
        "torch\\t>=2",
    ]
    assert pyproject("[project]\nname = 'x'\n") == []


@pytest.mark.parametrize(("text", "why"), [
    ("[tool.poetry.dependencies]\nnumpy = '*'\n", "has no [project] section"),
    ("[project]\ndynamic = ['dependencies']\n", "its dependencies are dynamic"),
    ("[project]\ndependencies = 'numpy'\n", "is not a list of texts"),
    ("[project]\ndependencies = ['My_Lib>1']\n[tool.uv.sources]\nmy-lib = {path = '../lib'}\n",
     "My_Lib comes from [tool.uv.sources], which is not read"),
    ("[project\n", "pyproject.toml: Expected"),
])  # fmt: skip
def test_a_pyproject_that_keeps_its_dependencies_elsewhere_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        pyproject(text)
    assert str(caught.value).startswith("pyproject.toml: ") and why in str(caught.value)
