"""Rows 13c, 16-18: queued resources that wait for ever, become ACTIVE too late, or stay behind without a node."""

import signal

from tests.faults.row import row
from tests.faults.world import World, is_stopped
from tests.waiting import until


def queued(w: World, *, wait: str = "10m", seconds: float = 0) -> str:
    """Return a job file: one on-demand candidate through the queue, and one command."""
    return w.job(
        f"name: work\ntpu: {{zone: us-central1-a, provisioning: queued, wait: {wait}}}\n"
        f"command: |\n  echo started\n  sleep {seconds}\n  date +%s.%N > {w.directory}/ended.$TPUJOB_WORKER\n"
    )


@row("13c", "a queued resource's forced delete is accepted and its operation fails")
def delete_fails(w: World) -> None:
    w.fault("operation_fails", "queuedResources.delete", when={"first": 2})
    done = w.do("run", queued(w))
    assert done.code() == 0, done.err
    # A fourth one is answered with 404 if the third is done between the two questions after it.
    assert len([call for call in w.requests("queuedResources.delete") if call["status"] == 200]) == 3
    w.check_bound("C0, failed twice", w.job_ended_at, w.bounds.command(failed=2))
    assert w.queue() == [] and w.states() == {"gone"}


@row("16", "a queued resource waits for ever")
def waits_for_ever(w: World) -> None:
    w.exhaust_capacity()
    done = w.do("run", queued(w, wait="4s"))
    assert done.code() == 69 and "no capacity" in done.err
    assert w.queue() == [] and w.lived() == 0 and w.states() == {"gone"}


@row("16'", "a queued resource waits for ever, and the machine that asked for it dies")
def waits_without_anybody(w: World) -> None:
    """The request expires by itself: later capacity is not taken."""
    w.exhaust_capacity()
    w.power_cut_at("Create:1:after", "run", queued(w, wait="4s"))
    w.until_queued("FAILED")
    w.restore_capacity()
    gc = w.do("gc")
    assert gc.code() == 0, gc.err
    assert w.queue() == [] and w.lived() == 0


@row("17", "a queued resource becomes ACTIVE at the moment of its delete")
def active_meanwhile(w: World) -> None:
    w.exhaust_capacity()
    command = w.begin("run", queued(w), env={"TPUJOB_CRASH_AT": "Delete:1:before:STOP"})
    w.until_queued("WAITING_FOR_RESOURCES")
    pressed_at = command.interrupt()
    until(lambda: is_stopped(command.process.pid), "the delete is about to leave")
    w.restore_capacity()
    w.until_alive("READY")
    command.interrupt(signal.SIGCONT)
    assert command.code() == 130, command.err
    w.check_bound("C0", pressed_at, w.bounds.command())
    assert w.queue() == [] and w.lived() == 1 and w.states() == {"gone"}


@row("18", "a node is deleted and its queued resource stays SUSPENDED")
def node_without_request(w: World) -> None:
    command = w.begin("run", queued(w, seconds=600))
    command.until("started")
    lost_at = w.preempt(w.until_alive())
    assert command.code() == 71, command.err
    assert w.requests("queuedResources.delete") != []
    w.check_bound("C6", lost_at, w.bounds.command())
    assert w.queue() == [] and w.states() == {"gone"}
