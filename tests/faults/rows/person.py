"""Rows 50-55: gc on another machine, odd labels, a guardian that cannot start, closed terminals, Ctrl-C three times."""

import json
import os
import pty
import signal
import time
from typing import Any

from cloud_tpu_emulator.daemon import control
from tests.cli_fixture import take_terminal
from tests.faults.world import World, row
from tests.waiting import until

ZONE = "us-central1-a"


@row("50", "gc runs on another machine while the slice is created, used and extended", provision_s=10)
def gc_while_in_use(w: World) -> None:
    elsewhere = w.elsewhere()

    def gc_elsewhere() -> None:
        done = w.do("gc", "--zone", ZONE, "--json", env=elsewhere)
        assert done.code() == 0, done.err
        assert len(w.alive()) == 1

    run = w.begin("run", w.long_job())
    w.until_alive("CREATING")
    gc_elsewhere()
    run.until("started")
    gc_elsewhere()
    assert w.do("extend", "work", "--by", "2h").code() == 0
    gc_elsewhere()
    pressed_at = run.press()
    assert run.code() == 130
    w.check_bound("C0", pressed_at, w.bounds.command())
    assert {call["caller"] for call in w.requests("nodes.delete") if "-probe" not in call["path"]} == {"client"}
    assert w.states() == {"gone"}


@row("51", "gc meets foreign slices, with the name prefix only, and with the labels only", history={"at_most": 9})
def foreign(w: World) -> None:
    past = {
        "tpujob": "1",
        "tpujob-lease-id": "abc",
        "tpujob-claimed-until": "1500000000",
        "tpujob-deadline": "1500000000",
    }
    _create(w, "trainer", {})
    _create(w, "tpujob-aaaaaa-0000000001", {})
    _create(w, "trainer-two", past)
    _create(w, "tpujob-aaaaaa-0000000002", {**past, "tpujob-lease-id": "0000000002"})
    done = w.do("gc", "--zone", ZONE, env=w.elsewhere())
    assert done.code() == 0, done.err
    left = {name.rpartition("/")[2] for name in w.alive()}
    assert left == {"trainer", "tpujob-aaaaaa-0000000001", "trainer-two"}
    assert "tpujob-aaaaaa-0000000001" in done.out + done.err and "trainer-two" in done.out + done.err


@row("52", "gc meets malformed lease labels", history={"at_most": 9})
def unreadable(w: World) -> None:
    """Each counts as claimed for the default time from its creation, and is reported."""
    far = str(int(time.time()) + 3600)
    for index, lease in enumerate((None, "", "soon", "0", "9e99", "99999999999999999999")):
        labels = {"tpujob": "1", "tpujob-lease-id": f"000000000{index}", "tpujob-deadline": far}
        _create(
            w, f"tpujob-aaaaaa-000000000{index}", labels | ({} if lease is None else {"tpujob-claimed-until": lease})
        )
    done = w.do("gc", "--zone", ZONE, env=w.elsewhere())
    assert done.code() == 0 and "Traceback" not in done.err, done.err
    assert len(w.alive()) == 6
    assert (done.out + done.err).count("is not a time") == 6, done.out + done.err


def _create(w: World, node: str, labels: dict[str, str]) -> None:
    path = f"/v2/projects/emulated/locations/{ZONE}/nodes?nodeId={node}"
    body: dict[str, Any] = {"acceleratorType": "v5litepod-8", "runtimeVersion": "v2-alpha-tpuv5-lite", "labels": labels}
    control.request(control.ensure_running(w.emulator_directory), "POST", path, body)


@row("53", "the guardian cannot be started")
def no_guardian(w: World) -> None:
    (w.directory / "state").mkdir(mode=0o700, exist_ok=True)
    (w.directory / "state" / "guardian.log").mkdir()  # its log cannot be opened
    refused = w.do("run", w.short_job)
    assert refused.code() == 70 and "guardian" in refused.err and "nothing was created" in refused.err
    assert w.lived() == 0 and not w.requests("nodes.create")


@row("54a", "stdout is closed")
def stdout_closed(w: World) -> None:
    reader, writer = os.pipe()
    run = w.begin("run", w.short_job, stdout=writer)
    os.close(writer)
    assert os.read(reader, 1)
    os.close(reader)
    assert run.code() in (0, 141), run.err
    w.check_released("C0", w.job_ended_at, w.bounds.command())


@row("54b", "the terminal is closed")
def hangup(w: World) -> None:
    """The kernel sends SIGHUP to the foreground of the terminal, and no byte can be written to it."""
    ours, terminal = pty.openpty()
    run = w.begin(
        "run",
        w.long_job(),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    said = b""
    while b"started" not in said:
        said += os.read(ours, 4096)
    os.close(ours)
    closed_at = time.time()
    assert run.code() == 129
    w.check_bound("C0", closed_at, w.bounds.command())
    w.until_no_process()
    assert w.states() == {"gone"}


@row("54c", "SIGHUP")
def sighup(w: World) -> None:
    run = w.started()
    sent_at = run.press(signal.SIGHUP)
    assert run.code() == 129, run.err
    w.check_released("C0", sent_at, w.bounds.command())


@row("55", "Ctrl-C three times during the teardown")
def three_times(w: World) -> None:
    """The third Ctrl-C ends the command; the guardian finishes."""
    w.fault("status", "nodes.delete", caller="client", status=503)  # leaves time for three
    run = w.begin("run", w.short_job)
    until(lambda: w.requests("nodes.delete", "client"), "the delete is on the wire")
    run.press_three_times()
    assert run.code() == 75, run.err
    (lease,) = w.leases()
    assert lease["state"] == "down" and "NOT VERIFIED GONE" in run.err
    back_at = time.time()
    w.admin("DELETE", "faults")
    w.until_no_process()
    w.check_released("C1, from the end of the outage on", back_at, w.bounds.guardian() + w.bounds.seconds("retry"))
    assert json.loads(w.do("status", "--json").out)["slices"] == []
