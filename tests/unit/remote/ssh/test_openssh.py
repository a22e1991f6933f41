"""The OpenSSH configuration of a slice, as the real `ssh -G` reads it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.iap.dialer import Relay
from orchestrator.remote.ssh.connection import Credentials
from orchestrator.remote.ssh.dial import Dialer, Direct, Relayed
from orchestrator.remote.ssh.keys import KnownHosts
from orchestrator.remote.ssh.openssh import ssh_argv, write_config
from orchestrator.remote.ssh.piped import Piped
from tests.waiting import HANG_S

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
WORKERS = (
    WorkerAddress(0, "203.0.113.7", 22, "ssh-ed25519 AAAAzero", "10.0.0.7", "t1v-n-abc-w-0"),
    WorkerAddress(1, "203.0.113.8", 2222, None, "10.0.0.8", ""),
)


class NoToken:
    renewable = False

    def token(self) -> str:
        raise AssertionError("a configuration needs no token")

    def renew(self) -> None: ...


def written(directory: Path, dialer: Dialer | None = None, node: str = "tpujob-own-id", handle: str = "mine") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    credentials = Credentials("ada", directory / "id", KnownHosts(directory / "known_hosts", WORKERS, print))
    return write_config(directory, handle, node, WORKERS, credentials, dialer or Direct())


def seen(file: Path, host: str) -> dict[str, str]:
    """What OpenSSH makes of the configuration for this host."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(file), host], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_both_names_of_a_worker_lead_to_it_as_strictly_as_tpujob_itself(tmp_path: Path) -> None:
    file = written(tmp_path / "a b%h" / "id")
    for name in ("tpu-mine-0", "tpujob-own-id-0"):
        found = seen(file, name)
        assert found["hostname"] == "203.0.113.7" and found["port"] == "22" and found["user"] == "ada"
        assert found["hostkeyalias"] == "worker0" and found["stricthostkeychecking"] == "true"
        assert found["userknownhostsfile"] == str(tmp_path / "a b%h" / "id" / "known_hosts")
        assert found["identitiesonly"] == "yes" and found["identityagent"] == "none" and found["forwardagent"] == "no"
        assert "proxycommand" not in found
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_worker_that_publishes_no_host_key_is_pinned_by_ssh_itself_and_aloud(tmp_path: Path) -> None:
    found = seen(written(tmp_path / "lease"), "tpu-mine-1")
    assert found["stricthostkeychecking"] == "accept-new" and found["loglevel"] == "INFO"
    assert found["hashknownhosts"] == "no", "tpujob reads the file, too"


def test_a_name_belongs_to_the_slice_that_had_it_first(tmp_path: Path) -> None:
    first, second = written(tmp_path / "1"), written(tmp_path / "2", node="tpujob-own-id2")
    assert seen(first, "tpu-mine-0")["user"] == "ada"
    assert seen(second, "tpu-mine-0")["hostname"] == "tpu-mine-0", "it is not this slice's"
    assert seen(second, "tpujob-own-id2-0")["hostname"] == "203.0.113.7"
    assert "Host tpu-mine-0 " in written(tmp_path / "1").read_text(), "its own file takes no name from it"
    first.unlink()
    assert "Host tpu-mine-0 " in written(tmp_path / "2", node="tpujob-own-id2").read_text()


def test_a_slice_whose_name_begins_like_another_one_is_another_one(tmp_path: Path) -> None:
    written(tmp_path / "1")
    assert "Host tpu-mine-b-0 " in written(tmp_path / "2", handle="mine-b").read_text()
    assert "Host tpu-min-0 " in written(tmp_path / "3", handle="min").read_text()


def test_a_proxy_command_gets_the_internal_address_whatever_the_host_is_called(tmp_path: Path) -> None:
    file = written(tmp_path / "lease", Piped("corkscrew 100%% %n %h %p %r", "ada"))
    found = seen(file, "tpu-mine-0")
    assert found["hostname"] == "10.0.0.7" and found["proxycommand"] == "corkscrew 100%% %h %h %p %r"


def test_through_iap_a_program_gets_the_instance_and_no_token_and_ssh_waits_for_its_tunnel(tmp_path: Path) -> None:
    relay = Relay(NoToken(), "ws://127.0.0.1:1/v4", emulated=True)
    file = written(tmp_path / "lease", Relayed(relay, "p", "z", program=["/py %d", "-m", "relay", "p", "z"]))
    found = seen(file, "tpu-mine-0")
    assert found["proxycommand"] == "'/py %%d' -m relay p z t1v-n-abc-w-0"
    assert int(found["serveralivecountmax"]) * int(found["serveraliveinterval"]) == 15 * 60


def test_a_worker_that_cannot_be_reached_yet_is_a_comment_that_says_why(tmp_path: Path) -> None:
    relay = Relay(NoToken(), "ws://127.0.0.1:1/v4", emulated=True)
    text = written(tmp_path / "lease", Relayed(relay, "p", "z")).read_text()
    assert "\n# tpujob-own-id-1: it has not published the name of its instance" in text
    assert "Host tpu-mine-0 " in text and "Host tpu-mine-1 " not in text


def test_the_command_line_reads_this_configuration_and_nothing_of_the_user(tmp_path: Path) -> None:
    argv = ssh_argv(tmp_path / "f", "tpu-mine-0", ["-L", "1:h:2"], ["echo", "a b", "$HOME"])
    assert argv == ["ssh", "-F", str(tmp_path / "f"), "-L", "1:h:2", "--", "tpu-mine-0", "echo 'a b' '$HOME'"]
    assert ssh_argv(tmp_path / "f", "tpu-mine-0", [], None)[-2:] == ["--", "tpu-mine-0"]
