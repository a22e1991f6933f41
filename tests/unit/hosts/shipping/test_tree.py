"""What a job ships holds no surprise: what is refused, and in which words."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.errors import UserError
from orchestrator.hosts.shipping import git_files
from orchestrator.hosts.shipping.ignore import Rules, mark_run
from orchestrator.hosts.shipping.shipment import make_shipment
from orchestrator.hosts.shipping.tree import Source, Survey, check_content, left_out_text, survey


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("print(1)\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    return root


def of(root: Path, **options: Any) -> Survey:
    return survey({".": Source(root, gitignore=True)}, **options)


def refused(sources: Mapping[str, Path | bytes], **options: int) -> str:
    with pytest.raises(UserError) as caught:
        survey({name: Source(content, gitignore=True) for name, content in sources.items()}, **options)  # type: ignore[arg-type]
    return caught.value.message


def test_a_link_within_the_tree_travels_as_a_relative_link(tree: Path) -> None:
    (tree / "relative").symlink_to("pkg/a.py")
    (tree / "pkg" / "absolute").symlink_to(tree / "run.sh")
    (tree / "here").symlink_to(".")
    (tree / "pkg" / "top").symlink_to(tree)
    found = survey({"code": Source(tree)})
    links = {path: entry.content for path, entry in found.entries.items() if isinstance(entry.content, str)}
    assert links == {
        "code/relative": "pkg/a.py",
        "code/pkg/absolute": "../run.sh",
        "code/here": ".",
        "code/pkg/top": "..",
    }


@pytest.fixture
def repository(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which the tree is the job's code, beside shared data."""
    monkeypatch.setenv("HOME", str(tree.parent.parent / "home"))
    root = tree.parent
    for path in (".git/config", "shared/big.npy", "shared/deep/x", "cache/y", "tool.py", "more/x", "most/x"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / ".gitignore").write_text("cache/\n")
    return root


def test_a_link_to_what_is_in_the_same_repository_travels_as_its_contents(tree: Path, repository: Path) -> None:
    (tree / "tool.py").symlink_to("../tool.py")
    (tree / "data").symlink_to("../shared")
    (tree / "pkg" / "again").symlink_to(repository / "shared" / "deep")
    for name in ("more", "most"):
        (tree / name).symlink_to(f"../{name}")
    (repository / "shared" / "up").symlink_to("../shared")
    (repository / "shared" / "hop").symlink_to("../tree/pkg/a.py")
    (tree / ".tpujobignore").write_text("data/big.npy\n")
    with patch.object(git_files, "_entries", wraps=git_files._entries) as reads:
        found = of(tree).entries
    assert {name: entry.content for name, entry in found.items() if not isinstance(entry.content, Path)} == {
        "data/up": ".",
        "data/hop": "../pkg/a.py",
        "pkg/again": "../data/deep",
    }
    assert reads.call_count == 1, "the index of git is read once"
    assert found["tool.py"].content == repository / "tool.py"
    assert found["data/deep/x"].content == repository / "shared" / "deep" / "x"
    assert "data/big.npy" not in found, "its place is what a .tpujobignore names"


def test_a_link_to_what_holds_the_tree_ends(tree: Path, repository: Path) -> None:
    (tree / "top").symlink_to("..")
    found = of(tree).entries
    assert "top/shared/big.npy" in found
    assert found["top/tree"].content == "..", "the tree itself is not shipped twice"
    assert "top/cache/y" not in found


@pytest.mark.parametrize(("target", "why"), [
    ("/etc/passwd", "a link to /etc/passwd, out of the repository"),
    ("../../gone", "a link to {repository.parent}/gone, which is not there"),
    ("../gone", "a link to ../gone, which is not there"),
    ("x", "a link that leads to itself"),
    ("../cache", "a link to ../cache, left out by ../.gitignore:1"),
    ("/", "a link to /, out of the repository"),
])  # fmt: skip
def test_a_link_that_cannot_travel_is_left_out_with_a_note(tree: Path, repository: Path, target: str, why: str) -> None:
    (tree / "x").symlink_to(target)
    found = of(tree)
    rule = why.format(repository=repository)
    assert [(one.path, one.rule) for one in found.left_out] == [("x", rule)]
    assert left_out_text(found.left_out) == f"x left out: {rule}"
    (tree / ".tpujobignore").write_text("!x\n")
    assert ("x/y" in of(tree).entries) == (target == "../cache"), "the user names it"


def test_a_link_hides_no_secret_and_leads_nowhere_in_a_home_that_is_a_repository(
    tree: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "elsewhere").mkdir()
    (repository / "elsewhere" / ".env").write_text("KEY=1")
    (tree / "settings").symlink_to("../elsewhere/.env")
    assert "elsewhere/.env looks like a secret (an environment file)" in refused({".": tree})
    monkeypatch.setenv("HOME", str(repository))
    assert [one.rule for one in of(tree).left_out] == [f"a link to {repository}/elsewhere/.env, out of the directory"]


