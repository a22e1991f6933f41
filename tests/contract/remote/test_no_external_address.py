"""Workers without an external address: nothing reaches them but the relay, a bastion, and a machine in their network."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.emulator.daemon.control import DaemonRefused
from orchestrator.errors import Unreachable
from orchestrator.remote.ssh.dial import Direct
from orchestrator.remote.ssh.piped import Piped
from tests.contract.remote.fixture import NODES, USER, Slice, slice_of, through_bastion
from tests.emulator_fixture import Emulator
from tests.ports import held_port
from tests.waiting import HANG_S, until

numbers = count(1)


def node(**network: Any) -> dict[str, Any]:
    shape = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    return {**shape, "networkConfig": {"network": "default", **network}}


HIDDEN = node(enableExternalIps=False)


@pytest.fixture(scope="module")
def hidden(shared_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    with slice_of(shared_emulator, "v5litepod-16", tmp_path_factory.mktemp("hidden"), **HIDDEN) as made:
        yield made


def test_the_api_shows_no_external_address(hidden: Slice, shared_emulator: Emulator) -> None:
    endpoints = shared_emulator.request("GET", f"{NODES}/{hidden.node}")["networkEndpoints"]
    assert endpoints == [{"ipAddress": "127.0.0.1", "port": 8470}] * 4


def test_a_program_of_this_machine_does_not_reach_them(hidden: Slice) -> None:
    with pytest.raises(Unreachable, match="worker0 to worker3 of 4 could not be reached"):
        hidden.fleet(dialer=Direct()).connect(0.2)


def test_a_machine_in_their_network_reaches_them(hidden: Slice, shared_emulator: Emulator) -> None:
    inside = tuple(WorkerAddress(w.index, "", w.port, w.host_key, "127.0.0.1") for w in hidden.workers)
    with shared_emulator.settings(client_inside=True):
        fleet = hidden.fleet(inside, dialer=Direct(internal=True))
        fleet.connect(HANG_S)
        assert fleet.run(3, ["true"]).rc == 0


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_64_workers_connect_and_connect_again_through_a_bastion_that_drops_no_login(
    shared_emulator: Emulator, tmp_path: Path
) -> None:
    with slice_of(shared_emulator, "v5litepod-256", tmp_path, **HIDDEN) as many:
        fleet = many.fleet(dialer=Piped(through_bastion(shared_emulator, many.key, tmp_path), USER))
        for _ in range(2):
            fleet.connect(HANG_S)
            bastion = shared_emulator.request("GET", "/_emulator/bastion")
            assert bastion["dropped"] == 0
            assert bastion["most_starting"] > 1
            for connection in fleet._connections:
                connection.shut_socket()
            until(lambda: not any(connection._connection.is_connected for connection in fleet._connections))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_a_worker_that_does_not_listen_yet_is_what_openssh_says_of_it_behind_a_bastion(
    hidden: Slice, tmp_path: Path
) -> None:
    with held_port() as port, pytest.raises(Unreachable, match=r"failed: channel 0: .*Connection refused"):
        booting = replace(hidden.workers[0], port=port)
        hidden.fleet([booting], dialer=Piped(through_bastion(hidden.emulator, hidden.key, tmp_path), USER)).connect(0.0)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_a_bastion_that_refuses_the_key_is_quoted(hidden: Slice, tmp_path: Path) -> None:
    command = through_bastion(hidden.emulator, hidden.key, tmp_path, keys=[])
    with pytest.raises(Unreachable, match=r"the way to it failed: jump@127\.0\.0\.1: Permission denied"):
        hidden.fleet(hidden.workers[:1], dialer=Piped(command, USER)).connect(0.0)


@pytest.mark.parametrize(("setting", "body", "constraint"), [
    ("forbid_external_ips", node(enableExternalIps=True), "constraints/compute.vmExternalIpAccess"),
    ("require_os_login", node(enableExternalIps=False), "constraints/compute.requireOsLogin"),
])  # fmt: skip
def test_a_create_that_a_policy_forbids_names_the_constraint(
    shared_emulator: Emulator, setting: str, body: dict[str, Any], constraint: str
) -> None:
    queued = {"tpu": {"nodeSpec": [{"parent": NODES.removeprefix("/v2/").removesuffix("/nodes"), "nodeId": "no"}]}}
    queued["tpu"]["nodeSpec"][0]["node"] = body  # type: ignore[assignment]
    with shared_emulator.settings(**{setting: True}):
        for path, sent in (
            (f"{NODES}?nodeId=forbidden", body),
            (f"{NODES.replace('nodes', 'queuedResources')}?queuedResourceId=forbidden", queued),
        ):
            with pytest.raises(DaemonRefused, match=constraint) as refused:
                shared_emulator.request("POST", path, sent)
            assert refused.value.args
    assert all("forbidden" not in row["name"] for row in shared_emulator.status()["nodes"])


@pytest.mark.parametrize(("setting", "body"), [
    ("forbid_external_ips", node(enableExternalIps=False)),
    ("require_os_login", node() | {"metadata": {"enable-oslogin": "TRUE"}}),
])  # fmt: skip
def test_a_create_that_a_policy_allows_is_accepted(
    shared_emulator: Emulator, setting: str, body: dict[str, Any]
) -> None:
    name = f"allowed{next(numbers)}"
    with shared_emulator.settings(**{setting: True}):
        shared_emulator.request("POST", f"{NODES}?nodeId={name}", body)
    until(lambda: shared_emulator.request("GET", f"{NODES}/{name}")["state"] == "READY")
    shared_emulator.request("DELETE", f"{NODES}/{name}")
