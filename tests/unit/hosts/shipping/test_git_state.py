"""The state of a repository: what git says of it, and nothing that the repository would have run."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from orchestrator.hosts.shipping import git_state
from orchestrator.hosts.shipping.git_state import GitState
from orchestrator.text.redaction import MASK, Redactor
from tests.waiting import until

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


class Programs:
    """Programs that leave a mark where they were run."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.marks = directory, directory / "ran"
        self.marks.mkdir()

    def __call__(self, name: str) -> str:
        path = self.directory / f"run-{name}"
        path.write_text(f"#!/bin/sh\ntouch {self.marks}/{name}\ncat\n")
        path.chmod(0o755)
        return str(path)

    @property
    def ran(self) -> list[str]:
        return [each.name for each in self.marks.iterdir()]


@pytest.fixture
def program(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


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
    pid = tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ >{pid}\nexec /bin/sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))

    class OnceItRuns(threading.Timer):
        def run(self) -> None:
            until(lambda: pid.exists() and pid.read_text().endswith("\n"), "git runs")
            self.function()

    monkeypatch.setattr(threading, "Timer", OnceItRuns)
    assert repository.state() is None
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_nothing_that_the_repository_names_is_run(repository: Repository, program: Programs) -> None:
    repository.commit(
        a_txt="1\n", b_dat="1\n", c_bin="1\n", _gitattributes="*.txt diff=own\n*.dat filter=own\n*.bin filter=two\n"
    )
    for key, name in {
        "diff.external": "external", "diff.own.command": "external", "diff.own.textconv": "textconv",
        "filter.own.clean": "clean", "filter.two.process": "process", "core.fsmonitor": "monitor",
        "core.pager": "pager", "filter.own.required": "", "filter.two.required": "",
    }.items():  # fmt: skip
        repository.git("config", key, program(name) if name else "true")
    hooks = repository.top / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        (hooks / hook).symlink_to(program("hook"))
    repository.write(a_txt="2\n", b_dat="2\n", c_bin="2\n")
    state = found(repository.state())
    assert state.dirty == ("a.txt", "b.dat", "c.bin") and state.patch.count("+2\n") == 3
    assert program.ran == []


def test_a_filter_with_no_name_is_not_run(repository: Repository, program: Programs) -> None:
    repository.commit(a_txt="1\n", _gitattributes="*.txt filter=\n")
    with (repository.top / ".git" / "config").open("a") as config:
        config.write(f'[filter ""]\n clean = {program("clean")}\n process = {program("process")}\n')
    repository.write(a_txt="2\n")
    assert found(repository.state()).dirty == ("a.txt",) and program.ran == []


def test_git_is_not_asked_where_its_configuration_is_too_long_to_be_read(
    repository: Repository, program: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_state, "MOST_BYTES", 5000)
    repository.commit(a_txt="1\n", _gitattributes="*.txt filter=evil\n")
    with (repository.top / ".git" / "config").open("a") as config:
        config.write('[filter "a"]\n' + "x = 1\n" * 1000 + f'[filter "evil"]\n clean = {program("clean")}\n')
    repository.write(a_txt="2\n")
    assert repository.state() is None and program.ran == []


def bare(directory: Path, program: Programs) -> Repository:
    """A bare repository whose work tree is where its own files are, and whose filter leaves a mark."""
    inner = Repository(directory)
    inner.commit(a_txt="1\n", _gitattributes="*.txt filter=evil\n")
    inner.git("config", "filter.evil.clean", program("clean"))
    inner.git("config", "core.fsmonitor", program("monitor"))
    for each in (directory / ".git").iterdir():
        each.rename(directory / each.name)
    (directory / ".git").rmdir()
    inner.write(a_txt="2\n")
    return inner


def test_a_bare_repository_among_the_files_is_not_taken_for_that_of_the_code(
    repository: Repository, program: Programs
) -> None:
    bare(repository.top / "code", program)
    commit = repository.commit(other="1")
    (repository.top / "code" / "a.txt").write_text("3\n")
    state = found(repository.state("code"))
    assert (state.commit, state.dirty, program.ran) == (commit, ("code/a.txt",), [])


