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


@row("40b", "the laptop sleeps after a submit", speed=90)
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


@row("59a", "a worker falls silent while its results are collected")
def collect_hangs(w: World) -> None:
    """They may be had once it is back: it is held for them, and a person may end that."""
    run = w.pause("StartCollection:1:before", "run", w.hello, bend={"orchestrator.remote.transfer.collect:STALL_S": 3.0})
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "frozen"})
    run.process.send_signal(signal.SIGCONT)
    assert run.code() == 65 and "RESULTS NOT AT HOME" in run.err, run.err
    assert w.alive() and w.leases()[-1]["hold_until"]
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "well"})
    again = w.do("collect", "work")
    collected_at = time.time()
    assert again.code() == 0 and "absent (checked" in again.out, again.err
    w.keeps("C0, from their arrival on", collected_at, w.promise.own())
    assert w.states() == {"gone"} and list(w.directory.glob("runs/*/worker0/artifacts/result.txt"))


@row("59b", "there is no room for the results, the machine dies, and nobody comes for them", speed=90)
def nobody_comes_for_results(w: World) -> None:
    """The hold is in the labels: its switch ends it, and not before its time."""
    run = w.do("run", w.hello, bend={"orchestrator.remote.transfer.disk_space:SPARE_BYTES": 1 << 60})
    assert run.code() == 65 and "RESULTS NOT AT HOME" in run.err, run.err
    w.power_cut()
    held_until = float(w.leases()[-1]["hold_until"])
    w.until_absent()
    assert w.unclaimed_s(held_until) > 0, "its time was not over"
    w.keeps("C3 held, from the end of its time", held_until, w.promise.of("switch of a held slice"))
    assert w.do("collect", "work").code() == 65 and w.states() == {"gone"}


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
        run = w.begin("run", w.lasting(), bend={"orchestrator.engine.leases.obligations:RELEASE_S": 8.0})
        run.until("started")
        w.fault("garbage", caller="client", form=form)
        w.finish()
        assert run.code() == 75, run.err
        assert "Traceback" not in run.err and "a bug in tpujob" not in run.err
        w.keeps("C0", w.job_ended_at, w.promise.own())  # the deletes had their effect
        assert "gone" not in {row["state"] for row in w.leases()[-1:]}
        w.admin("DELETE", "faults")
        until(lambda: w.states() == {"gone"}, "the guardian believes the API again")
