"""The state of a repository: what git says of it, and nothing that the repository would have run."""

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.hosts.shipping import git_state
from orchestrator.hosts.shipping.git_state import GitState
from orchestrator.text.redaction import MASK, Redactor

SECRET = "correct-horse-battery"


class Repository:
    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir(parents=True)
        self.git("init", "-q", "-b", "trunk")

    def git(self, *words: str) -> str:
        who = {
            "GIT_AUTHOR_NAME": "n",
            "GIT_AUTHOR_EMAIL": "n@x",
            "GIT_COMMITTER_NAME": "n",
            "GIT_COMMITTER_EMAIL": "n@x",
        }
        environ = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        return subprocess.run(
            ["git", *words], cwd=self.top, env=environ, check=True, capture_output=True, text=True
        ).stdout

    def commit(self, **files: str) -> str:
        self.write(**files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD").strip()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.top / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def state(self, below: str = ".", shipped: tuple[str, ...] = (), secrets: tuple[str, ...] = ()) -> GitState | None:
        return git_state.read(self.top / below, shipped, Redactor(secrets).hide_bytes)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "code")


def found(state: GitState | None) -> GitState:
    assert state is not None
    return state


def test_of_clean_files_the_commit_and_the_branch_are_said(repository: Repository) -> None:
    commit = repository.commit(train_py="1\n")
    assert repository.state(shipped=("train.py",)) == GitState(commit, "trunk")


def test_changed_files_are_named_and_the_patch_has_what_changed(repository: Repository) -> None:
    repository.commit(train_py="1\n", other_py="1\n", gone_py="1\n")
    repository.write(train_py="2\n", new_py="3\n")
    (repository.top / "gone.py").unlink()
    state = found(repository.state(shipped=("new.py", "other.py", "train.py")))
    assert (state.dirty, state.untracked, state.cut) == (("gone.py", "train.py"), ("new.py",), False)
    assert "-1\n+2\n" in state.patch and "a/train.py" in state.patch and "gone.py" in state.patch
    repository.git("checkout", "-q", "--", ".")
    subprocess.run(["git", "apply"], cwd=repository.top, input=state.patch, text=True, check=True)
    assert (repository.top / "train.py").read_text() == "2\n" and not (repository.top / "gone.py").exists()


def test_only_what_is_below_the_directory_of_the_code_counts(repository: Repository) -> None:
    repository.commit(src__train_py="1\n", doc__a_md="1\n")
    repository.write(src__train_py="2\n", doc__a_md="2\n")
    state = found(repository.state("src", shipped=("train.py", "new.py")))
    assert (state.dirty, state.untracked) == (("src/train.py",), ("src/new.py",)) and "doc" not in state.patch


def test_a_detached_head_has_no_branch_and_an_empty_repository_no_commit(repository: Repository) -> None:
    assert found(repository.state()).commit == ""
    repository.git("checkout", "-q", repository.commit(a="1"))
    assert found(repository.state()).branch == ""


def test_without_a_repository_or_git_nothing_is_said(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state.read(tmp_path, (), Redactor().hide_bytes) is None
    repository.commit(a="1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository.state() is None


def test_a_git_that_does_not_answer_in_time_is_ended_and_nothing_is_said(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(a="1")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec /bin/sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(git_state, "WITHIN_S", 0.5)
    assert repository.state() is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_nothing_that_the_repository_names_is_run(repository: Repository, tmp_path: Path) -> None:
    marks = tmp_path / "ran"
    marks.mkdir()
    for name in ("external", "textconv", "clean", "process", "monitor", "hook", "pager"):
        program = tmp_path / f"run-{name}"
        program.write_text(f"#!/bin/sh\ntouch {marks}/{name}\ncat\n")
        program.chmod(0o755)
    repository.commit(
        a_txt="1\n", b_dat="1\n", c_bin="1\n", _gitattributes="*.txt diff=own\n*.dat filter=own\n*.bin filter=two\n"
    )
    for key, name in {
        "diff.external": "external", "diff.own.command": "external", "diff.own.textconv": "textconv",
        "filter.own.clean": "clean", "filter.two.process": "process", "core.fsmonitor": "monitor",
        "core.pager": "pager", "filter.own.required": "", "filter.two.required": "",
    }.items():  # fmt: skip
        repository.git("config", key, str(tmp_path / f"run-{name}") if name else "true")
    hooks = repository.top / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        (hooks / hook).symlink_to(tmp_path / "run-hook")
    repository.write(a_txt="2\n", b_dat="2\n", c_bin="2\n")
    state = found(repository.state())
    assert state.dirty == ("a.txt", "b.dat", "c.bin") and state.patch.count("+2\n") == 3
    assert list(marks.iterdir()) == []


def test_the_variables_of_git_of_the_caller_point_it_to_no_other_repository(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit(a="1")
    other = Repository(tmp_path / "other")
    other.commit(b="2")
    monkeypatch.setenv("GIT_DIR", str(other.top / ".git"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    assert found(repository.state()).commit == commit


def test_a_big_patch_is_cut_at_a_line_and_that_is_said(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_state, "MOST_PATCH_BYTES", 2000)
    monkeypatch.setattr(git_state, "MARGIN_BYTES", 500)
    repository.commit(a="1\n")
    repository.write(a="".join(f"line {number}\n" for number in range(1000)))
    state = found(repository.state())
    assert state.cut and len(state.patch) <= 2000 and state.patch.endswith("\n")


def test_no_secret_is_in_the_patch(repository: Repository) -> None:
    repository.commit(a_py="1\n", _env="A=1\n")
    token = "ghp_" + "a1" * 18
    repository.write(a_py=f"password = {SECRET!r}\ntoken = {token!r}\n", _env="A=other-value\n")
    state = found(repository.state(secrets=(SECRET,)))
    assert SECRET not in state.patch and token not in state.patch and state.patch.count(MASK) == 2
    assert "other-value" not in state.patch and state.withheld == (".env",) == state.dirty[:1]


def test_names_that_are_not_utf_8_can_be_written_down(repository: Repository) -> None:
    repository.commit(a="1")
    path = os.fsencode(repository.top) + b"/\xff name\n"
    with open(path, "w") as file:  # noqa: PTH123 - no Path has such a name
        file.write("1")
    repository.git("add", "-A")
    (name,) = found(repository.state()).dirty
    assert name.encode() == b"? name\n"


def test_a_submodule_is_not_looked_into(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit(b="1")
    repository.commit(a="1")
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other.top), "sub")
    repository.git("commit", "-q", "-m", "x")
    (repository.top / "sub" / "b").write_text("2")
    assert found(repository.state()).dirty == ()
