"""The fleet on other ways than an address: through the relay of IAP, and through a command, as a bastion needs one."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.errors import ConfigError, RemoteError, TunnelRefused, Unreachable
from orchestrator.hosts.iap.dialer import Relay
from orchestrator.hosts.ssh import proxy_command
from orchestrator.hosts.ssh.dial import Direct, Relayed, Took
from orchestrator.hosts.ssh.fan_out import Patience
from orchestrator.hosts.ssh.proxy_command import Piped
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.places.desk import Emulator as EmulatorPlace
from orchestrator.places.vms.reach import Reach
from orchestrator.promise.lease.access import Route, Via
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.obtain.login_key import create_key
from tests.cli_fixture import kill_all
from tests.contract.hosts.fixture import USER, Road, Slice, four, one, until_ended
from tests.contract.hosts.test_remote import request, shipment, started
from tests.emulator.fixture import Emulator, Fault
from tests.fakes.api import FixedToken
from tests.fakes.leases import lease_and_request
from tests.waiting import HANG_S, until

__all__ = ["four", "one"]

# Connects, and copies both ways until the far end closes: it does not notice that its own stdin has ended.
PROXY = """
import os, socket, sys, threading
print("connecting", file=sys.stderr)
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def relayed(shared_emulator: Emulator) -> Relayed:
    url = f"{shared_emulator.url.replace('http', 'ws', 1)}/v4"
    relay = Relay(FixedToken(shared_emulator.token), url, emulated=True)
    return Relayed(relay, "emulated", "us-central1-a")


@pytest.fixture
def proxy(tmp_path: Path) -> str:
    """A ProxyCommand."""
    path = tmp_path / "a proxy.py"
    path.write_text(PROXY)
    return f"{shlex.quote(sys.executable)} -IS {shlex.quote(str(path))} %h %p"


