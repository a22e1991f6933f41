"""A bundle depends on nothing but its content, and brings no surprise."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.remote.transfer.bundle import Bundle, make_bundle


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("print(1)\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o744)
    return root


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


def names(bundle: Bundle) -> list[str]:
    with tarfile.open(bundle.path) as tar:
        return tar.getnames()


def test_the_name_is_the_hash_of_the_content(tree: Path, out: Path) -> None:
    bundle = make_bundle({"code": tree, "train.json": b"{}"}, out)
    assert bundle.sha256 == hashlib.sha256(bundle.path.read_bytes()).hexdigest()
    assert bundle.path == out / f"{bundle.sha256}.tar.gz"
    assert (bundle.size_bytes, bundle.files) == (bundle.path.stat().st_size, 3)
    assert names(bundle) == ["code", "code/pkg", "code/pkg/a.py", "code/run.sh", "train.json"]


def test_the_same_content_elsewhere_later_and_by_somebody_else_is_the_same_bundle(
    tree: Path, out: Path, tmp_path: Path
) -> None:
    first = make_bundle({".": tree, "x": b"1"}, out)
    copy = tmp_path / "copy"
    (copy / "pkg").mkdir(parents=True)
    (copy / "run.sh").write_bytes((tree / "run.sh").read_bytes())
    (copy / "run.sh").chmod(0o700)
    (copy / "pkg" / "a.py").write_bytes((tree / "pkg" / "a.py").read_bytes())
    (copy / "pkg" / "a.py").chmod(0o600)
    os.utime(copy / "run.sh", (0, time.time() - 10**7))
    assert make_bundle({"x": b"1", ".": copy}, out) == first


def test_members_carry_no_time_owner_or_odd_mode(tree: Path, out: Path) -> None:
    with tarfile.open(make_bundle({".": tree}, out).path) as tar:
        members = {member.name: member for member in tar}
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0, 0, 0, "", "")}
    assert {name: m.mode for name, m in members.items()} == {"pkg": 0o755, "pkg/a.py": 0o644, "run.sh": 0o755}


def test_caches_version_control_and_what_the_ignore_file_names_stay_here(tree: Path, out: Path) -> None:
    for name in (
        ".git/config",
        "pkg/__pycache__/a.pyc",
        ".venv/bin/python",
        "node_modules/x",
        "b.pyc",
        "runs/1",
        "x/data/raw",
    ):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tree / "data").mkdir()
    (tree / "data" / "raw").write_text("x")
    (tree / "pkg" / "big.ckpt").write_text("x")
    (tree / ".tpujobignore").write_text("# mine\n*.ckpt\nruns/\ndata/raw\n")
    found = names(make_bundle({".": tree}, out))
    assert found == [".tpujobignore", "data", "pkg", "pkg/a.py", "run.sh", "x", "x/data", "x/data/raw"]


def test_negation_in_the_ignore_file_is_refused_with_its_line(tree: Path, out: Path) -> None:
    (tree / ".tpujobignore").write_text("*.ckpt\n!keep.ckpt\n")
    with pytest.raises(UserError, match=r"tpujobignore:2: negation"):
        make_bundle({".": tree}, out)


def test_a_link_within_the_tree_travels_as_a_relative_link(tree: Path, out: Path) -> None:
    (tree / "relative").symlink_to("pkg/a.py")
    (tree / "pkg" / "absolute").symlink_to(tree / "run.sh")
    with tarfile.open(make_bundle({"code": tree}, out).path) as tar:
        assert tar.getmember("code/relative").linkname == "pkg/a.py"
        assert tar.getmember("code/pkg/absolute").linkname == "../run.sh"


def refused(sources: dict[str, Path | bytes], out: Path, *, max_bytes: int = 1 << 30) -> str:
    with pytest.raises(UserError) as caught:
        make_bundle(sources, out, max_bytes=max_bytes)
    assert not out.exists() or not list(out.iterdir())
    return caught.value.message


def test_links_that_leave_the_tree_are_refused(tree: Path, out: Path) -> None:
    (tree / "pkg" / "leak").symlink_to("/etc/passwd")
    assert "leak is a link out of" in refused({".": tree}, out)


def test_a_link_to_itself_is_refused(tree: Path, out: Path) -> None:
    (tree / "loop").symlink_to("loop")
    assert "loop is a broken link" in refused({".": tree}, out)


def test_a_fifo_is_refused_and_not_opened(tree: Path, out: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert "pipe is neither a file nor a directory" in refused({".": tree}, out)


def test_an_unreadable_file_is_refused(tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "secret").write_text("x")
    monkeypatch.setattr(
        os, "access", lambda path, _mode: Path(path).name != "secret"
    )  # root could read it all the same
    assert "secret cannot be read" in refused({".": tree}, out)


def test_root_the_home_directory_and_what_is_above_it_are_refused(
    tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tree / "pkg"))
    assert "is the home directory" in refused({".": tree / "pkg"}, out)
    assert "above the home directory" in refused({".": tree}, out)
    assert "above the home directory" in refused({".": Path("/")}, out)


def test_what_does_not_exist_is_refused(tmp_path: Path, out: Path) -> None:
    assert "nowhere does not exist" in refused({".": tmp_path / "nowhere"}, out)


def test_too_much_is_refused_with_its_size_and_the_biggest_files_before_anything_is_read(tree: Path, out: Path) -> None:
    with (tree / "pkg" / "data.bin").open("wb") as file:
        file.truncate(80 * 10**9)
    message = refused({".": tree}, out)
    assert "80,000.0 MB" in message
    assert "pkg/data.bin (80,000.0 MB)" in message


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_names_that_leave_the_bundle_are_refused(out: Path, name: str) -> None:
    assert "is not a name inside a bundle" in refused({name: b""}, out)


def test_two_sources_of_one_file_are_refused(tree: Path, out: Path) -> None:
    assert "both contain run.sh" in refused({".": tree, "run.sh": b"other"}, out)
