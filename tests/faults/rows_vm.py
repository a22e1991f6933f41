"""Rows 28-34, 41, 42: revoked rights, switches that cannot work, workers and nodes in trouble, clocks that are wrong."""

from __future__ import annotations

import json
import time

from tests.faults.row import row
from tests.faults.world import PATCHED, SHORT_LABEL, SPEED, World

VM_CLOCK = "an emulated VM has the clock of this machine; tests/unit/vm/test_watchdog.py sets it under virtual time"
DAY_S = 86400


@row("28", "the client's rights are revoked while the job runs")
def revoked(w: World) -> None:
    """C8: the CLI can delete nothing and says so; the switch has rights of its own."""
    run = w.begin("run", w.lasting(), bend={"orchestrator.engine.leases.obligations:RELEASE_S": 900.0})
    run.until("started")
    w.until_armed()
    w.fault("status", "*", caller="client", status=403)
    w.finish()
    w.until_absent()
    w.keeps("C8", w.first_delete(), w.promise.switch())
    run.leave()
    assert run.code() == 75 and "NOT VERIFIED GONE" in run.err
    assert w.states() == {"down"}
    w.admin("DELETE", "faults")
    w.until_alone()
    assert w.states() == {"gone"}


@row("29", "the VM's service account may not delete", vm_may=["get"])
def may_not_delete(w: World) -> None:
    _refused(w, "may not delete")


@row("30", "the VM has no route to the API", vm_route=False)
def no_route(w: World) -> None:
    _refused(w, "no route")


@row("31", "the startup-script never runs", startup_script=False)
def never_boots(w: World) -> None:
    _refused(w, "not said anything")


def _refused(w: World, why: str) -> None:
    """A detached run that could not end itself does not start, and what was made for it is gone."""
    w.step_aside()
    refused = w.do("submit", w.lasting())
    assert refused.code() == 74, refused.err
    w.keeps("C0 after waiting for the switch", 0.0, w.promise.unarmed())
    w.until_alone()
    assert w.states() == {"gone"}
    assert not (w.directory / "ended.0").exists()
    assert why in refused.err, refused.err


@row("31b", "guest attributes are kept no more often than Google documents", attribute_limits=SPEED)
def attributes_limited(w: World) -> None:
    """Every word of a switch counts, and the client does not miss it: the run is detached, and ends."""
    submitted = w.do("submit", w.lasting())
    assert submitted.code() == 0, submitted.err
    w.finish()
    w.until_absent()
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("31'", "the startup-script never runs, and the run is attached", startup_script=False)
def never_boots_attached(w: World) -> None:
    """Warned, and allowed: the guardian is there."""
    run = w.begin("run", w.lasting())
    w.step_aside()
    run.until_warned("not armed")
    w.finish()
    assert run.code() == 0, run.err
    w.keeps("C0", w.job_ended_at, w.promise.own())
    assert w.states() == {"gone"}


@row("32", "the job kills the switch")
def switch_killed(w: World) -> None:
    """What restarts it stays: systemd, and on an emulated VM a shell whose words contain its name, too."""
    command = w.begin(
        "run",
        w.job(
            "name: work\ntpu: {zone: us-central1-a}\ncommand: |\n"
            '  until pkill -9 -f "^[^ ]*python3 -IS $TPUJOB_WATCHDOG_DIR/watchdog.py"; do sleep 0.1; done\n'
            "  echo killed it\n  sleep 600\n"
        ),
    )
    command.until("killed it")
    died_at = w.power_cut()
    w.until_absent()
    w.keeps("C3 and 5 s for its restart", died_at, w.promise.switch(boot=True) + 5)
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("33", "worker 0 hangs and the machine dies: another worker acts")
def first_worker_hangs(w: World) -> None:
    command = w.begin("run", w.lasting(accelerator="v5litepod-16"), bend=SHORT_LABEL)
    command.until("started")
    w.until_armed()
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "frozen"})
    w.power_cut()
    claimed_until = w.claimed_until()
    w.until_absent()
    w.keeps("C3, from the label's end on", claimed_until, w.promise.after_label(worker=1))
    deleting = {call["caller"] for call in w.requests("nodes.delete") if not call["path"].endswith("-probe")}
    assert deleting == {"vm"}
    assert w.do("status").code() == 0 and w.states() == {"gone"}


