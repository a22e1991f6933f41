"""Rows 35, 38-40, 43, 56, 59, 60: outages, partitions, sleeping laptops, silent workers, garbage."""

import signal
import time

import psutil

from orchestrator.drill.bounds import seconds
from tests.cli_fixture import signal_all
from tests.faults.world import World, row
from tests.waiting import until

TTL, GRACE = seconds("ttl"), seconds("grace")  # on Google Cloud
OUT_S = 1.3 * TTL
LOOKS = int((TTL + GRACE) / 60) + 5  # polls of a watchdog in a time to live and the grace after it


@row("35", "the API is unreachable for all callers while the job runs")
def outage(w: World) -> None:
    _outage_survived(w, "any")


@row("38", "the client is cut off from the API, but not from its workers")
def partition(w: World) -> None:
    _outage_survived(w, "client")


def _outage_survived(w: World, caller: str) -> None:
    """The outage outlasts the TTL, and no layer deletes the claimed slice when the API is back."""
    run = w.started()
    w.until_armed()
    w.fault("drop", "*", caller=caller, when={"until_s": OUT_S / w.speed})
    w.release_slot()
    w.until_answered("client")
    w.until_answered("vm", 5)
    w.finish()
    assert run.code() == 0, run.err
    assert w.first_delete_at() >= w.job_ended_at and w.lived() == 1
    w.check_released("C0", w.job_ended_at, w.bounds.command())


@row("39a", "SSH is dead for longer than the TTL, the API lives")
def ssh_dead(w: World) -> None:
    run = w.started()
    w.until_armed()
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "refusing"})
    cut_at = time.time()
    w.release_slot()
    assert run.code() == 71, run.err
    w.check_released("C4", cut_at, w.bounds.watchdog())


@row("39b", "SSH is dead for less than the TTL, and comes back")
def ssh_back(w: World) -> None:
    run = w.started()
    w.until_armed()
    node = w.until_alive()
    w.admin("POST", f"nodes/{node}:worker", {"worker": 0, "condition": "silent"})
    w.until_answered("vm", LOOKS // 4)
    w.admin("POST", f"nodes/{node}:worker", {"worker": 0, "condition": "well"})
    w.release_slot()
    w.until_answered("vm", LOOKS)  # without a heartbeat since then, the slice would be deleted
    w.finish()
    assert run.code() == 0, run.err
    w.check_released("C0", w.job_ended_at, w.bounds.command())


@row("40a", "the laptop sleeps with an attached run")
def sleeps_attached(w: World) -> None:
    _stopped(w, whole_machine=True)


@row("40b", "the laptop sleeps after a submit", speed=90)
def sleeps_detached(w: World) -> None:
    """The slice is not deleted before its job ends, long after the TTL of an attached run."""
    assert w.do("submit", w.long_job()).code() == 0
    asleep = w.freeze()
    w.release_slot()
    w.until_answered("vm", LOOKS)
    w.finish()
    w.until_absent()
    w.check_bound("C3 detached, from the end of the job", w.job_ended_at, w.bounds.detached())
    signal_all(asleep, signal.SIGCONT)
    w.until_no_process()
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("43", "the slice is deleted externally in the middle of the job")
def vanishes(w: World) -> None:
    run = w.started()
    w.admin("POST", f"nodes/{w.until_alive()}:vanish", {})
    at = time.time()
    assert run.code() == 71 and "deleted by another client" in run.err, run.err
    w.check_released("it is gone already", at, w.bounds.absent_s)


@row("56", "only the command is stopped for long")
def stands_still(w: World) -> None:
    _stopped(w, whole_machine=False)


def _stopped(w: World, *, whole_machine: bool) -> None:
    run = w.started()
    w.until_armed()
    asleep = w.freeze() if whole_machine else [psutil.Process(run.process.pid)]
    signal_all(asleep, signal.SIGSTOP)
    stopped_at = time.time()
    w.until_absent()
    w.check_bound("C3", stopped_at, w.bounds.watchdog())
    signal_all(asleep, signal.SIGCONT)
    assert run.code() == 71, run.err
    assert "is gone: tpujob was stopped for" in run.err and "; the claim ended at the last heartbeat" in run.err, (
        run.err
    )
    w.until_no_process()
    assert w.states() == {"gone"}


@row("59a", "a worker falls silent while its results are collected")
def collect_hangs(w: World) -> None:
    """The slice is held for its results, which can be collected once the worker is back."""
    run = w.pause(
        "StartCollection:1:before", "run", w.short_job, patched={"orchestrator.hosts.transfer.collection:STALL_S": 3.0}
    )
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "frozen"})
    run.process.send_signal(signal.SIGCONT)
    assert run.code() == 65 and "RESULTS NOT COLLECTED" in run.err, run.err
    assert w.alive() and w.leases()[-1]["hold_until"]
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "well"})
    again = w.do("collect", "work")
    collected_at = time.time()
    assert again.code() == 0 and "absent (checked" in again.out, again.err
    w.check_bound("C0, from their arrival on", collected_at, w.bounds.command())
    assert w.states() == {"gone"} and list(w.directory.glob("runs/*/worker0/artifacts/result.txt"))


@row("59b", "the disk is full for the results, the machine dies, and they are never collected", speed=90)
def results_never_collected(w: World) -> None:
    """The hold is in the labels: the watchdog ends it, and not before its time."""
    run = w.do("run", w.short_job, patched={"orchestrator.hosts.transfer.places:RESERVED_BYTES": 1 << 60})
    assert run.code() == 65 and "RESULTS NOT COLLECTED" in run.err, run.err
    w.power_cut()
    held_until = float(w.leases()[-1]["hold_until"])
    w.until_absent()
    assert w.unclaimed_s(held_until) > 0, "its time was not over"
    w.check_bound("C3 held, from the end of its time", held_until, w.bounds.of("watchdog of a held slice"))
    assert w.do("collect", "work").code() == 65 and w.states() == {"gone"}


for form in ("truncated", "html", "types", "large", "empty"):

    @row("60", f"the API's replies are {form}")
    def garbage(w: World, form: str = form) -> None:
        """One such reply to each question, then to all: never a traceback, never a false proof."""
        w.fault("garbage", caller="client", form=form, when={"calls": "2,5,8,11"})
        run = w.do("run", w.short_job)
        assert run.code() in (0, 69, 70), run.err
        assert "Traceback" not in run.err and "a bug in tpujob" not in run.err
        w.until_no_process()
        assert w.states() <= {"gone"} and not w.alive()
        w.admin("DELETE", "faults")
        run = w.started(patched={"orchestrator.promise.obligations:RELEASE_S": 8.0})
        w.fault("garbage", caller="client", form=form)
        w.finish()
        assert run.code() == 75, run.err
        assert "Traceback" not in run.err and "a bug in tpujob" not in run.err
        w.check_bound("C0", w.job_ended_at, w.bounds.command())  # the deletes had their effect
        assert "gone" not in {row["state"] for row in w.leases()[-1:]}
        w.admin("DELETE", "faults")
        until(lambda: w.states() == {"gone"}, "the guardian believes the API again")