def test_all_that_is_refused_is_said_at_once_each_with_its_fix(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tree / "pipe")
    (tree / ".env").write_text("KEY=1")
    (tree / "key.pem").write_text(KEY)
    with (tree / "big").open("wb") as file:
        file.truncate(2 << 30)
    lines = refused({".": tree, "data": tree / "none"}).splitlines()
    whats: tuple[str, ...] = (".env looks like a secret", "pipe is neither a file nor a directory")
    whats += ("none does not exist", "the job's code and data are", "key.pem looks like a secret")
    assert len(lines) == len(whats)
    assert all(what in line and "; " in line for what, line in zip(whats, lines, strict=True)), "each with what to do"
    monkeypatch.setattr("orchestrator.hosts.shipping.tree.MAX_REPORTED", 2)
    assert refused({".": tree}).splitlines()[2:] == ["and 2 more"]


def test_an_empty_directory_is_shipped_and_one_of_which_nothing_is(tree: Path) -> None:
    (tree / "out").mkdir()
    (tree / "cache").mkdir()
    (tree / "cache" / "x.pyc").write_text("x")
    empty = [path for path, entry in of(tree).entries.items() if entry.content is None]
    assert empty == ["cache", "out"]


def test_a_directory_that_is_empty_anyway_is_not_blamed_on_what_another_source_leaves_out(
    tree: Path, tmp_path: Path
) -> None:
    (tree / ".venv").mkdir()
    (tree / ".venv" / "x").write_text("1")
    (tmp_path / "data").mkdir()
    assert "pkg/a.py" in survey({".": Source(tree), "data": Source(tmp_path / "data")}).entries


@pytest.mark.parametrize("gone", ["pkg", "run.sh"])
def test_what_vanishes_while_it_is_looked_at_is_not_shipped(
    tree: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Rules.verdict

    def vanishing(rules: Rules, path: str, **how: Any) -> Any:
        if path.rstrip("/") == gone:
            (tree / gone).rename(tree.parent / "elsewhere")
        return verdict(rules, path, **how)

    monkeypatch.setattr(Rules, "verdict", vanishing)
    assert of(tree).entries.keys() == {"pkg/a.py", "run.sh"} - {gone, f"{gone}/a.py"}


def test_an_unreadable_file_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "closed").write_text("x")
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name != "closed")  # root could read it
    assert "closed cannot be read" in refused({".": tree})


@pytest.mark.parametrize("call", ["scandir", "open"])
def test_what_cannot_be_read_is_answered_with_what_helps(
    tree: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = getattr(os, call)

    def closed(path: Any, *more: Any, **how: Any) -> Any:
        if not isinstance(path, int) and Path(path).name in ("pkg", "run.sh"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return before(path, *more, **how)

    monkeypatch.setattr(os, call, closed)
    with pytest.raises(UserError, match="cannot be read: Permission denied") as found:
        make_shipment(of(tree), tree.parent / "store")
    assert found.value.hint == "change its permissions, or name it in .tpujobignore"


def test_root_the_home_directory_and_what_is_above_it_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree / "pkg"))
    assert "is the home directory" in refused({".": tree / "pkg"})
    assert "above the home directory" in refused({".": tree})
    assert "above the home directory" in refused({".": Path("/")})


def test_a_directory_with_nothing_but_earlier_runs_is_shipped_as_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "runs" / "sh-1").mkdir(parents=True)
    (tmp_path / "runs" / "sh-1" / "x").write_text("x")
    assert survey({".": Source(tmp_path)}, own_directories=[tmp_path / "runs"]).files == 0
    (tmp_path / ".gitignore").write_text("*")
    assert "nothing of" in refused({".": tmp_path})


def test_too_much_is_refused_with_the_biggest_entries_before_anything_is_read(tree: Path) -> None:
    with (tree / "pkg" / "data.bin").open("wb") as file:
        file.truncate(80 * 10**9)
    (tree / "many").mkdir()
    for number in range(5):
        with (tree / "many" / str(number)).open("wb") as file:
            file.truncate(10**9)
    message = refused({".": tree})
    assert "are 85.0 GB, more than 1.1 GB; the biggest: pkg/data.bin (80.0 GB), many/ (5.0 GB), run.sh" in message


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_names_that_leave_the_shipment_are_refused(name: str) -> None:
    assert "is not a name inside a shipment" in refused({name: b""})


def test_two_sources_of_one_file_are_refused(tree: Path) -> None:
    assert "both contain run.sh" in refused({".": tree, "run.sh": b"other"})