def proxies(tmp_path: Path) -> list[psutil.Process]:
    """The processes that run the proxy of this test, and those that keep them."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(tmp_path) in word for word in process.cmdline()) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


# -- the relay --------------------------------------------------------------------------------------------------------


def test_a_job_runs_through_the_relay_from_its_code_to_its_artifacts_while_tunnels_are_cut(
    four: Slice, relayed: Relayed, fault: Fault, tmp_path: Path
) -> None:
    fault("relay_cut", after_bytes=6_000, when={"first": 8})
    fleet = four.fleet(dialer=relayed)
    fleet.connect(HANG_S)
    content = os.urandom(2 << 20)
    code = shipment(tmp_path, {"code/noise": content})
    fleet.push(code)
    script = "sha256sum < code/noise; seq 1 50000; cp code/noise $TPUJOB_ARTIFACTS/noise"
    log = started(fleet, replace(request("relayed", script, 4), manifest=code.id))
    assert until_ended(fleet).all_succeeded
    assert {len(text.splitlines()) for text in log.of.values()} == {50_001}
    collected = fleet.collect(CollectRequest("", tmp_path / "run", ())).within(HANG_S)
    assert collected.problems == ()
    assert all((tmp_path / f"run/worker{i}/artifacts/noise").read_bytes() == content for i in range(4))
    assert four.notices == []


def test_a_tunnel_that_cannot_be_resumed_is_a_new_tunnel_and_the_log_is_byte_exact(
    one: Slice, relayed: Relayed, fault: Fault
) -> None:
    fault("relay_cut", operation="relay.connect", after_bytes=12_000, when={"calls": "1-3"})
    fault("relay_refuse", operation="relay.reconnect", close_code=4001)
    fleet = one.fleet(known_hosts="relay_hosts", dialer=relayed)
    log = started(fleet, request("newtunnel", "for i in $(seq 4000); do echo line $i; done; exit 5"))
    assert [each.rc for each in until_ended(fleet).workers] == [5]
    assert log.of[0] == "".join(f"line {number}\n" for number in range(1, 4001)).encode()


def test_a_role_that_is_lost_in_the_middle_of_a_run_is_waited_for(one: Slice, relayed: Relayed, fault: Fault) -> None:
    fleet = one.fleet(known_hosts="role_hosts", dialer=relayed)
    fleet.connect(HANG_S)
    for connection in fleet._connections:
        connection.drop()
    fault("relay_refuse", operation="relay.connect", close_code=4033, when={"first": 2})
    fleet.connect(HANG_S)
    assert fleet.run(0, ["true"]).rc == 0


def test_a_missing_role_ends_the_wait_for_workers_at_once(one: Slice, relayed: Relayed, fault: Fault) -> None:
    fault("relay_refuse", operation="relay.connect", close_code=4033)
    with pytest.raises(TunnelRefused, match=r"worker0: .*not authorized") as refused:
        one.fleet(known_hosts="refused_hosts", dialer=relayed).connect(HANG_S)
    assert "roles/iap.tunnelResourceAccessor" in str(refused.value.hint) and refused.value.exit_code == 77


@pytest.mark.parametrize("code", [4003, 4047])
def test_a_vm_whose_ssh_server_is_not_up_or_that_the_relay_does_not_know_yet_is_waited_for(
    one: Slice, relayed: Relayed, fault: Fault, code: int
) -> None:
    fault("relay_refuse", operation="relay.connect", close_code=code, when={"first": 3})
    one.fleet(known_hosts="booting_hosts", dialer=relayed).connect(HANG_S)


@pytest.mark.parametrize(("age_s", "error"), [(0.0, Unreachable), (119.0, Unreachable), (121.0, TunnelRefused)])
def test_a_relay_that_does_not_know_of_the_role_on_a_fresh_vm_yet_is_asked_again_for_two_minutes(
    one: Slice, shared_emulator: Emulator, fault: Fault, tmp_path: Path, age_s: float, error: type[RemoteError]
) -> None:
    (tmp_path / "token").write_text(shared_emulator.token)
    place = EmulatorPlace(shared_emulator.url, tmp_path / "token")
    lease = replace(lease_and_request()[0], route=Route(Via.IAP), ready_at=1000.0)
    dialer = Reach(lambda: place, lambda _: tmp_path).dialer(lease, 1000.0 + age_s)
    fault("relay_refuse", operation="relay.connect", close_code=4033, when={"first": 1})
    with pytest.raises(error, match="4033: not authorized"):
        dialer.dial(one.workers[0])


def test_a_vm_that_never_answers_names_the_firewall_rule(one: Slice, relayed: Relayed, fault: Fault) -> None:
    fault("relay_refuse", operation="relay.connect", close_code=4003)
    with pytest.raises(Unreachable, match="worker0 of 1 could not be reached") as error:
        one.fleet(known_hosts="silent_hosts", dialer=relayed).connect(0.3)
    assert "35.235.240.0/20" in str(error.value.hint)


def test_a_worker_that_has_not_published_its_name_says_which_policy_may_forbid_it(one: Slice, relayed: Relayed) -> None:
    nameless = replace(one.workers[0], instance="")
    with pytest.raises(TunnelRefused) as error:
        one.fleet([nameless], "nameless_hosts", relayed).connect(HANG_S)
    assert "disableGuestAttributesAccess" in str(error.value.hint)


# -- a command --------------------------------------------------------------------------------------------------------


def test_a_job_runs_through_a_command_whose_death_in_the_middle_costs_nothing_of_the_log(
    four: Slice, proxy: str, tmp_path: Path
) -> None:
    fleet = four.fleet(dialer=Piped(proxy, USER))
    fleet.connect(HANG_S)
    code = shipment(tmp_path, {"code/noise": os.urandom(1 << 20)})
    fleet.push(code)
    go = tmp_path / "go"  # emulated workers are on this machine
    script = f"seq 1 10000; until [ -e {go} ]; do sleep 0.02; done; seq 10001 20000; exit $TPUJOB_WORKER"
    log = started(fleet, replace(request("piped", script, 4), manifest=code.id))
    until(lambda: len(log.of) == 4, "the first words of all")
    killed = proxies(tmp_path)
    kill_all(killed)
    go.touch()
    status = until_ended(fleet)
    assert [worker.rc for worker in status.workers] == [0, 1, 2, 3]
    assert len(killed) >= 4 and set(log.of.values()) == {"".join(f"{each}\n" for each in range(1, 20_001)).encode()}
    fleet.cancel()
    until(lambda: not proxies(tmp_path), "the end of the commands")


def test_the_tokens_of_a_command_are_those_of_openssh(one: Slice, tmp_path: Path) -> None:
    worker = replace(one.workers[0], internal="10.0.0.7")
    proxy_command = Piped(f"printf '%%s|' %h %p %r %n 100%% > {shlex.quote(str(tmp_path / 'said'))}", "ada")
    with proxy_command.dial(worker) as sock:
        assert sock.recv(1) == b""
    assert (tmp_path / "said").read_text() == f"10.0.0.7|{worker.port}|ada|10.0.0.7|100%|"


@pytest.mark.parametrize("command", ["", "  ", "nc %x", "ssh bastion %"])
def test_a_command_that_cannot_work_is_refused_before_it_runs(command: str) -> None:
    with pytest.raises(ConfigError, match="ssh_proxy_command"):
        Piped(command, USER)


def test_a_command_that_fails_is_quoted(one: Slice) -> None:
    said = "echo first >&2; printf 'bastion: \\033[31mPermission denied\\n' >&2; exit 255"
    failing = Piped(f"sh -c {shlex.quote(said)}", USER)
    with pytest.raises(Unreachable, match="worker0: the way to it failed: bastion: Permission denied") as error:
        one.fleet(known_hosts="failing_hosts", dialer=failing).connect(0.0)
    assert error.value.message.isprintable()


def test_a_wait_says_by_which_way_it_tries_why_the_last_try_failed_and_until_when(one: Slice) -> None:
    failing = Piped("sh -c 'echo bastion: no such host >&2; exit 255'", USER)
    fleet = one.fleet(known_hosts="waiting_hosts", dialer=failing, patience=Patience(slow_s=(), say_s=0.0))
    said: list[str] = []
    with pytest.raises(Unreachable):
        fleet.connect(0.5, said.append)
    assert len(said) == 1
    assert re.fullmatch(r"worker0 through `ssh_proxy_command`: bastion: no such host, trying until \d\d:\d\dZ", said[0])


def test_a_command_that_there_is_not_ends_the_wait_for_workers_at_once(one: Slice) -> None:
    fleet = one.fleet(known_hosts="absent_hosts", dialer=Piped("no-such-command %h %p", USER))
    with pytest.raises(RemoteError, match=r"worker0: `ssh_proxy_command` cannot run: .*no-such-command") as error:
        fleet.connect(HANG_S)
    assert not isinstance(error.value, Unreachable)


def test_a_command_that_was_there_is_waited_for_when_it_is_not(one: Slice, proxy: str, tmp_path: Path) -> None:
    command = tmp_path / "command"
    command.write_text(f'#!/bin/sh\nexec {proxy.removesuffix(" %h %p")} "$@"\n')
    command.chmod(0o755)
    fleet = one.fleet(known_hosts="lost_hosts", dialer=Piped(f"{shlex.quote(str(command))} %h %p", USER))
    fleet.connect(HANG_S)
    command.rename(tmp_path / "moved")
    for connection in fleet._connections:
        connection.drop()
    with pytest.raises(Unreachable, match="could not be reached"):
        fleet.connect(0.0)


def test_a_command_ends_with_the_process_that_wanted_it_also_when_that_is_killed(
    one: Slice, proxy: str, tmp_path: Path
) -> None:
    program = f"""
        import time
        from orchestrator.promise.lease.cloud_api import WorkerAddress
        from orchestrator.hosts.ssh.proxy_command import Piped
        sock = Piped({proxy!r}, "ada").dial(WorkerAddress(0, "127.0.0.1", {one.workers[0].port}))
        print(sock.recv(4), flush=True)
        time.sleep(3600)
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"b'SSH-'\n"
        process.send_signal(signal.SIGKILL)
    until(lambda: not proxies(tmp_path), "the end of the command")


