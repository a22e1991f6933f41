"""The code of a job as one archive: the same bytes for the same files, and what the pods unpack of it."""

import os
import tarfile
from pathlib import Path

from orchestrator.places.gke.code import CodeArchive, pack_code
from orchestrator.remote.shipping import tree
from orchestrator.remote.shipping.shipment import Shipment, make_shipment
from orchestrator.vm.pod_code import unpack


def files(directory: Path) -> Path:
    code = directory / "code"
    (code / "package" / "empty").mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "package" / "__init__.py").write_bytes(b"")
    (code / "package" / "same.py").write_text("print(1)\n")
    (code / "package" / "link.py").symlink_to("../train.py")
    return code


def shipment(directory: Path, code: Path) -> Shipment:
    return make_shipment(tree.survey({".": tree.Source(code, gitignore=True)}), directory / "store")


def packed(directory: Path, name: str = "code.tar.gz") -> CodeArchive:
    return pack_code(shipment(directory, directory / "code"), directory / name)


def test_the_same_files_are_the_same_bytes_whenever_they_were_written(tmp_path: Path) -> None:
    code = files(tmp_path)
    first = packed(tmp_path, "a")
    os.utime(code / "train.py", (1, 1))
    (code / "run.sh").chmod(0o700)
    second = packed(tmp_path, "b")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.read_bytes()[4:8] == bytes(4), "no time in the head of gzip"
    assert (first.sha256, first.size_bytes) == (second.sha256, len(second.path.read_bytes()))
    (code / "train.py").write_text("print(2)\n")
    assert packed(tmp_path, "c").sha256 != first.sha256


def test_an_archive_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    files(tmp_path)
    with tarfile.open(packed(tmp_path).path) as archive:
        members = archive.getmembers()
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "", "", 0)
    }


def test_the_pods_unpack_what_was_packed(tmp_path: Path) -> None:
    code = files(tmp_path)
    archive = packed(tmp_path)
    unpack(str(tmp_path), {"code_sha256": archive.sha256}, str(tmp_path / "work"), None)  # type: ignore[arg-type]
    work = tmp_path / "work"
    found = {path.relative_to(work).as_posix() for path in work.rglob("*")}
    assert found == {path.relative_to(code).as_posix() for path in code.rglob("*")}
    assert (work / "train.py").read_text() == (work / "package" / "same.py").read_text() == "print(1)\n"
    assert (work / "package" / "link.py").readlink() == Path("../train.py")
    assert (work / "package" / "__init__.py").read_bytes() == b""
    assert os.access(work / "run.sh", os.X_OK) and not os.access(work / "train.py", os.X_OK)
