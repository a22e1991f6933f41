"""Job files that people begin with: what `tpujob init` writes for a script, and the examples that are copied."""

import os
import re
import resource
import signal
from pathlib import Path

import pytest

import orchestrator
from orchestrator.api.jobs import new_job_file
from orchestrator.errors import ConfigError, UserError
from orchestrator.job import job_spec
from orchestrator.job.job_spec import JobSpec
from tests import ROOT
from tests.forked import Child

MAIN = 'def main():\n    pass\n\nif __name__ == "__main__":\n    main()\n'


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str = MAIN) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def written(script: str | None = None) -> tuple[str, JobSpec]:
    made = new_job_file.write(Path(script) if script else None)
    return made.path.name, job_spec.load(made.path.read_bytes(), path=str(made.path))


def test_it_is_a_job_that_runs_the_script_of_this_directory() -> None:
    put("train.py")
    name, spec = written()
    assert name == "train.yaml"
    assert (spec.name, spec.command, spec.code, spec.setup) == ("train", "python train.py", ".", None)
    assert spec.tpu.accelerator == "v5litepod-8" and spec.limits.max_duration_s == 8 * 3600
    assert spec.warnings() == []


def test_every_key_in_its_comments_is_a_key_of_the_file() -> None:
    put("train.py")
    text = new_job_file.write().path.read_text()
    commented = re.sub(r"^( *)# ( *[a-zA-Z_]+:)", r"\1\2", text.partition("\ncommand:")[2], flags=re.MULTILINE)
    spec = job_spec.load("command:" + commented, path="train.yaml")
    assert spec.requirements == ("numpy", "tqdm")
    assert (spec.tpu.zone, spec.tpu.spot, spec.keep_on_failure) == (("us-central1",), True, 1800)
    assert dict(spec.env) == {"WANDB_API_KEY": "${env:WANDB_API_KEY}"}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"train.py": MAIN, "model.py": "class Model: ...\n"}, "train"),
        ({"run.py": "import argparse\n", "util.py": ""}, "run"),
        ({"only.py": "print(1)\n"}, "only"),
        ({"train.py": MAIN, "setup.py": MAIN, "test_train.py": MAIN, "conftest.py": ""}, "train"),
    ],
)
def test_the_script_is_the_only_one_that_is_to_be_run(files: dict[str, str], found: str) -> None:
    for name, text in files.items():
        put(name, text)
    assert written()[1].name == found


def test_of_several_scripts_it_asks_for_one() -> None:
    put("eval.py")
    put("train.py")
    with pytest.raises(UserError, match=r"several scripts could be meant: eval\.py, train\.py"):
        new_job_file.write()
    assert written("train.py")[0] == "train.yaml"


def test_without_a_script_it_says_what_to_type() -> None:
    with pytest.raises(UserError, match="no Python script in this directory") as caught:
        new_job_file.write()
    assert "tpujob init src/train.py" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("src/train.py", "python src/train.py"),
        ("go.sh", "bash go.sh"),
        ("my train.py", "python 'my train.py'"),
        ("a: b #c.py", "python 'a: b #c.py'"),
    ],
)
def test_a_script_may_have_any_name_and_be_in_any_directory_below(script: str, command: str) -> None:
    put(script)
    name, spec = written(script)
    assert spec.command == command and name == f"{Path(script).stem}.yaml"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("../train.py", "is not below the working directory"),
        ("none.py", "there is no such file"),
        (f"{'a' * 300}.py", "there is no such file"),
        ("data.csv", "is neither a Python nor a shell script"),
    ],
)
def test_a_script_that_cannot_be_one_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    inside = directory / "inside"
    inside.mkdir()
    put("train.py")
    put("inside/data.csv", "1,2")
    monkeypatch.chdir(inside)
    with pytest.raises(UserError, match=message):
        new_job_file.write(Path(script))
    assert [path.name for path in inside.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("files", "needs"),
    [
        ({"requirements.txt": "tqdm\n", "pyproject.toml": '[project]\ndependencies = ["tqdm"]\n'}, "requirements.txt"),
        ({"pyproject.toml": '\ufeff[project]\ndependencies = ["tqdm"]\n'}, "pyproject.toml"),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 120\n"}, None),
        ({"pyproject.toml": "not toml"}, None),
        ({}, None),
    ],
)
def test_what_the_script_needs_is_installed(files: dict[str, str], needs: str | None) -> None:
    put("train.py")
    for name, text in files.items():
        put(name, text)
    assert written()[1].requirements == needs