class Counted(proxy_command.Turns):
    """Turns that say how many were taken at once."""

    def __init__(self) -> None:
        super().__init__(proxy_command.AT_ONCE)
        self.inside = self.most = self.logins = self.given_up = 0
        self.lock = threading.Lock()

    @contextmanager
    def turn(self, tries: int = 0) -> Iterator[Took]:
        with super().turn(tries) as took:
            with self.lock:
                self.inside, self.logins = self.inside + 1, self.logins + 1
                self.most, self.given_up = max(self.most, self.inside), max(self.given_up, tries)
            try:
                yield took
            finally:
                with self.lock:
                    self.inside -= 1


def test_no_more_logins_are_under_way_than_a_bastion_lets_through(
    four: Slice, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login is under way from its dial on, until the worker's first byte."""
    monkeypatch.setattr(proxy_command, "AT_ONCE", 2)
    monkeypatch.setattr(proxy_command, "HANGS_S", HANG_S)  # on a slow machine none is ended for another one
    monkeypatch.setattr(proxy_command, "UNKNOWN_S", HANG_S)
    turns = Counted()
    monkeypatch.setattr(proxy_command, "turns", lambda *_: turns)
    four.fleet(dialer=Piped(proxy, USER)).connect(HANG_S)
    assert (turns.most, turns.inside, turns.logins) == (2, 0, 4)


class SilentAtFirst(Road):
    """Says nothing to the first connection, and takes no other one before that has ended."""

    def __init__(self, worker: WorkerAddress) -> None:
        self.given_up = threading.Event()
        super().__init__(worker)

    def _accept(self) -> None:
        with self._listener.accept()[0] as first:
            assert first.recv(1) == b""
        self.given_up.set()
        super()._accept()


def test_a_login_that_hangs_is_ended_for_one_that_waits_and_tried_again_after_it(
    four: Slice, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_command, "AT_ONCE", 1)
    monkeypatch.setattr(proxy_command, "UNKNOWN_S", 0.1)
    turns = Counted()
    monkeypatch.setattr(proxy_command, "turns", lambda *_: turns)
    way = SilentAtFirst(four.workers[0])
    four.fleet([way.worker, *four.workers[1:]], "silent_hosts", dialer=Piped(proxy, USER)).connect(HANG_S)
    way.close()
    assert way.given_up.is_set() and turns.given_up >= 1 and turns.most == 1


# -- an address -------------------------------------------------------------------------------------------------------


def test_the_internal_address_is_taken_where_it_is_asked_for(one: Slice) -> None:
    worker = replace(one.workers[0], host="192.0.2.1", internal="127.0.0.1")
    one.fleet([worker], "internal_hosts", Direct(internal=True)).connect(HANG_S)


def test_a_worker_without_an_internal_address_says_so(one: Slice) -> None:
    with pytest.raises(Unreachable, match="no address for it in its network"):
        one.fleet([one.workers[0]], "internal_hosts", Direct(internal=True)).connect(0.0)


# -- no way -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "told", "cause"), [
    ("external", "by their external addresses", "a firewall rule of the slices' network let this machine reach"),
    ("internal", "by their internal addresses", "is this machine in the slices' network"),
    ("command", "through `ssh_proxy_command`", "does `ssh_proxy_command` work by hand"),
    ("relay", "through Identity-Aware Proxy", "let 35.235.240.0/20 reach tcp:22"),
])  # fmt: skip
def test_workers_that_cannot_be_reached_are_named_with_the_way_its_likely_cause_and_the_doctor(
    one: Slice, relayed: Relayed, way: str, told: str, cause: str
) -> None:
    ways: dict[str, Any] = {
        "external": Direct(),
        "internal": Direct(internal=True),
        "command": Piped("false", USER),
        "relay": relayed,
    }
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        nowhere = replace(one.workers[0], port=port, internal="127.0.0.1", instance="t1v-n-none-w-0")
        with pytest.raises(Unreachable) as caught:
            one.fleet([nowhere], f"{way}_hosts", ways[way]).connect(0.0)
    assert f"worker0 of 1 could not be reached within 0 s {told}: worker0" in caught.value.message
    assert cause in str(caught.value.hint) and "`tpujob doctor`" in str(caught.value.hint)


def test_a_key_that_is_not_accepted_is_a_matter_of_os_login_and_not_of_the_way(one: Slice, tmp_path: Path) -> None:
    other = replace(one, key=create_key(tmp_path / "other"))
    with pytest.raises(Unreachable, match="does not accept our key") as caught:
        other.fleet(known_hosts="key_hosts").connect(0.0)
    assert "roles/compute.osLogin" in str(caught.value.hint) and "`tpujob doctor`" in str(caught.value.hint)
