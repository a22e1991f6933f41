"""Rows 28-34, 41, 42: revoked permissions, watchdogs that cannot work, failing workers and nodes, wrong clocks."""

import json
import time

from tests.faults.world import PATCHED, SHORT_LABEL, SPEED, World, row

VM_CLOCK = "an emulated VM has the clock of this machine; tests/unit/vm/test_watchdog.py sets it under virtual time"
DAY_S = 86400


@row("28", "the client's permissions are revoked while the job runs")
def revoked(w: World) -> None:
    """C8: the command can delete nothing and says so; the watchdog has permissions of its own."""
    run = w.started(patched={"orchestrator.promise.obligations:RELEASE_S": 900.0})
    w.until_armed()
    w.fault("status", "*", caller="client", status=403)
    w.finish()
    w.until_absent()
    w.check_bound("C8", w.first_delete_at(), w.bounds.watchdog())
    run.press_three_times()
    assert run.code() == 75 and "NOT VERIFIED GONE" in run.err
    assert w.states() == {"down"}
    w.admin("DELETE", "faults")
    w.until_no_process()
    assert w.states() == {"gone"}


for number, title, why, vm in (
    ("29", "the VM's service account may not delete", "may not delete", {"vm_may": ["get"]}),
    ("30", "the VM has no route to the API", "no route", {"vm_route": False}),
    ("31", "the startup-script never runs", "has published nothing", {"startup_script": False}),
):

    @row(number, title, **vm)
    def refused(w: World, why: str = why) -> None:
        """A detached run that could not end itself is refused, and its slice is gone."""
        w.release_slot()
        refused = w.do("submit", w.long_job())
        assert refused.code() == 74, refused.err
        w.check_bound("C0 after waiting for the watchdog", 0.0, w.bounds.unarmed())
        w.until_no_process()
        assert w.states() == {"gone"}
        assert not (w.directory / "ended.0").exists()
        assert why in refused.err, refused.err


@row("31b", "guest attributes are limited to the documented rate", attribute_limits=SPEED)
def attributes_limited(w: World) -> None:
    """Guest attributes of the watchdog may be lost; the run is handed over and ends all the same."""
    submitted = w.do("submit", w.long_job())
    assert submitted.code() == 0, submitted.err
    w.finish()
    w.until_absent()
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("31'", "the startup-script never runs, and the run is attached", startup_script=False)
def never_boots_attached(w: World) -> None:
    """The command warns, and goes on: there is a guardian."""
    run = w.begin("run", w.long_job())
    w.release_slot()
    run.until("not armed")
    w.finish()
    assert run.code() == 0, run.err
    w.check_released("C0", w.job_ended_at, w.bounds.command())


@row("32", "the job kills the watchdog")
def watchdog_killed(w: World) -> None:
    """What restarts the watchdog stays: systemd, or on an emulated VM the shell of the startup-script."""
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
    w.check_bound("C3 and 5 s for its restart", died_at, w.bounds.watchdog(boot=True) + 5)
    assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("33", "worker 0 hangs and the machine dies: another worker acts")
def first_worker_hangs(w: World) -> None:
    w.started(accelerator="v5litepod-16", patched=SHORT_LABEL)
    w.until_armed()
    w.admin("POST", f"nodes/{w.until_alive()}:worker", {"worker": 0, "condition": "frozen"})
    w.power_cut()
    claimed_until = w.claimed_until()
    w.until_absent()
    w.check_bound("C3, from the label's end on", claimed_until, w.bounds.after_label(worker=1))
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
        """Nothing is deleted early, and the bound is the same: labels use the time of the server, heartbeats no time at all."""
        _set_clock(w, days)
        run = w.started()
        w.until_armed()
        w.until_answered("vm", 5)
        w.finish()
        assert run.code() == 0, run.err
        assert w.states() == {"gone"} and w.lived() == 1
        w.started()
        w.until_armed()
        died_at = w.power_cut()
        w.until_absent()
        w.check_bound("C3", died_at, w.bounds.watchdog())
        assert w.do("status").code() == 0 and w.states() == {"gone"}


@row("34c", "the client's clock is 1 day ahead, its machine dies, and gc reads the label", startup_script=False)
def wrong_label_clock(w: World) -> None:
    """The watchdog is disabled, so only the label says until when the slice is claimed."""
    _set_clock(w, 1)
    w.started(patched=SHORT_LABEL)
    w.power_cut()
    claimed_until = w.claimed_until()
    w.gc_after(claimed_until)
    w.check_bound("C7, from the label's end on", claimed_until, w.bounds.collected())


@row("34d", "the VM's clock is one day off", limit=VM_CLOCK)
def vm_clock(w: World) -> None:
    """Only the clock of the server counts, for an end in the far future as for one right now."""
    w.fault("clock", "nodes.get", caller="vm", seconds=-DAY_S)
    w.started()
    w.until_armed()
    died_at = w.power_cut()
    w.until_absent()
    w.check_bound("C3: heartbeats need no clock", died_at, w.bounds.watchdog())
    assert w.do("status").code() == 0 and w.states() == {"gone"}


def _set_clock(w: World, days: int) -> None:
    w.env["PYTHONPATH"] = f"{PATCHED / 'clock'}:{w.env['PYTHONPATH']}"
    w.env["TPUJOB_TEST_CLOCK_S"] = str(days * DAY_S)


@row("41", "the slice is preempted in the middle of the job")
def preempted(w: World) -> None:
    run = w.started()
    w.admin("POST", f"nodes/{w.until_alive()}:preempt", {})
    at = time.time()
    assert run.code() == 71 and "preempted" in run.err, run.err
    w.check_released("C0 once it was noticed, within 15 s", at, w.bounds.command() + 15)


for state in ("TERMINATED", "REPAIRING"):

    @row("42a", f"the node is {state}, and its hosts are off")
    def hosts_off(w: World, state: str = state) -> None:
        """TERMINATED is final; REPAIRING is tolerated as long as an unreachable worker, ten minutes (here 10 s)."""
        run = w.started(patched={"orchestrator.run.monitor:SILENT_S": 10.0})
        w.admin("POST", f"nodes/{w.until_alive()}:put", {"state": state})
        at = time.time()
        assert run.code() == 71, run.err
        w.check_released("C0 once it was noticed, within 25 s", at, w.bounds.command() + 25)


for state in ("UNKNOWN", "HIDDEN"):

    @row("42b", f"the node is {state}, and its hosts go on")
    def hosts_on(w: World, state: str = state) -> None:
        """These states do not end a running job."""
        run = w.started()
        w.admin("POST", f"nodes/{w.until_alive()}:put", {"state": state})
        assert json.loads(w.do("status", "--json").out)["slices"][0]["state"] == state
        w.until_answered("client", 3)  # the command has looked at the node
        w.finish()
        assert run.code() == 0, run.err
        w.check_released("C0", w.job_ended_at, w.bounds.command())
