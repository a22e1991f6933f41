"""The agent of a connection, over real SSH: one program on each worker, whatever happens to it."""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import RemoteError
from orchestrator.remote.fleet.fleet import Fleet
from orchestrator.remote.ssh import agent
from orchestrator.remote.ssh.call import WorkerCall
from orchestrator.remote.transfer.collect import CollectRequest
from tests.contract.remote.fixture import Road, Slice, four, one, road, until_ended
from tests.contract.remote.test_remote import request
from tests.waiting import HANG_S, until

__all__ = ["four", "one", "road"]

SERVE = agent.serve_command


def agents(slice_: Slice) -> set[psutil.Process]:
    """The agents on worker 0, without their verbs and supervisors: sshd makes each the leader of a session."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = agent.digest() in process.cmdline() and process.environ()["HOME"] == str(slice_.home())
            if ours and os.getsid(process.pid) == process.pid:
                found.add(process)
    return found


def commands(slice_: Slice) -> int:
    """How many commands its workers have started for clients."""
    count: int = slice_.emulator.request("GET", "/_emulator/status")["ssh_sessions"]["commands"]
    return count


def test_all_steps_of_a_run_start_one_program_on_each_worker(four: Slice, tmp_path: object) -> None:
    before = commands(four)
    fleet = four.fleet()
    fleet.connect(HANG_S)
    fleet.send_heartbeats(0.05, everywhere=True)
    assert [fleet.facts(index).index for index in range(4)] == [0, 1, 2, 3]
    for phase in ("setup", "main"):
        fleet.start(replace(request("counted", "echo hello > $TPUJOB_ARTIFACTS/said", 4), phase=phase))
        fleet.follow(lambda worker, piece: None)
        assert until_ended(fleet).all_succeeded
    assert len(fleet.collect(CollectRequest("", tmp_path, ())).within(HANG_S).files) == 4  # type: ignore[arg-type]
    fleet.stop(0)
    assert commands(four) - before == 4


@pytest.mark.ci
def test_a_log_is_byte_exact_when_its_agent_is_killed_again_and_again(one: Slice) -> None:
    others = agents(one)
    fleet = one.fleet()
    fleet.start(request("killed", "for i in $(seq 400); do echo line $i; sleep 0.005; done; exit 5"))
    log, kills = b"", 0

    def sink(worker: int, piece: bytes) -> None:
        nonlocal log, kills
        log += piece
        if len(log) > 800 * kills:
            kills += 1
            for process in agents(one) - others:
                process.kill()

    fleet.follow(sink)
    status = until_ended(fleet)
    assert kills >= 3
    assert (status.first_failed.index, status.first_failed.rc) == (0, 5), "the supervisor lives on"
    assert log == b"".join(b"line %d\n" % number for number in range(1, 401))


def test_two_processes_on_one_worker_have_an_agent_each(one: Slice) -> None:
    before = agents(one)
    first, second = one.fleet(), one.fleet()
    assert first.facts(0) and second.facts(0)
    assert len(agents(one) - before) == 2
    first.cancel()
    until(lambda: len(agents(one) - before) == 1, "the end of one agent")
    assert second.facts(0)


def test_a_closed_call_leaves_the_connection_and_its_other_calls(
    one: Slice, road: Callable[[WorkerAddress], Road]
) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "closed_call_hosts")
    fleet.start(request("closed", "echo begun; until [ -e ../go ]; do sleep 0.02; done"))
    log: list[bytes] = []
    fleet.follow(lambda worker, piece: log.append(piece))
    until(lambda: log, "the first line")
    with WorkerCall(fleet._connections[0], "follow", "closed", "main", "0", silence_s=HANG_S) as call:
        call.answer()
    assert fleet.run(0, ["touch", "tpujob/runs/closed/go"]).rc == 0
    assert until_ended(fleet).all_succeeded
    assert way.connections == 1


def test_what_a_program_of_the_login_shell_prints_later_is_an_error_and_not_a_wait(
    one: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "{ until [ -e go-on ]; do sleep 0.02; done; echo noise of a background job; } & "
    monkeypatch.setattr("orchestrator.remote.ssh.agent.serve_command", lambda: noise + SERVE())
    fleet = one.fleet()
    fleet.start(request("noise", "sleep 3600"))
    (one.home() / "go-on").touch()
    fleet.follow(lambda worker, piece: None)
    with pytest.raises(RemoteError, match="worker0: a damaged frame: b'noise"):
        until_ended(fleet)
    monkeypatch.undo()
    other = one.fleet()
    other.attach("noise", "main")
    other.stop(0)


def test_calls_of_several_threads_share_one_agent(one: Slice) -> None:
    before = commands(one)
    fleet: Fleet = one.fleet()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(fleet.facts(0).free_port)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(found) == 8
    assert commands(one) - before == 1
