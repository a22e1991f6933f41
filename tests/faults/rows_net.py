"""Rows 35, 38-40, 43, 56, 59, 60: outages, partitions, sleeping laptops, silent workers, garbage."""

from __future__ import annotations

import signal
import time

import psutil

from orchestrator.promises import seconds
from tests.cli_fixture import signal_all
from tests.faults.row import row
from tests.faults.world import World
from tests.waiting import until

TTL, GRACE = seconds("ttl"), seconds("grace")  # on Google Cloud
OUT_S = 1.3 * TTL
LOOKS = int((TTL + GRACE) / 60) + 5  # of a switch, so many in a time to live and the grace after it


@row("35", "the API is out for everybody while the job runs")
def outage(w: World) -> None:
    _survives(w, "any")


@row("38", "the client is cut off from the API, but not from its workers")
def partition(w: World) -> None:
    _survives(w, "client")


def _survives(w: World, caller: str) -> None:
    """Longer than the TTL, and nobody deletes on the return of the API what is alive."""
    run = w.begin("run", w.lasting())
    run.until("started")
    w.until_armed()
    w.fault("drop", "*", caller=caller, when={"until_s": OUT_S / w.speed})
    w.step_aside()
    w.until_answered("client")
    w.until_answered("vm", 5)
    w.finish()
    assert run.code() == 0, run.err
    assert w.first_delete() >= w.job_ended_at and w.lived() == 1
    w.keeps("C0", w.job_ended_at, w.promise.own())
    assert w.states() == {"gone"}


@row("39a", "SSH is dead for longer than the TTL, the API lives")
def ssh_dead(w: World) -> None:
    run = w.begin("run", w.lasting())
    run.until("started")
    w.until_armed()
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "refusing"})
    cut_at = time.time()
    w.step_aside()
    assert run.code() == 71, run.err
    w.keeps("C4", cut_at, w.promise.switch())
    assert w.states() == {"gone"}


@row("39b", "SSH is dead for less than the TTL, and comes back")
def ssh_back(w: World) -> None:
    run = w.begin("run", w.lasting())
    run.until("started")
    w.until_armed()
    node = w.until_alive()
    w.admin("POST", f"nodes/{node}:worker", {"worker": 0, "condition": "silent"})
    w.until_answered("vm", LOOKS // 4)
    w.admin("POST", f"nodes/{node}:worker", {"worker": 0, "condition": "well"})
    w.step_aside()
    w.until_answered("vm", LOOKS)  # without a sign of life since then, it would be over
    w.finish()
    assert run.code() == 0, run.err
    w.keeps("C0", w.job_ended_at, w.promise.own())
    assert w.states() == {"gone"}


@row("40a", "the laptop sleeps with an attached run")
def sleeps_attached(w: World) -> None:
    _stands_still(w, whole_machine=True)


@row("40b", "the laptop sleeps after a submit")
def sleeps_detached(w: World) -> None:
    """Nobody dies of it: not before its job ended, long after the TTL of an attached one."""
    assert w.do("submit", w.lasting()).code() == 0
    asleep = w.freeze()
    w.step_aside()
    w.until_answered("vm", LOOKS)
    w.finish()
    w.until_absent()
    w.keeps("C3 detached, from the end of the job", w.job_ended_at, w.promise.detached())
    signal_all(asleep, signal.SIGCONT)
    w.until_alone()
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("43", "the slice is deleted by somebody else in the middle of the job")
def vanishes(w: World) -> None:
    run = w.begin("run", w.lasting())
    run.until("started")
    w.admin("POST", f"nodes/{w.until_alive()}:vanish", {})
    at = time.time()
    assert run.code() == 71 and "deleted by somebody else" in run.err, run.err
    w.keeps("it is gone already", at, w.promise.absent_s)
    assert w.states() == {"gone"}


@row("56", "the CLI alone stands still for long")
def stands_still(w: World) -> None:
    _stands_still(w, whole_machine=False)


def _stands_still(w: World, *, whole_machine: bool) -> None:
    run = w.begin("run", w.lasting())
    run.until("started")
    w.until_armed()
    asleep = w.freeze() if whole_machine else [psutil.Process(run.process.pid)]
    signal_all(asleep, signal.SIGSTOP)
    stopped_at = time.time()
    w.until_absent()
    w.keeps("C3", stopped_at, w.promise.switch())
    signal_all(asleep, signal.SIGCONT)
    assert run.code() == 71, run.err
    w.until_alone()
    assert w.states() == {"gone"}


@row("59", "a worker falls silent while its artifacts are collected")
def collect_hangs(w: World) -> None:
    run = w.pause("Collect:1:before", "run", w.hello, bend={"orchestrator.engine.work:COLLECT_S": 3.0})
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "frozen"})
    woke_at = time.time()
    run.process.send_signal(signal.SIGCONT)
    assert run.code() == 65, run.err
    w.keeps("C0 after 3 s of collecting, for 30 min", woke_at, 3 + w.promise.own())
    assert w.states() == {"gone"}


for form in ("truncated", "html", "types", "large", "empty"):

    @row("60", f"the API's replies are {form}")
    def garbage(w: World, form: str = form) -> None:
        """One such reply to every question, then for ever: never a traceback, never a false proof."""
        w.fault("garbage", caller="client", form=form, when={"calls": "2,5,8,11"})
        run = w.do("run", w.hello)
        assert run.code() in (0, 69, 70), run.err
        assert "Traceback" not in run.err and "a bug in tpujob" not in run.err
        w.until_alone()
        assert w.states() <= {"gone"} and not w.alive()
        w.admin("DELETE", "faults")
        run = w.begin("run", w.lasting(), bend={"orchestrator.engine.tenure:RELEASE_S": 8.0})
        run.until("started")
        w.fault("garbage", caller="client", form=form)
        w.finish()
        assert run.code() == 75, run.err
        assert "Traceback" not in run.err and "a bug in tpujob" not in run.err
        w.keeps("C0", w.job_ended_at, w.promise.own())  # the deletes had their effect
        assert "gone" not in {row["state"] for row in w.leases()[-1:]}
        w.admin("DELETE", "faults")
        until(lambda: w.states() == {"gone"}, "the guardian believes the API again")
