"""Rows 1-8: processes and machines that die, at every kind of moment."""

import time

from tests.cli_fixture import Command
from tests.faults.world import World, row
from tests.waiting import until


@row("1", "kill -9 of the CLI before the intent is written")
def before_intent(w: World) -> None:
    w.crash("Record:2:before", "run", w.short_job)
    assert w.leases() == [] and w.lived() == 0
    assert w.do("list").code() == 0 and w.lived() == 0


@row("2", "kill -9 between the intent and the create call")
def before_create(w: World) -> None:
    w.crash("Create:1:before", "run", w.short_job)
    w.until_no_process()
    assert w.lived() == 0 and w.states() == {"gone"}


@row("3", "kill -9 after the create call was sent and before its reply")
def during_create(w: World) -> None:
    w.fault("hang", "nodes.create", seconds=600, effect=True)
    command = w.begin("run", w.short_job)
    w.until_alive()
    command.process.kill()
    died_at = time.time()
    w.until_no_process()
    w.check_released("C1", died_at, w.bounds.guardian())


@row("4a", "kill -9 while the slice is CREATING", provision_s=600)
def while_creating(w: World) -> None:
    command = w.begin("run", w.short_job)
    w.until_alive("CREATING")
    until(lambda: w.states() == {"creating"}, "its create call was answered")
    _killed(w, command.press(9))


@row("4b", "kill -9 during the setup")
def during_setup(w: World) -> None:
    command = _setting_up(w)
    _killed(w, command.press(9))


@row("4c", "kill -9 while the job runs")
def during_job(w: World) -> None:
    command = w.started()
    _killed(w, command.press(9))


@row("4d", "kill -9 while the artifacts are collected")
def during_collect(w: World) -> None:
    _killed(w, w.crash("StartCollection:1:before", "run", w.short_job))


@row("4e", "kill -9 in the middle of the deletion", delete_s=1.0)
def during_delete(w: World) -> None:
    _killed(w, w.crash("Delete:1:after", "run", w.short_job))


@row("5", "kill -9 after the proof, before it is recorded")
def before_gone(w: World) -> None:
    died_at = w.crash("ListSlices:2:after", "run", w.short_job)
    w.until_no_process()
    w.check_released("nothing is left to bill", died_at, 0.0)


def _setting_up(w: World) -> Command:
    command = w.begin(
        "run", w.job("name: work\ntpu: {zone: us-central1-a}\nsetup: echo setting up; sleep 300\ncommand: ls\n")
    )
    command.until("setting up")
    return command


def _killed(w: World, died_at: float) -> None:
    """Only the command is dead, and no other command is typed."""
    w.until_no_process()
    w.check_released("C1", died_at, w.bounds.guardian())
    assert w.do("status").code() == 0


for point in (
    "Workers:1:before",
    "StartPhase:1:after",
    "WaitForWorkers:1:after",
    "StartCollection:1:before",
    "Delete:1:before",
):

    @row("6a", f"kill -9 of CLI and guardian at {point}, and the watchdog acts")
    def both_killed(w: World, point: str = point) -> None:
        _watchdog_deletes(w, w.power_cut_at(point, "run", w.short_job), boot=True)


@row("6b", "kill -9 of CLI and guardian, and the OS timer acts before the watchdog would", speed=10)
def timer(w: World) -> None:
    w.started()
    died_at = w.power_cut()
    assert w.do("gc", "--local").code() == 0
    w.check_released("C2, a timer of at most 5 min", died_at, w.bounds.guardian())


@row("7a", "the machine dies while the slice is CREATING", speed=100, provision_s=10)
def dies_creating(w: World) -> None:
    """At this speed no command would have time for a heartbeat; none sends one here."""
    w.begin("run", w.short_job)
    w.until_alive("CREATING")
    died_at = w.power_cut()
    w.until_absent()
    w.check_bound("C3'", died_at, w.bounds.creating(10))
    _next_command(w)


@row("7a'", "the machine dies while `up` waits for its slice, which is CREATING", provision_s=5)
def up_dies_creating(w: World) -> None:
    """The slice is not held yet: the watchdog counts the silence of its command, as for a run."""
    w.begin("up", "alice", "--zone", "us-central1-a")
    w.until_alive("CREATING")
    died_at = w.power_cut()
    w.until_absent()
    w.check_bound("C3'", died_at, w.bounds.creating(5))
    _next_command(w)


@row("7b", "the machine dies during the setup")
def dies_setup(w: World) -> None:
    _setting_up(w)
    _watchdog_deletes(w, w.power_cut(), boot=True)


@row("7d", "the machine dies while the artifacts are collected")
def dies_collecting(w: World) -> None:
    _watchdog_deletes(w, w.power_cut_at("StartCollection:1:after", "run", w.short_job), boot=True)


@row("7e", "the machine dies with a detached job on the VM", speed=90)
def dies_detached(w: World) -> None:
    assert w.do("submit", w.long_job()).code() == 0
    w.power_cut()
    w.finish()
    w.until_absent()
    w.check_bound("C3 detached, from the end of the job", w.job_ended_at, w.bounds.detached())
    _next_command(w)


@row("8a", "the machine returns before the watchdog acts", speed=10)
def returns_early(w: World) -> None:
    w.started()
    w.power_cut()
    back_at = time.time()
    assert w.do("list").code() == 0
    w.check_released("C1 from the return on", back_at, w.bounds.guardian())


@row("7c", "the machine dies while the job runs")
@row("8b", "the machine returns long after the watchdog acted")
def returns_late(w: World) -> None:
    w.started()
    w.until_armed()
    died_at = w.power_cut()
    w.until_absent()
    w.check_bound("C3", died_at, w.bounds.watchdog())
    assert w.states() == {"ready"}  # no command has looked yet
    _next_command(w)


def _watchdog_deletes(w: World, died_at: float, *, boot: bool) -> None:
    w.until_absent()
    w.check_bound("C3", died_at, w.bounds.watchdog(boot=boot))
    _next_command(w)


def _next_command(w: World) -> None:
    """The next command proves that the slice is gone, and records it."""
    after = w.do("status")
    assert after.code() == 0, after.err
    assert w.states() == {"gone"}
