"""Requirements files as a worker can use them: what they name is read into them, and paths lead into the code."""

from pathlib import Path, PurePosixPath

import pytest

from orchestrator.core.jobfile.requirement_lines import MAX_FILES, Reader, Refused, Requirements

HERE = Path("/jobs/job")


def reader(files: dict[str, str]) -> Reader:
    def read(path: Path) -> str:
        name = str(PurePosixPath(path)).removeprefix("/jobs/")
        parts: list[str] = []
        for part in name.split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        if (found := "/".join(parts)) not in files:
            raise ValueError(f"{found} cannot be read: no such file")
        return files[found]

    def in_code(path: Path) -> str:
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


def test_files_that_name_each_other_are_refused() -> None:
    assert f"is one of more than {MAX_FILES} files" in refused("-r requirements.txt\n")


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
    assert refused("-r missing.txt\n") == "missing.txt: job/missing.txt cannot be read: no such file"
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
