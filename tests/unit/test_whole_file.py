"""What a user names is written as by a shell, but that a file is replaced whole: no device or link is replaced by one."""

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from orchestrator import whole_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_device_and_a_fifo_are_written_into(tmp_path: Path) -> None:
    terminal, other_end = os.openpty()
    (tmp_path / "tty").symlink_to(os.ttyname(other_end))  # beside it nobody can make a file, whatever `write` does
    whole_file.write(tmp_path / "tty", "text\n")
    assert os.read(terminal, 100) == b"text\r\n" and (tmp_path / "tty").is_symlink()
    os.close(terminal), os.close(other_end)

    fifo, read = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    whole_file.write(fifo, "text")
    reader.join()
    assert read == ["text"] and stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("inner/file")
    if there:
        (tmp_path / "inner/file").write_text("before, and longer")
    whole_file.write(tmp_path / "first", "text")
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert (tmp_path / "inner/file").read_text() == "text" and names(tmp_path / "inner") == ["file"]


@pytest.mark.parametrize("through", ["own", "link", "of another process"])
@pytest.mark.parametrize("deleted", [False, True])
def test_an_open_file_is_written_on_through_its_descriptor(tmp_path: Path, through: str, deleted: bool) -> None:
    with (tmp_path / "log").open("a+b", buffering=0) as log, subprocess.Popen(["sleep", "600"], stdout=log) as other:
        log.write(b"before\n")
        if deleted:
            (tmp_path / "log").unlink()
        (tmp_path / "link").symlink_to(f"/dev/fd/{log.fileno()}")
        names = {"own": f"/dev/fd/{log.fileno()}", "of another process": f"/proc/{other.pid}/fd/1"}
        whole_file.write(Path(names.get(through, tmp_path / "link")), "text")
        other.kill()
        log.seek(0)
        assert log.read() == b"before\ntext" and (tmp_path / "log").exists() is not deleted


@pytest.mark.parametrize("why", ["EBUSY", "EACCES", "EROFS", "EPERM"])
def test_a_file_that_cannot_be_replaced_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def refuse(draft: Path, target: Path) -> None:
        raise OSError(getattr(errno, why), why)  # EBUSY: it is mounted by itself

    monkeypatch.setattr(Path, "replace", refuse)
    (tmp_path / "file").write_text("before, and longer")
    whole_file.write(tmp_path / "file", "text", 0o640)
    assert (tmp_path / "file").read_text() == "text" and mode(tmp_path / "file") == 0o640
    with pytest.raises(OSError):
        whole_file.write(tmp_path / "new", "text")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("char", ["n", "あ", "\udcff"])
def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path, char: str) -> None:
    file = tmp_path / ("nn" + char * (250 // len(os.fsencode(char))))
    file.write_text("before")
    file.chmod(0o640)
    with file.open() as reader:
        whole_file.write(file, "text\udcff")
        assert reader.read() == "before", "who reads it has the old one"
    assert file.read_bytes() == b"text?" and mode(file) == 0o640
    whole_file.write(file, b"private", 0o600)
    assert file.read_bytes() == b"private" and mode(file) == 0o600 and names(tmp_path) == [file.name]


def test_what_cannot_be_written_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in (".", "loop", "missing/file"):
        with pytest.raises(OSError):
            whole_file.write(tmp_path / name, "text")
    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.write(-1, b""))  # as a disk that is full
    with pytest.raises(OSError):
        whole_file.write(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "before" and names(tmp_path) == ["file", "loop"]


def test_a_page_that_nobody_named_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "else").write_text("of someone else")
    (tmp_path / "report.html").symlink_to("else")
    whole_file.replace(tmp_path / "report.html", "text")
    assert (tmp_path / "else").read_text() == "of someone else" and (tmp_path / "report.html").read_text() == "text"