def test_it_never_overwrites_a_file() -> None:
    put("train.py")
    put("train.yaml", "mine")
    with pytest.raises(UserError, match=r"train\.yaml exists; nothing was written"):
        new_job_file.write()
    assert Path("train.yaml").read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    put("train.py")

    def full(*args: object, **settings: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ConfigError, match=r"train\.yaml cannot be written: No space left on device"):
        new_job_file.write(None)


def test_it_says_whether_a_file_names_what_is_not_shipped() -> None:
    put("train.py")
    assert not new_job_file.write().ignores
    put("eval.py")
    put(".gitignore", "runs/\n")
    assert new_job_file.write(Path("eval.py")).ignores


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["a\nsetup: [x]\n#.py", os.fsdecode(b"caf\xe9.py")])
def test_a_script_whose_name_would_be_more_than_a_name_in_the_file_is_refused(name: str, named: bool) -> None:
    put(name)
    with pytest.raises(UserError, match="a name with control characters"):
        new_job_file.write(Path(name) if named else None)
    assert not list(Path().glob("*.yaml"))


def test_a_file_that_cannot_be_written_to_its_end_is_not_there_afterwards() -> None:
    put("train.py")
    with Child(_writes_to_a_full_disk) as child:
        assert child.said == "train.yaml cannot be written: File too large"
    assert not list(Path().glob("*.yaml"))
    assert written()[0] == "train.yaml"


def _writes_to_a_full_disk() -> str:
    """A limit on the size of files stands for the end of the disk; this process would not get rid of it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        new_job_file.write()
    except ConfigError as error:
        return error.message
    return "written"


def copied(name: str, target: Path) -> list[str]:
    return [str(path.relative_to(target)) for path in new_job_file.copy(new_job_file.find(name), target)]


def test_every_job_of_the_checkout_is_an_example_with_a_description() -> None:
    found = new_job_file.find_all()
    assert sorted(found) == sorted(path.stem for path in (ROOT / "jobs").glob("*.yaml"))
    assert [each.name for each in found.values() if not each.description] == []


def test_every_example_with_jax_asks_for_a_python_that_the_newest_jax_has() -> None:
    texts = [path.read_text() for path in (ROOT / "jobs").glob("*.yaml")]
    with_jax = [text for text in texts if "- jax" in text]
    assert len(with_jax) == 2
    assert all('python: "3.12"' in text or "image: python:3.12" in text for text in with_jax)


@pytest.mark.parametrize(("name", "files"), [
    ("mnist", ["mnist.yaml"]), ("jax", ["jax.yaml", "jax/train_jax.py"]),
    ("mnist-compare", ["mnist-compare.yaml"]),
    ("spot-anywhere", ["spot-anywhere.yaml", "rehearsals/spot-anywhere.yaml"]),
])  # fmt: skip
def test_an_example_comes_with_the_files_that_it_names(tmp_path: Path, name: str, files: list[str]) -> None:
    assert copied(name, tmp_path / "new") == files
    assert all((tmp_path / "new" / file).is_file() for file in files)


def test_a_copied_job_is_the_job_without_the_line_for_editors_of_the_checkout(tmp_path: Path) -> None:
    copied("mnist", tmp_path)
    original = (ROOT / "jobs" / "mnist.yaml").read_text().splitlines(keepends=True)
    assert (tmp_path / "mnist.yaml").read_text() == "".join(original[1:])


def test_a_file_that_exists_stops_the_copy_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "train_jax.py").write_text("mine")
    with pytest.raises(UserError, match=r"train_jax\.py exists; nothing was copied") as refused:
        copied("jax", tmp_path)
    assert "tpujob init --example jax DIR" in str(refused.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["jax"]
    assert (tmp_path / "jax" / "train_jax.py").read_text() == "mine"


def test_an_example_is_not_copied_twice_but_uses_a_file_that_is_there_already(tmp_path: Path) -> None:
    copied("jax", tmp_path)
    (tmp_path / "jax.yaml").unlink()
    assert copied("jax", tmp_path) == ["jax.yaml", "jax/train_jax.py"]
    with pytest.raises(UserError, match="exists"):
        copied("jax", tmp_path)


def test_an_unknown_example_names_those_there_are() -> None:
    with pytest.raises(UserError, match="'nope' is not an example") as refused:
        new_job_file.find("nope")
    assert "hello, jax" in str(refused.value.hint)


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "a" * 300):
        with pytest.raises(ConfigError, match="cannot be written"):
            copied("mnist", tmp_path / name)


def test_an_installation_without_examples_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator, "ROOT", tmp_path)
    with pytest.raises(ConfigError, match="missing from this installation"):
        new_job_file.find_all()
    (tmp_path / "orchestrator" / "examples").mkdir(parents=True)
    assert new_job_file.find_all() == {}
