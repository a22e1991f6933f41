"""Rows 61-65: programs that use the Python API, forked or with threads, and sweeps, whose slices go from run to run."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil

from tests.cli_fixture import Command
from tests.faults.world import World, row
from tests.waiting import until

NOTEBOOK = Path(__file__).parent.with_name("notebook.py")


@row("61a", "kill -9 of a Python program in a run; its forked children live")
def forked_in_run(w: World) -> None:
    program = _begin(w, "forks during its run", w.long_job())
    program.until("forked")
    _killed(w, program)


@row("61b", "kill -9 of a Python program inside `with client.slice()`; its forked children live")
def forked_in_block(w: World) -> None:
    program = _begin(w, "forks in a with block")
    program.until("forked")
    _killed(w, program)


@row("61c", "kill -9 of a Python program while the slice is CREATING; its forked children live", provision_s=600)
def forked_in_create(w: World) -> None:
    program = _begin(w, "forks during the create", w.long_job())
    program.until("forked")
    w.until_alive("CREATING")
    until(lambda: w.states() == {"creating"}, "its create call was answered")
    _killed(w, program)


@row("62a", "kill -9 of a Python program with a run in a thread")
def in_thread(w: World) -> None:
    program = _begin(w, "runs in threads", w.long_job())
    program.until("started")
    _killed(w, program)


@row("62b", "kill -9 of a Python program with two runs in two threads", history={"at_most": 2})
def in_two_threads(w: World) -> None:
    program = _begin(w, "runs in threads", w.long_job(), w.long_job())
    until(lambda: program.out.count("started") == 2 or program.ended, "both runs")
    _killed(w, program)


@row("63a", "Ctrl-C in a notebook's cell; the kernel lives on")
def interrupted_cell(w: World) -> None:
    program = _begin(w, "runs in a cell", w.long_job())
    program.until("started")
    pressed_at = program.press()
    program.until("Interrupted: interrupted by Ctrl-C")
    w.check_bound("C0", pressed_at, w.bounds.command())
    program.until("idle")
    until(lambda: _of_tpujob(w, program) == [], "the end of its guardian")
    assert w.states() == {"gone"} and not program.ended


@row("63b", "Ctrl-C three times in a notebook's cell; the kernel lives on")
def left_cell(w: World) -> None:
    """The guardian goes on where the cell left, though the process lives."""
    w.fault("status", "nodes.delete", caller="client", status=503)  # leaves time for three
    program = _begin(w, "runs in a cell", w.short_job)
    until(lambda: w.requests("nodes.delete", "client"), "the delete is on the wire")
    program.press_three_times()
    program.until("TeardownUnproven")
    program.until("idle")
    back_at = time.time()
    w.admin("DELETE", "faults")
    w.until_nothing_bills()
    w.check_bound("C1, from the end of the outage on", back_at, w.bounds.guardian() + w.bounds.seconds("retry"))
    until(lambda: w.states() == {"gone"}, "the proof")
    until(lambda: _of_tpujob(w, program) == [], "the end of its guardian")
    assert not program.ended


def _begin(w: World, what: str, *jobs: str) -> Command:
    return w.begin(what, *jobs, program=NOTEBOOK)


def _killed(w: World, program: Command) -> None:
    """The process alone is killed; its children stay, and no further command runs."""
    children = [psutil.Process(int(pid)) for pid in re.findall(r"child (\d+)", program.out)]
    died_at = program.press(signal.SIGKILL)
    program.code()
    w.until_nothing_bills()
    w.check_bound("C1", died_at, w.bounds.guardian())
    until(lambda: w.states() == {"gone"}, "the proof")
    assert all(child.is_running() for child in children), "they did not keep it from anything"
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    w.until_no_process()
    deletes = [call for call in w.requests("nodes.delete") if "-probe" not in call["path"]]
    assert {call["caller"] for call in deletes} == {"client"}
    assert w.do("status").code() == 0


def _of_tpujob(w: World, program: Command) -> list[psutil.Process]:
    return [process for process in w.local() if process.pid != program.process.pid]


TWO = {"at_most": 2}  # slices at the same time


def _sweep(w: World, command: str, parallel: int = 2) -> str:
    head = f"name: sweep\nparallel: {parallel}\nmatrix: {{n: [1, 2, 3]}}\n"
    tpu = "tpu: {accelerator: v5litepod-8, zone: us-central1-a}\n"
    return w.job(f"{head}{tpu}env: {{N: '${{params.n}}'}}\ncommand: {command}\n")


def _two_runs(w: World) -> Command:
    command = w.begin("run", _sweep(w, "echo started; sleep 300"))
    until(lambda: command.err.count("worker0 | started") == 2 or command.ended, "both runs")
    return command


@row("64a", "kill -9 of a sweep while two of its jobs run", history=TWO)
def during_two_runs(w: World) -> None:
    _gone(w, _two_runs(w).press(signal.SIGKILL))


@row("64b", "kill -9 of a sweep between two jobs on one slice")
def between_runs(w: World) -> None:
    """The job has ended, and the next one has not begun: the slice has no run, and is claimed by the process alone."""
    _gone(w, w.crash("Make:1:after", "run", _sweep(w, "echo done", parallel=1)))


@row("64c", "kill -9 of a sweep while its next job takes the slice over")
def while_taking_over(w: World) -> None:
    _gone(w, w.crash("SetLabels:1:after", "run", _sweep(w, "echo done", parallel=1)))


@row("64d", "kill -9 of a sweep and its guardian between two jobs, and the watchdog acts")
def both_killed_between_runs(w: World) -> None:
    died_at = w.power_cut_at("Make:1:after", "run", _sweep(w, "echo done", parallel=1))
    w.until_absent()
    w.check_bound("C3", died_at, w.bounds.watchdog(boot=True))
    assert w.do("list").code() == 0 and w.states() == {"gone"}


@row("65a", "Ctrl-C in a sweep of two slices", history=TWO)
def interrupted(w: World) -> None:
    command = _two_runs(w)
    pressed_at = command.press()
    assert command.code() == 130
    w.check_bound("C0", pressed_at, w.bounds.command())
    assert command.err.count("SIGINT") == 1 and w.states() == {"gone"}


@row("65b", "Ctrl-C in a sweep three times, while the API does not delete", history=TWO)
def left(w: World) -> None:
    """The guardians go on where the command left."""
    command = _two_runs(w)
    w.fault("status", "nodes.delete", caller="client", status=503)
    for count in (1, 2, 3):
        command.press()
        until(lambda count=count: command.err.count("SIGINT") >= min(count, 2) or command.ended, f"Ctrl-C {count}")
    assert command.code() == 75, command.err
    assert command.err.count("NOT VERIFIED GONE") >= 2
    w.admin("DELETE", "faults")
    w.until_no_process()
    assert w.alive() == [] and w.states() == {"gone"}


def _gone(w: World, died_at: float) -> None:
    """Only the command is dead, and no other command is typed. The sweep is not taken for one that goes on."""
    w.until_no_process()
    w.check_released("C1", died_at, w.bounds.guardian())
    status = w.do("status", "--json")
    assert status.code() == 0 and json.loads(status.out)["sweeps"] == []