@pytest.mark.parametrize("knows", [True, False])
def test_git_is_not_asked_where_it_takes_another_repository_than_the_one_of_the_code(
    repository: Repository, program: Programs, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    if not knows:  # git before 2.38
        monkeypatch.setattr(git_state, "SAFE", tuple(each for each in git_state.SAFE if "bareRepository" not in each))
    bare(repository.top / "bare", program)
    repository.write(plain__a="1\n")
    repository.commit(other="1")
    for name in ("bare", "plain"):
        (repository.top / name / ".git").mkdir()  # empty, so git goes on to look elsewhere
        assert repository.state(name) is None
    assert program.ran == []


def test_what_a_partial_clone_lacks_is_not_fetched_by_a_program_that_it_names(
    repository: Repository, program: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(a_py="1\n")
    older = tmp_path / "older" / "git"  # it does not know the variable
    older.parent.mkdir()
    older.write_text(f'#!/bin/sh\nunset GIT_NO_LAZY_FETCH\nexec {shutil.which("git")} "$@"\n')
    older.chmod(0o755)
    monkeypatch.setenv("PATH", f"{older.parent}:{os.environ['PATH']}")
    blob = repository.git("rev-parse", "HEAD:a.py").strip()
    (repository.top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for key, value in {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{program('ext')}", "protocol.ext.allow": "always",
    }.items():  # fmt: skip
        repository.git("config", key, value)
    repository.write(a_py="2\n")
    state = found(repository.state())
    assert (state.dirty, state.patch, state.cut, program.ran) == (("a.py",), "", True, [])


def test_the_patch_does_not_depend_on_the_configuration(repository: Repository) -> None:
    lines = [f"{number}\n" if number % 4 else "\n" for number in range(40)]
    repository.commit(src__a="".join(lines), src__b="1\n")
    repository.write(src__a="".join(lines).replace("9\n", "nine\n"), src__b="2\n")
    (repository.top / "order").write_text("*b\n")
    before = found(repository.state("src")).patch
    for key, value in {
        "diff.relative": "true", "diff.context": "0", "diff.interHunkContext": "20", "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true", "color.diff": "always", "color.ui": "always", "diff.orderFile": "order",
        "diff.suppressBlankEmpty": "true", "diff.autoRefreshIndex": "false", "diff.colorMoved": "zebra",
        "diff.submodule": "log", "diff.wsErrorHighlight": "all", "diff.external": "false", "diff.renames": "copies",
    }.items():  # fmt: skip
        repository.git("config", key, value)
    assert found(repository.state("src")).patch == before
    assert before.count("@@ ") == 5 and "a/src/a" in before


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


KEYS = {"_npmrc": "//x/:_authToken=", "k_yaml": "client-key-data: ", "sa_json": '{"type": "authorized_user"}\n'}


@pytest.mark.parametrize("is_before", [False, True])
def test_files_that_look_like_secrets_by_what_is_or_was_in_them_are_not_in_the_patch(
    repository: Repository, is_before: bool
) -> None:
    secret, harmless = ({name: text + "s3cr3t\n" for name, text in KEYS.items()}, dict.fromkeys(KEYS, "plain\n"))
    repository.commit(a_json="1\n", **(secret if is_before else harmless))
    repository.write(a_json="2\n", **(harmless if is_before else secret))
    state = found(repository.state())
    assert state.withheld == (".npmrc", "k.yaml", "sa.json") and state.dirty == (
        ".npmrc",
        "a.json",
        "k.yaml",
        "sa.json",
    )
    assert "s3cr3t" not in state.patch and "+2\n" in state.patch


def test_new_and_removed_files_are_looked_into_for_secrets_and_a_link_is_not_followed(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(gone_pem="-----BEGIN PRIVATE KEY-----\n", link_yaml="1\n", plain_txt="1\n")
    for name in ("gone.pem", "link.yaml", "plain.txt"):
        (repository.top / name).unlink()
    (tmp_path / "other").write_text("client-key-data: x")
    (repository.top / "link.yaml").symlink_to(tmp_path / "other")
    repository.write(new_key="-----BEGIN PRIVATE KEY-----\n", new_json="{}\n")
    repository.git("add", "-A")
    state = found(repository.state())
    assert state.withheld == ("gone.pem", "new.key") and "PRIVATE" not in state.patch
    assert all(name in state.patch for name in ("link.yaml", "new.json", "plain.txt"))


def test_what_is_tracked_and_a_tpujobignore_leaves_out_is_not_in_the_patch(repository: Repository) -> None:
    repository.commit(
        code__notes="1\n", code__own__a="1\n", code__gone__a="1\n", code__gone__b="1\n", code__a_log="1\n"
    )
    repository.write(code___tpujobignore="/notes\nown/\ngone/\n!gone/b\n", code___gitignore="*.log\n")
    repository.write(code__notes="2\n", code__own__a="2\n", code__a_log="2\n")
    shutil.rmtree(repository.top / "code" / "gone")
    state = found(repository.state("code"))
    assert state.withheld == ("code/gone/a", "code/notes", "code/own/a")
    assert [line[10:] for line in state.patch.splitlines() if line.startswith("diff")] == [
        " a/code/a.log b/code/a.log", " a/code/gone/b b/code/gone/b",
    ]  # fmt: skip


def test_of_many_changed_files_the_first_ones_are_in_the_patch_and_that_is_said(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_state, "MOST_NAMES", 2)
    repository.commit(a="1\n", b="1\n", _env="1\n", z_env="1\n")
    repository.write(a="2\n", b="2\n", _env="2\n", z_env="2\n")
    state = found(repository.state())
    assert (state.dirty, state.withheld, state.cut) == ((".env", "a"), (".env",), True)
    assert state.patch.count("diff --git") == 1 and "a/a b/a" in state.patch


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
    state = found(repository.state(shipped=("a", "sub/b", "sub/new", "subtle")))
    assert (state.dirty, state.untracked) == ((), ("subtle",))
