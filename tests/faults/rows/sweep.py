"""Rows 64-65: sweeps, whose slices go from run to run: killed and interrupted, within a run and between two runs."""

import json
import signal

from tests.faults.row import row
from tests.faults.world import Command, World
from tests.waiting import until

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
    _gone(w, _two_runs(w).interrupt(signal.SIGKILL))


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
    pressed_at = command.interrupt()
    assert command.code() == 130
    w.check_bound("C0", pressed_at, w.bounds.command())
    assert command.err.count("SIGINT") == 1 and w.states() == {"gone"}


@row("65b", "Ctrl-C in a sweep three times, while the API does not delete", history=TWO)
def left(w: World) -> None:
    """The guardians go on where the command left."""
    command = _two_runs(w)
    w.fault("status", "nodes.delete", caller="client", status=503)
    for count in (1, 2, 3):
        command.interrupt()
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