def test_directories_of_tpujob_itself_are_left_out(tree: Path) -> None:
    for name in ("runs/mnist-1", "pkg/runs", "state"):
        (tree / name).mkdir(parents=True)
        (tree / name / "x").write_text("x")
    mark_run(tree / "runs" / "mnist-1")
    (tree / "runs" / "tensorboard").write_text("x")
    found = of(tree, own_directories=[tree / "state"])
    assert {path for path in found.entries if "run" in path} == {"pkg/runs/x", "runs/tensorboard", "run.sh"}
    assert {one.path: one.rule for one in found.left_out} == {"runs/mnist-1/": "of tpujob", "state/": "of tpujob"}
    (tree / "elsewhere").symlink_to(tree / "runs")
    (tree / "latest").symlink_to(tree / "runs" / "mnist-1")
    found = of(tree, own_directories=[tree / "runs", tree / "state"])
    assert {one.path for one in found.left_out} == {"runs/", "state/", "elsewhere", "latest"}
    assert "runs" not in found.entries, "the same is shipped before and after a first run"
    (tree / ".tpujobignore").write_text("!runs\n!runs/mnist-1/\n")
    assert "runs/mnist-1/x" in of(tree, own_directories=[tree / "runs"]).entries


def test_what_is_left_out_has_its_size_and_the_biggest_comes_first(tree: Path) -> None:
    (tree / ".gitignore").write_text("*.ckpt\ncaches/\n")
    (tree / "a.ckpt").write_bytes(bytes(10_000))
    (tree / "caches" / "deep").mkdir(parents=True)
    (tree / "caches" / "deep" / "1").write_bytes(bytes(290_000))
    (tree / "pkg" / "x.pyc").write_bytes(bytes(5))
    found = of(tree)
    assert [(one.path, one.size_bytes, one.rule) for one in found.left_out] == [
        ("caches/", 290_000, ".gitignore:2"),
        ("a.ckpt", 10_000, ".gitignore:1"),
        ("pkg/x.pyc", 5, "built in"),
    ]
    assert (
        left_out_text(found.left_out)
        == "caches/ 290 KB left out by .gitignore:2, a.ckpt 10 KB left out by .gitignore:1"
    )


def test_of_too_much_to_look_at_a_part_is_measured(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.hosts.shipping.tree.MEASURE_ENTRIES", 3)
    (tree / ".tpujobignore").write_text("many/\n")
    (tree / "many").mkdir()
    for number in range(10):
        (tree / "many" / str(number)).mkdir()
        (tree / "many" / str(number) / "x").write_bytes(bytes(1000))
    (many,) = of(tree).left_out
    assert not many.complete and many.size_bytes < 10_000


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
SERVICE_ACCOUNT = json.dumps({"type": "service_account", "private_key_id": "1", "client_email": "a@b"}, indent=2)


def check(root: Path) -> Survey:
    found = of(root)
    check_content(found)
    return found


@pytest.mark.parametrize(("name", "content", "what"), [
    *((".env", "KEY=1", "an environment file"), ("conf/.env.production", "KEY=1", "an environment file")),
    *(("prod.env", "KEY=1", "an environment file"), (".netrc", "machine api.wandb.ai", "login data")),
    *(("credentials.json", "{}x", "login data"), ("kaggle.json", "{}x", "login data")),
    *((".aws/credentials", "[default]", "login data"), ("kubeconfig", "x", "a kubeconfig")),
    *(("id_ed25519", "x", "a private SSH key"), ("store.p12", "x", "a key store")),
    ("server.pem", "-----BEGIN CERTIFICATE-----\nx\n" + KEY, "a private key"),
    *(("deploy_key", KEY, "a private key"), ("acme-1234.json", SERVICE_ACCOUNT, "a Google credential")),
    ("cluster.yaml", "users:\n- user:\n    client-key-data: LS0t\n", "a kubeconfig"),
    (".npmrc", "//registry/:_authToken=npm_x\n", "login data"),
])  # fmt: skip
def test_what_looks_like_a_secret_is_refused_with_its_name_and_the_fix(
    tree: Path, name: str, content: str, what: str
) -> None:
    path = tree / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        check(tree)
    assert caught.value.message == f"{path} looks like a secret ({what}), so nothing is shipped"
    assert f"a line `{name}` in .tpujobignore, or allow it there with `!{name}`" in str(caught.value.hint)
    (tree / ".gitignore").write_text(f"{name}\n")
    assert name not in check(tree).entries
    (tree / ".tpujobignore").write_text(f"!{name}\n")
    assert name in check(tree).entries, "allowed by name, and shipped although git leaves it out"


def test_a_directory_that_is_allowed_allows_no_secret_in_it(tree: Path) -> None:
    (tree / ".tpujobignore").write_text("!pkg/\n")
    (tree / "pkg" / ".env").write_text("KEY=1")
    with pytest.raises(UserError, match="looks like a secret"):
        of(tree)


@pytest.mark.parametrize(("name", "content"), [
    *((".env.example", "KEY="), (".env", ""), ("cacert.pem", "-----BEGIN CERTIFICATE-----\nx\n")),
    *(("id_rsa.pub", "ssh-rsa AAAA"), ("test_keys.py", f'KEY = """{KEY}"""'), ("README.md", KEY)),
    ("config.json", '{"type": "adam"}'),
])  # fmt: skip
def test_what_is_none_is_shipped(tree: Path, name: str, content: str) -> None:
    (tree / name).write_text(content)
    assert name in check(tree).entries
