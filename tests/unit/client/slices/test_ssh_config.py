"""One line in the user's own ~/.ssh/config: put at the top, once, taken out again, and nothing else of it is touched."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from orchestrator.client.session import Session
from orchestrator.client.slices import ssh_config
from orchestrator.client.slices.ssh_config import with_line, without_line
from orchestrator.errors import ConfigError
from orchestrator.settings import Target
from tests.waiting import HANG_S

LINE = b'Include "x"'
OWN = b"# mine\nUser me\n\nHost a\r\n  Port 1\nMatch host b\n  Port 2"  # no newline at its end, either


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    state = tmp_path / "state [1]"
    state.mkdir()
    return Session(Target("emulated", "emulated", "us-central1-a", "a test"), state)


@pytest.fixture
def config(session: Session, tmp_path: Path) -> Path:
    directory = tmp_path / "home" / ".ssh"
    directory.mkdir(mode=0o700)
    path = directory / "config"
    path.write_bytes(OWN)
    path.chmod(0o640)
    return path


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_the_line_stands_before_every_host_and_goes_without_a_trace() -> None:
    assert with_line(OWN, LINE) == LINE + b"\n" + OWN
    assert without_line(with_line(OWN, LINE), LINE) == OWN
    assert with_line(with_line(OWN, LINE), LINE) == with_line(OWN, LINE)
    assert with_line(b"", LINE) == LINE + b"\n"


def test_a_line_that_the_user_put_below_own_settings_stays_there_and_one_of_a_host_does_not_count() -> None:
    below = b"User me\n  " + LINE + b"\nHost a\n"
    assert with_line(below, LINE) == below
    inside = b"host=a\n" + LINE + b"\n"
    assert with_line(inside, LINE) == LINE + b"\nhost=a\n"
    hosts = b"HostName x\n" + LINE + b"\n"
    assert with_line(hosts, LINE) == hosts, "HostName begins no section"


def test_installing_twice_changes_the_file_once_and_keeps_its_mode_and_removing_restores_it(
    session: Session, config: Path
) -> None:
    assert ssh_config.install(session).changed
    assert config.read_bytes().endswith(OWN) and stat.S_IMODE(config.stat().st_mode) == 0o640
    number = config.stat().st_ino
    assert not ssh_config.install(session).changed
    assert config.stat().st_ino == number, "nothing is written where nothing changes"
    assert ssh_config.remove(session).changed and not ssh_config.remove(session).changed
    assert config.read_bytes() == OWN and names(config.parent) == ["config"]


def test_where_there_is_no_file_one_is_made_that_only_the_user_can_read(session: Session, tmp_path: Path) -> None:
    assert not ssh_config.remove(session).changed and not (tmp_path / "home" / ".ssh").exists()
    file = ssh_config.install(session).file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_link_stays_a_link_and_the_file_it_leads_to_is_changed(
    session: Session, config: Path, tmp_path: Path
) -> None:
    real = tmp_path / "dotfiles" / "ssh-config"
    real.parent.mkdir()
    config.replace(real)
    config.symlink_to(real)
    assert ssh_config.install(session).changed
    assert config.is_symlink() and real.read_bytes().endswith(OWN) and real.read_bytes() != OWN
    assert names(config.parent) == ["config"] and names(real.parent) == ["ssh-config"]


@pytest.mark.parametrize(("trouble", "why"), [
    (lambda path: path.chmod(0o400), "it is read-only"),
    (lambda path: (path.unlink(), path.mkdir()), "it is no file"),
    (lambda path: (path.unlink(), path.symlink_to("config")), "(Symlink loop|Too many levels)"),
    (lambda path: (path.unlink(), path.symlink_to("/nonexistent/config")), "No such file or directory"),
])  # fmt: skip
def test_a_file_that_cannot_be_changed_is_left_and_the_line_is_told(
    session: Session, config: Path, trouble: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble(config)  # type: ignore[operator]
    if os.getuid() == 0:  # root may write everything
        monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & stat.S_IWUSR))
    with pytest.raises(ConfigError, match=why) as refused:
        ssh_config.install(session)
    assert refused.value.hint is not None and 'Include "' in refused.value.hint
    assert not list(config.parent.glob(".*"))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_the_real_ssh_finds_the_hosts_of_slices_and_no_others_by_the_line(session: Session, config: Path) -> None:
    (session.lease_directory("l1") / "ssh_config").write_text("Host tpu-mine-0\n  Port 77\n")
    ssh_config.install(session)

    def port(host: str) -> str:
        words = ["ssh", "-G", "-F", str(config), host]
        done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=True)
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)["port"]

    assert (port("tpu-mine-0"), port("a"), port("tpu-other-0")) == ("77", "1", "22")
    session.forget_keys("l1")
    assert port("tpu-mine-0") == "22"
