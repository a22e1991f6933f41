"""Rows 44-49: a ledger that is deleted, full, damaged, locked, too new, or used by two at once."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import Any

from tests.cli_fixture import Command
from tests.fakes.leases import NEWER, execute
from tests.faults.world import SHORT_LABEL, World, row

BY_HAND = (
    "a damaged ledger is not moved aside automatically: the command says so and creates nothing, `tpujob gc` needs none"
)


@row("44a", "the ledger is deleted while the job runs")
def deleted(w: World) -> None:
    run = _started(w)
    _delete_ledger(w)
    w.finish()
    assert run.code() in (0, 75), run.err
    assert "Traceback" not in run.err
    w.check_bound("C0", w.job_ended_at, w.bounds.command())


@row("44b", "the ledger is lost with the machine, the watchdog is dead, and gc runs elsewhere", startup_script=False)
def lost(w: World) -> None:
    _started(w, SHORT_LABEL)
    w.power_cut()
    claimed_until = w.claimed_until()
    _delete_ledger(w)
    w.gc_after(claimed_until)
    w.check_bound("C10, from the label's end on", claimed_until, w.bounds.collected())


@row("45a", "the disk is full when the intent is recorded")
def full_at_intent(w: World) -> None:
    refused = w.do("run", w.short_job, patched={"disk full": "insert into lease"})
    assert refused.code() == 70 and "disk" in refused.err, refused.err
    assert w.lived() == 0 and not w.requests("nodes.create") and w.leases() == []


@row("45b", "the disk is full from the teardown on")
def full_at_down(w: World) -> None:
    run = w.do("run", w.short_job, patched={"disk full": "down"})
    assert run.code() == 0, run.err
    assert "the teardown goes on without it" in run.err
    w.check_bound("C0", w.job_ended_at, w.bounds.command())
    w.until_no_process()  # the disk of the guardian is not full: it looks, and records what it finds
    assert w.states() == {"gone"}
    listed = w.do("list")
    assert "\tsucceeded\t" in listed.out, "what the command knew of the end is not lost"


@row("46a", "the ledger is overwritten", limit=BY_HAND, startup_script=False)
def damaged(w: World) -> None:
    """Nothing is created. gc deletes the slice; the watchdog, which would too, is disabled here."""
    _started(w, SHORT_LABEL)
    w.power_cut()
    claimed_until = w.claimed_until()
    _delete_ledger(w)
    (w.directory / "state" / "ledger.sqlite3").write_bytes(b"not a database" * 1000)
    refused = w.do("run", w.short_job)
    assert refused.code() == 70 and "move the damaged file aside" in refused.err, refused.err
    assert "Traceback" not in refused.err and w.lived() == 1
    w.gc_after(claimed_until)
    w.check_bound("C10, from the label's end on", claimed_until, w.bounds.collected())
    _delete_ledger(w)
    assert w.do("status").code() == 0


@row("46b", "the ledger's write-ahead log is cut off", startup_script=False)
def truncated(w: World) -> None:
    """The newest entries are lost; the labels still hold what they said."""
    _started(w, SHORT_LABEL)
    w.power_cut()
    claimed_until = w.claimed_until()
    log = w.directory / "state" / "ledger.sqlite3-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    after = w.do("status")
    assert after.code() == 0 and "Traceback" not in after.err, after.err
    assert "; not in this machine's ledger" in after.out, "what the ledger forgot is still shown"
    w.gc_after(claimed_until)
    w.check_bound("C10, from the label's end on", claimed_until, w.bounds.collected())
    assert w.do("status").code() == 0


@row("47", "the ledger is locked by another process during the teardown")
def locked(w: World) -> None:
    run = _started(w)
    with _ledger(w) as db:
        db.execute("begin immediate")
        pressed_at = time.time()
        run.press()
        w.until_absent()
        w.check_bound("C0, after waiting for the lock for 5 s", pressed_at, w.bounds.command() + 5)
        assert "the teardown goes on without it" in run.err
        db.execute("rollback")
    assert run.code() == 130, run.err
    w.until_no_process()
    assert w.states() == {"gone"}


@row("48", "a newer tpujob takes over the ledger while the job runs, and then kill -9", startup_script=False)
def newer(w: World) -> None:
    """What the older one has created is ended by its guardian; the watchdog, which would too, is disabled here."""
    run = _started(w)
    execute(w.directory / "state" / "ledger.sqlite3", *NEWER[:3], *NEWER[-2:])
    refused = w.do("run", w.short_job)
    assert refused.code() == 64 and "install tpujob 9.9.9" in refused.err, refused.err
    died_at = run.press(9)
    w.until_no_process()
    w.check_bound("C1", died_at, w.bounds.guardian())
    assert w.states() == {"gone"} and w.lived() == 1


@row("49", "the run is canceled from another terminal")
def canceled(w: World) -> None:
    run = _started(w)
    asked_at = time.time()
    cancel = w.do("cancel", "work")
    assert cancel.code() == 0, cancel.err
    assert run.code() == 71 and "canceled by `tpujob cancel`" in run.err, run.err
    w.check_released("C0", asked_at, w.bounds.command())
    assert w.do("cancel", "work").code() == 0


def _started(w: World, patched: dict[str, Any] | None = None) -> Command:
    run = w.begin("run", w.long_job(), patched=patched)
    run.until("started")
    return run


def _delete_ledger(w: World) -> None:
    for path in (w.directory / "state").glob("ledger.sqlite3*"):
        path.unlink()


@contextlib.contextmanager
def _ledger(w: World):  # type: ignore[no-untyped-def]
    with contextlib.closing(
        sqlite3.connect(w.directory / "state" / "ledger.sqlite3", isolation_level=None, timeout=10)
    ) as db:
        yield db
