"""Example jobs: every one is found with its files, and copied without ever touching what is there."""

from pathlib import Path

import pytest

import orchestrator
from orchestrator.client.jobs import new_job_file
from orchestrator.errors import ConfigError, UserError
from tests import ROOT


def copied(name: str, target: Path) -> list[str]:
    return [str(path.relative_to(target)) for path in new_job_file.copy(new_job_file.find(name), target)]


def test_every_job_of_the_checkout_is_an_example_with_a_description() -> None:
    found = new_job_file.find_all()
    assert sorted(found) == sorted(path.stem for path in (ROOT / "jobs").glob("*.yaml"))
    assert [each.name for each in found.values() if not each.description] == []


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