for number, days in (("34a", -1), ("34b", 1)):

    @row(
        number,
        f"the client's clock is {abs(days)} day {'behind' if days < 0 else 'ahead'}",
        history={"ahead_s": days * DAY_S},
    )
    def wrong_clock(w: World, days: int = days) -> None:
        """Nobody is killed early, and the bound is what it was: labels are the server's time, beats need none."""
        _set_clock(w, days)
        run = w.begin("run", w.lasting())
        run.until("started")
        w.until_armed()
        w.until_answered("vm", 5)
        w.finish()
        assert run.code() == 0, run.err
        assert w.states() == {"gone"} and w.lived() == 1
        run = w.begin("run", w.lasting())
        run.until("started")
        w.until_armed()
        died_at = w.power_cut()
        w.until_absent()
        w.keeps("C3", died_at, w.promise.switch())
        assert w.do("status").code() == 0 and w.states() == {"gone"}


@row(
    "34c",
    "the client's clock is 1 day ahead, its machine dies, and gc reads the label",
    startup_script=False,
)
def wrong_label_clock(w: World) -> None:
    """With the switch away only the label says until when the slice is claimed."""
    _set_clock(w, 1)
    run = w.begin("run", w.lasting(), bend=SHORT_LABEL)
    run.until("started")
    w.power_cut()
    claimed_until = w.claimed_until()
    w.gc_after(claimed_until)
    w.keeps("C7, from the label's end on", claimed_until, w.promise.collected())


@row("34d", "the VM's clock is a day off", limit=VM_CLOCK)
def vm_clock(w: World) -> None:
    """What can be shown here: the server's clock is all that counts, for an end in the far future as for one just now."""
    w.fault("clock", "nodes.get", caller="vm", seconds=-DAY_S)
    run = w.begin("run", w.lasting())
    run.until("started")
    w.until_armed()
    died_at = w.power_cut()
    w.until_absent()
    w.keeps("C3: signs of life need no clock", died_at, w.promise.switch())
    assert w.do("status").code() == 0 and w.states() == {"gone"}


def _set_clock(w: World, days: int) -> None:
    w.env["PYTHONPATH"] = f"{PATCHED / 'clock'}:{w.env['PYTHONPATH']}"
    w.env["TPUJOB_TEST_CLOCK_S"] = str(days * DAY_S)


@row("41", "the slice is preempted in the middle of the job")
def preempted(w: World) -> None:
    run = w.begin("run", w.lasting())
    run.until("started")
    w.admin("POST", f"nodes/{w.until_alive()}:preempt", {})
    at = time.time()
    assert run.code() == 71 and "taken away" in run.err, run.err
    w.keeps("C0 once it was noticed, within 15 s", at, w.promise.own() + 15)
    assert w.states() == {"gone"}


for state in ("TERMINATED", "REPAIRING"):

    @row("42a", f"the node is {state}, and its hosts are off")
    def hosts_off(w: World, state: str = state) -> None:
        """TERMINATED is an end; REPAIRING is borne for as long as an unreachable worker is, ten minutes (here 10 s)."""
        run = w.begin("run", w.lasting(), bend={"orchestrator.engine.jobs.monitor:SILENT_S": 10.0})
        run.until("started")
        w.admin("POST", f"nodes/{w.until_alive()}:put", {"state": state})
        at = time.time()
        assert run.code() == 71, run.err
        w.keeps("C0 once it was noticed, within 25 s", at, w.promise.own() + 25)
        assert w.states() == {"gone"}


for state in ("UNKNOWN", "HIDDEN"):

    @row("42b", f"the node is {state}, and its hosts go on")
    def hosts_on(w: World, state: str = state) -> None:
        """No reason to end a job that runs."""
        run = w.begin("run", w.lasting())
        run.until("started")
        w.admin("POST", f"nodes/{w.until_alive()}:put", {"state": state})
        assert json.loads(w.do("status", "--json").out)["slices"][0]["state"] == state
        w.until_answered("client", 3)  # it has looked at the node
        w.finish()
        assert run.code() == 0, run.err
        w.keeps("C0", w.job_ended_at, w.promise.own())
        assert w.states() == {"gone"}
