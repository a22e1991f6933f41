"""Rows 1-8: processes and machines that die, at every kind of moment."""

from __future__ import annotations

import time

from tests.faults.row import row
from tests.faults.world import World
from tests.waiting import until


@row("1", "kill -9 of the CLI before the intent is written")
def before_intent(w: World) -> None:
    w.crash("Record:2:before", "run", w.hello)
    assert w.leases() == [] and w.lived() == 0
    assert w.do("list").code() == 0 and w.lived() == 0


@row("2", "kill -9 between the intent and the create call")
def before_create(w: World) -> None:
    w.crash("Create:1:before", "run", w.hello)
    w.until_alone()
    assert w.lived() == 0 and w.states() == {"gone"}


@row("3", "kill -9 after the create call was sent and before its reply")
def during_create(w: World) -> None:
    w.fault("hang", "nodes.create", seconds=600, effect=True)
    command = w.begin("run", w.hello)
    w.until_alive()
    command.process.kill()
    died_at = time.time()
    w.until_alone()
    w.keeps("C1", died_at, w.promise.guardian())
    assert w.states() == {"gone"}


@row("4a", "kill -9 while the slice is CREATING", provision_s=600)
def while_creating(w: World) -> None:
    command = w.begin("run", w.hello)
    w.until_alive("CREATING")
    until(lambda: w.states() == {"creating"}, "its create call was answered")
    _killed(w, command.press(9))


@row("4b", "kill -9 during the setup")
def during_setup(w: World) -> None:
    command = w.begin(
        "run", w.job("name: work\ntpu: {zone: us-central1-a}\nsetup: echo setting up; sleep 300\ncommand: ls\n")
    )
    command.until("setting up")
    _killed(w, command.press(9))


@row("4c", "kill -9 while the job runs")
def during_job(w: World) -> None:
    command = w.begin("run", w.lasting())
    command.until("started")
    _killed(w, command.press(9))


@row("4d", "kill -9 while the artifacts are collected")
def during_collect(w: World) -> None:
    _killed(w, w.crash("StartCollection:1:before", "run", w.hello))


@row("4e", "kill -9 in the middle of the deletion", delete_s=1.0)
def during_delete(w: World) -> None:
    _killed(w, w.crash("Delete:1:after", "run", w.hello))


@row("5", "kill -9 after the proof, before it is written down")
def before_gone(w: World) -> None:
    died_at = w.crash("ListSlices:2:after", "run", w.hello)
    w.until_alone()
    w.keeps("nothing left to bill", died_at, 0.0)
    assert w.states() == {"gone"}


def _killed(w: World, died_at: float) -> None:
    """The CLI alone is gone, and nobody types anything."""
    w.until_alone()
    w.keeps("C1", died_at, w.promise.guardian())
    assert w.states() == {"gone"}
    assert w.do("status").code() == 0


for point in ("Workers:1:before", "StartPhase:1:after", "WaitForWorkers:1:after", "StartCollection:1:before", "Delete:1:before"):

    @row("6a", f"kill -9 of CLI and guardian at {point}, and the switch acts")
    def both_killed(w: World, point: str = point) -> None:
        _switch_acts(w, w.machine_dies_at(point, "run", w.hello), boot=True)


@row("6b", "kill -9 of CLI and guardian, and the OS timer acts before the switch would", speed=10)
def timer(w: World) -> None:
    command = w.begin("run", w.lasting())
    command.until("started")
    died_at = w.power_cut()
    assert w.do("gc", "--local").code() == 0
    w.keeps("C2, a timer of at most 5 min", died_at, w.promise.guardian())
    assert w.states() == {"gone"}


@row("7a", "the machine dies while the slice is CREATING", speed=100, provision_s=10)
def dies_creating(w: World) -> None:
    """At a speed that leaves no command the time to show a sign of life; here none does."""
    w.begin("run", w.hello)
    w.until_alive("CREATING")
    died_at = w.power_cut()
    w.until_absent()
    w.keeps("C3'", died_at, w.promise.creating(10))
    _next_command(w)


@row("7a'", "the machine dies while `up` waits for its slice, which is CREATING", provision_s=5)
def up_dies_creating(w: World) -> None:
    """Nobody holds it yet: the switch counts the silence of its command, as of a run."""
    w.begin("up", "alice", "--zone", "us-central1-a")
    w.until_alive("CREATING")
    died_at = w.power_cut()
    w.until_absent()
    w.keeps("C3'", died_at, w.promise.creating(5))
    _next_command(w)


@row("7b", "the machine dies during the setup")
def dies_setup(w: World) -> None:
    command = w.begin(
        "run", w.job("name: work\ntpu: {zone: us-central1-a}\nsetup: echo setting up; sleep 300\ncommand: ls\n")
    )
    command.until("setting up")
    _switch_acts(w, w.power_cut(), boot=True)


@row("7c", "the machine dies while the job runs")
def dies_running(w: World) -> None:
    command = w.begin("run", w.lasting())
    command.until("started")
    w.until_armed()
    _switch_acts(w, w.power_cut(), boot=False)


@row("7d", "the machine dies while the artifacts are collected")
def dies_collecting(w: World) -> None:
    _switch_acts(w, w.machine_dies_at("StartCollection:1:after", "run", w.hello), boot=True)


@row("7e", "the machine dies with a detached job on the VM", speed=90)
def dies_detached(w: World) -> None:
    assert w.do("submit", w.lasting()).code() == 0
    w.power_cut()
    w.finish()
    w.until_absent()
    w.keeps("C3 detached, from the end of the job", w.job_ended_at, w.promise.detached())
    _next_command(w)


@row("8a", "the machine returns before the switch acts", speed=10)
def returns_early(w: World) -> None:
    command = w.begin("run", w.lasting())
    command.until("started")
    w.power_cut()
    back_at = time.time()
    assert w.do("list").code() == 0
    w.keeps("C1 from the return on", back_at, w.promise.guardian())
    assert w.states() == {"gone"}


@row("8b", "the machine returns long after the switch acted")
def returns_late(w: World) -> None:
    command = w.begin("run", w.lasting())
    command.until("started")
    w.until_armed()
    died_at = w.power_cut()
    w.until_absent()
    w.keeps("C3", died_at, w.promise.switch())
    assert w.states() == {"ready"}  # nobody has looked yet
    _next_command(w)


def _switch_acts(w: World, died_at: float, *, boot: bool) -> None:
    w.until_absent()
    w.keeps("C3", died_at, w.promise.switch(boot=boot))
    _next_command(w)


def _next_command(w: World) -> None:
    """Whatever the ledger still owes, the next command sees that it is gone, and says so."""
    after = w.do("status")
    assert after.code() == 0, after.err
    assert w.states() == {"gone"}
