"""Keys and pinned hosts: nothing is trusted that was not said beforehand."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import ConfigError, HostKeyMismatch
from orchestrator.remote.ssh.keys import create_key, ssh_keys_metadata
from orchestrator.remote.ssh.known_hosts import KnownHosts

WORKER = WorkerAddress(3, "10.0.0.7", 2222, "ssh-ed25519 AAAAkey root@vm")


def test_a_key_is_private_and_its_public_line_is_what_openssh_reads(tmp_path: Path) -> None:
    pair = create_key(tmp_path / "run")
    assert pair.private_path.stat().st_mode & 0o777 == 0o600
    if shutil.which("ssh-keygen"):
        said = subprocess.run(["ssh-keygen", "-y", "-f", pair.private_path], capture_output=True, text=True, check=True)
        assert said.stdout.split()[:2] == pair.public_line.split()[:2]


def test_a_second_call_for_the_same_run_finds_the_same_key(tmp_path: Path) -> None:
    assert create_key(tmp_path) == create_key(tmp_path)
    assert create_key(tmp_path).public_line != create_key(tmp_path / "other").public_line


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    create_key(tmp_path).private_path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        create_key(tmp_path)


def test_the_metadata_names_the_user(tmp_path: Path) -> None:
    assert ssh_keys_metadata("ada", "ssh-ed25519 AAAA tpujob") == "ada:ssh-ed25519 AAAA tpujob"


@pytest.mark.parametrize("user", ["", "Ada", "-oProxyCommand=x", "a:b", "a\nb", "x" * 33])
def test_login_names_that_could_mean_something_else_are_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="not a usable login name"):
        ssh_keys_metadata(user, "ssh-ed25519 AAAA")


def test_published_keys_are_written_where_openssh_looks(tmp_path: Path) -> None:
    path = tmp_path / "run" / "known_hosts"
    KnownHosts(path, [WORKER], print)
    assert path.read_text() == "worker3 ssh-ed25519 AAAAkey\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_shown_key_must_be_the_published_one(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path / "known_hosts", [WORKER], print)
    known.check(3, "ssh-ed25519 AAAAkey")
    with pytest.raises(HostKeyMismatch, match="worker3 shows another host key"):
        known.check(3, "ssh-ed25519 AAAAother")


def test_an_unpublished_key_is_accepted_once_aloud_and_then_pinned(tmp_path: Path) -> None:
    notices: list[str] = []
    unpublished = WorkerAddress(0, "10.0.0.4")
    known = KnownHosts(tmp_path / "known_hosts", [unpublished], notices.append)
    known.check(0, "ssh-ed25519 AAAAfirst")
    known.check(0, "ssh-ed25519 AAAAfirst")
    assert len(notices) == 1
    assert "published no host key" in notices[0]
    again = KnownHosts(tmp_path / "known_hosts", [unpublished], notices.append)
    with pytest.raises(HostKeyMismatch):
        again.check(0, "ssh-ed25519 AAAAsecond")


def test_a_node_that_now_publishes_another_key_is_refused(tmp_path: Path) -> None:
    KnownHosts(tmp_path / "known_hosts", [WORKER], print)
    with pytest.raises(HostKeyMismatch):
        KnownHosts(tmp_path / "known_hosts", [WorkerAddress(3, "10.0.0.7", 2222, "ssh-ed25519 AAAAnew")], print)
