"""What is left out, by git's rules: compared with git itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.hosts.shipping.tree import Source, Survey, survey

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def without_settings_of_this_machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)


def git(root: Path, *words: str) -> bytes:
    safe = ("git", "-C", str(root), "-c", "safe.directory=*", "-c", "core.ignoreCase=false", "--literal-pathspecs")
    return subprocess.run([*safe, *words], check=True, capture_output=True).stdout


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def found(root: Path) -> Survey:
    return survey({".": Source(root, gitignore=True)})


def shipped(root: Path) -> set[str]:
    return {path for path, entry in found(root).entries.items() if entry.content is not None}


def rules(root: Path) -> dict[str, str]:
    return {one.path: one.rule for one in found(root).left_out}


# Names and lines that meet often. Every path is a file; what is a directory follows from them.
NAMES = st.sampled_from(["a", "b", "ab", "a.py", "b.txt", "data", "x y", "[a]", "#n", "!n", "a*"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(
    ["a", "b", "*", "**", "*.py", "?", "[ab]", "[!a]", "data", "a*", "\\#n", "\\!n", "x y", "\\[a\\]"]
)
LINES = st.builds(
    lambda no, top, parts, end, tail: no + top + "/".join(parts) + end + tail,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(PIECES, min_size=1, max_size=3),
    st.sampled_from(["", "", "/"]),
    st.sampled_from(["", "", " ", "\r"]),
)
FILES = st.lists(LINES | st.sampled_from(["", "[a", "# a comment", "/", "!", "\\"]), max_size=5).map("\n".join)


@pytest.mark.ci
@needs_git
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.sets(PATHS, min_size=1, max_size=12),
    top=FILES,
    nested=st.dictionaries(PATHS, FILES, max_size=2),
    tracked=st.sets(PATHS, max_size=12),
)
def test_what_git_would_add_or_tracks_is_what_is_shipped(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], top: str, nested: dict[str, str], tracked: set[str]
) -> None:
    directories = {path.rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 1)}
    assume(not directories & paths)
    root = tmp_path_factory.mktemp("tree")
    rule_files = {".gitignore": top} | {
        f"{path}/.gitignore": text for path, text in nested.items() if path in directories
    }
    write(root, dict.fromkeys(paths, "x") | rule_files)
    git(root, "init", "-q", "--template=")
    if tracked & paths:
        git(root, "add", "-f", "--", *(tracked & paths))
    answer = git(root, "ls-files", "-coz", "--exclude-standard")
    try:
        ours = shipped(root)
    except UserError as error:
        assert "nothing of" in error.message
        ours = set()
    assert ours == set(os.fsdecode(answer).split("\0")) - {""}


@needs_git
@pytest.mark.parametrize("how", ["2", "4", "--split-index", "sha256", "worktree", "submodule"])
def test_what_git_tracks_is_shipped_although_a_pattern_matches_it(tmp_path: Path, how: str) -> None:
    files = {".gitignore": "data/\n*.bin\n", "data/a": "", "data/deep/b.bin": "", "node_modules/m.js": "", "é.bin": ""}
    files |= {".gitignore": f"{files['.gitignore']}.env\n", "runs/x/.gitignore": "# of tpujob\n*\n"}
    root = write(tmp_path / "tree", {**files, ".env": "KEY=1", "conf/.env": "KEY=1"})
    git(root, "init", "-q", "--template=", *(["--object-format=sha256"] if how == "sha256" else []))
    git(root, "add", "-f", ".")
    git(root, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x")
    if how in ("2", "4", "--split-index"):
        git(root, "update-index", *(["--index-version", how] if how.isdigit() else [how]))
        files["data/later.bin"] = ""
        git(write(root, files), "add", "-f", "data/later.bin")
    elif how == "worktree":
        git(root, "worktree", "add", "-q", "../other")
        root = write(tmp_path / "other", {"../tree/.git/info/exclude": "mine\n", "mine": ""})
    elif how == "submodule":
        (root / ".git").rename(tmp_path / "modules")
        write(tmp_path, {"tree/.git": "gitdir: ../modules\n", ".gitignore": "tree/\n"})
        git(tmp_path, "init", "-q", "--template=")
        git(tmp_path, "add", "-f", "tree")
        assert shipped(tmp_path) >= {f"tree/{name}" for name in files}
    write(root, dict.fromkeys(["data/new", "data/deep/new", "x.bin", "node_modules/n.js"], ""))
    assert shipped(root) == files.keys()
    assert shipped(root / "data") >= {"a", "deep/b.bin"}
    write(root, {".tpujobignore": "data/\n*.js\n"})
    assert shipped(root) - {".tpujobignore", ".gitignore"} == {"é.bin", "runs/x/.gitignore"}, "the user's own word"


@pytest.mark.parametrize(("setting", "place"), [
    ({}, ".config/git/ignore"),
    ({".gitconfig": "[user]\n\tname = x\n[Core]\n\texcludesfile = ~/mine # all\n"}, "mine"),
    ({".config/git/config": '[core]\nexcludesFile = "~/mine"\n'}, "mine"),
], ids=["default", "gitconfig", "xdg"])  # fmt: skip
def test_the_users_own_ignore_file_counts_in_a_repository_after_all_others(
    tmp_path: Path, setting: dict[str, str], place: str
) -> None:
    write(Path.home(), {**setting, place: "*.swp\nnotes\nkept\n"})
    root = write(tmp_path, {"a.swp": "", "notes": "", "kept": "", "train.py": "", ".git/info/exclude": "!kept\n"})
    assert shipped(root) == {"train.py", "kept"}
    assert rules(root) == {"a.swp": f"~/{place}:1", "notes": f"~/{place}:2", ".git/": "built in"}
    (root / ".git").rename(root / "no-repository")
    assert "notes" in shipped(root)


def test_the_rule_that_leaves_an_entry_out_is_named_with_its_line(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {".gitignore": "# caches\n\n*.ckpt\n", "x/.gitignore": "/raw/\n", "a.ckpt": "12", "x/raw/1": "3", "k": ""},
    )
    assert rules(root) == {"a.ckpt": ".gitignore:3", "x/raw/": "x/.gitignore:1"}


def test_what_the_repository_above_leaves_out_stays_here(tmp_path: Path) -> None:
    write(
        tmp_path,
        {".git/info/exclude": "mine\n", ".gitignore": "*.ckpt\nsrc/data/\n", "src/a.ckpt": "", "src/data/1": ""},
    )
    root = write(tmp_path / "src", {"mine": "", "train.py": "", "deep/b.ckpt": ""})
    assert shipped(root) == {"train.py"}
    assert rules(root)["a.ckpt"] == "../.gitignore:1"


def test_a_directory_that_the_job_names_is_shipped_although_git_leaves_it_out(tmp_path: Path) -> None:
    write(Path.home(), {".config/git/ignore": "*.swp\n"})
    files = {".git/info/exclude": "*\n", ".gitignore": "build/\n", "build/out/train.py": "", "build/out/x.swp": ""}
    write(tmp_path, files)
    assert shipped(tmp_path / "build" / "out") == {"train.py"}


def test_rules_of_another_repository_above_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, {".git/config": "", ".gitignore": "*\n", "mine/.git/config": "", "mine/train.py": ""})
    assert shipped(tmp_path / "mine") == {"train.py"}


def test_the_own_file_has_the_last_word(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            ".gitignore": "*.bin\nconf/\n",
            "deep/.gitignore": "*.py\n",
            ".tpujobignore": "!small.bin\n!*.py\n!conf/\nnotes/\n",
            **dict.fromkeys(["small.bin", "large.bin", "deep/a.py", "conf/x", "notes/1"], "x"),
        },
    )
    kept = shipped(root) - {".gitignore", ".tpujobignore", "deep/.gitignore"}
    assert kept == {"small.bin", "deep/a.py", "conf/x"}


def test_one_file_of_a_directory_that_is_left_out_can_be_shipped(tmp_path: Path) -> None:
    files = dict.fromkeys(["data/labels.csv", "data/raw/1", "data/raw/meta/2", "data/other"], "x")
    root = write(tmp_path, {".gitignore": "data/\n", ".tpujobignore": "!data/labels.csv\n!data/raw/meta/\n", **files})
    assert shipped(root) - {".gitignore", ".tpujobignore"} == {"data/labels.csv", "data/raw/meta/2"}
    assert rules(root) == {"data/other": ".gitignore:1", "data/raw/1": ".gitignore:1"}


@pytest.mark.parametrize("name", [
    *(".git/config", ".hg/x", ".svn/x", "a/__pycache__/a.pyc", ".venv/bin/python", "node_modules/x/i.js", "a/b.pyc"),
    *(".DS_Store", ".ruff_cache/x", ".mypy_cache/x", ".pytest_cache/x"),
])  # fmt: skip
def test_caches_environments_and_version_control_are_always_left_out(tmp_path: Path, name: str) -> None:
    root = write(tmp_path, {"train.py": "", name: "x", ".gitignore": "!*\n!**/\n"})
    assert shipped(root) == {"train.py", ".gitignore"}
    assert set(rules(root).values()) == {"built in"}


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_is_left_out_whatever_its_name(tmp_path: Path, mark: str) -> None:
    root = write(tmp_path, {"train.py": "", f"my-env/{mark}": "", "my-env/lib/x.py": ""})
    assert shipped(root) == {"train.py"}


def test_the_own_file_can_ship_what_is_always_left_out(tmp_path: Path) -> None:
    root = write(tmp_path, {"train.py": "", ".git/HEAD": "x", "node_modules/x": "", ".tpujobignore": "!.git\n"})
    assert shipped(root) == {"train.py", ".git/HEAD", ".tpujobignore"}


@pytest.mark.parametrize(("files", "why"), [
    ({".tpujobignore": b"*.ckpt\n!\n", "a": b""}, "tpujobignore:2: '!' is not a pattern"),
    ({".tpujobignore": "*.csv\n".encode("utf-16")}, "tpujobignore is UTF-16; save it as UTF-8"),
    ({".gitignore": b"*\n", "train.py": b"x"}, r"everything in it is left out by \.gitignore:1"),
    ({".git/index": b"DIRC\0\0\0\5xxxx", "a": b""}, "what git tracks is not known"),
])  # fmt: skip
def test_what_names_nothing_to_ship_is_refused_with_its_place(
    tmp_path: Path, files: dict[str, bytes], why: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=why):
        shipped(tmp_path)


def test_data_is_shipped_whatever_git_leaves_out_of_it(tmp_path: Path) -> None:
    root = write(tmp_path, {".gitignore": "*\n", ".tpujobignore": "raw/\n", "a.npy": "", "raw/1": ""})
    assert set(survey({"data": Source(root)}).entries) >= {"data/a.npy", "data/.gitignore"}
    assert "data/raw/1" not in survey({"data": Source(root)}).entries
