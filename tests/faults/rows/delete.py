"""Rows 19-27, 36, 37: deletes that get lost, fail or hang, and answers that prove nothing."""

import time
from typing import Any

from tests.cli_fixture import Command
from tests.faults.world import World, row

IMPATIENT = {"orchestrator.promise.obligations:RELEASE_S": 8.0}  # instead of ten minutes


for number, title, how in (
    ("19a", "the reply to the delete call is lost", {"kind": "lost_reply"}),
    ("19b", "the delete call is answered with 503", {"kind": "status", "status": 503}),
    ("19c", "the delete call gets no answer for 3 s", {"kind": "hang", "seconds": 3}),
):

    @row(number, title)
    def first_delete(w: World, how: dict[str, Any] = how) -> None:
        w.fault(operation="nodes.delete", caller="client", when={"first": 1}, **how)
        _succeeds(w, "C0")


def _succeeds(w: World, what: str, **bound: Any) -> None:
    done = w.do("run", w.short_job)
    assert done.code() == 0, done.err
    w.check_released(what, w.job_ended_at, w.bounds.command(**bound))


@row("20", "the delete is accepted, and its operation fails three times", delete_s=0.5)
def operation_fails(w: World) -> None:
    w.fault("operation_fails", "nodes.delete", seconds=0.5, when={"first": 3})
    _succeeds(w, "C0, 3 deletes fail", failed=3)


@row("21", "the slice is stuck in DELETING for an hour")
def stuck(w: World) -> None:
    """C11: it cannot be bounded, so the command says so, with what to do."""
    run = _unproven(w, "stuck", "nodes.delete")
    assert "DELETING" in run.err and w.alive()


@row("22", "the delete is refused while the slice is CREATING", provision_s=10)
def refused(w: World) -> None:
    w.fault("refuse_delete")
    command = w.begin("run", w.short_job)
    w.until_alive("CREATING")
    pressed_at = command.press()
    assert command.code() == 130, command.err
    w.check_released("C0, ready in 10 s", pressed_at, w.bounds.command(ready_in_s=10))


@row("23a", "the API forgets operations")
def forgotten_operations(w: World) -> None:
    w.fault("operation_gone")
    _succeeds(w, "C0")


@row("23b", "the delete's operation is done, without any effect")
def idle_operation(w: World) -> None:
    w.fault("operation_forgets", "nodes.delete", when={"first": 2})
    _succeeds(w, "C0, 2 deletes fail", failed=2)


for number, title, said, kind, operation, more in (
    ("24", "the list names the zone as unreachable", "unreachable", "unreachable", "nodes.list", {}),
    ("25a", "the second page of the list is a 500", "list failed", "page_error", "nodes.list", {}),
    ("25b", "the list names the same next page for ever", "does not end", "page_loop", "nodes.list", {}),
    ("26", "a 403 where the slice was", "get failed", "status", "nodes.get", {"caller": "client", "status": 403}),
):

    @row(number, title)
    def unproven(w: World, said: str = said, fault: Any = (kind, operation), more: dict[str, Any] = more) -> None:
        assert said in _unproven(w, *fault, **more).err
        _proven_later(w)


def _unproven(w: World, kind: str, operation: str, **parameters: Any) -> Command:
    """Play a run whose slice cannot be proven gone: an error with exit code 75, and never GONE."""
    run = w.started(patched=IMPATIENT)
    w.fault(kind, operation, **parameters)
    w.finish()
    assert run.code() == 75, run.err
    (lease,) = w.leases()
    assert "NOT VERIFIED GONE" in run.err and lease["node"] in run.err
    assert lease["state"] == "down"
    return run


def _proven_later(w: World) -> None:
    """The slice is gone long before. Once the API says so, the guardian, which keeps asking, records it."""
    w.check_bound("C0", w.job_ended_at, w.bounds.command())
    w.admin("DELETE", "faults")
    w.until_no_process()
    assert w.states() == {"gone"}
    assert w.do("status").code() == 0


@row("27", "the access token expires in the middle of a run")
def expired(w: World) -> None:
    """Emulated tokens do not expire: the real clients get an expired one here, which the API refuses."""
    from cloud_tpu_emulator.daemon import control
    from orchestrator.places.tpu.api.client import TpuApi
    from orchestrator.promise.lease.lease import SliceName

    assert w.do("up", "alice", "--zone", "us-central1-a").code() == 0
    endpoint = control.ensure_running(w.emulator_directory)
    (lease,) = w.leases()
    name = SliceName(lease["project"], lease["zone"], lease["node"])

    class Bearer:
        renewable, said = True, "expired"

        def token(self) -> str:
            return self.said

        def renew(self) -> None:
            self.said = endpoint.token

    api = TpuApi(endpoint.url, Bearer(), emulated=False)
    assert api.get(name) is not None
    assert len([call for call in w.requests() if call["status"] == 401]) == 1
    assert w.do("down", "alice").code() == 0
    assert w.states() == {"gone"}


@row("36", "the API is unreachable while the slice is torn down")
def outage(w: World) -> None:
    _api_out(w, "drop", 8.0)


@row("37", "a storm of 429 with Retry-After while the slice is torn down")
def too_many_requests(w: World) -> None:
    """Retry-After is obeyed, so the end of the storm may be noticed that late."""
    _api_out(w, "status", 8.0, status=429, retry_after_s=2)
    refused = [call for call in w.requests(caller="client") if call["status"] == 429]
    assert len(refused) <= 3 * (8 / 2 + 1), f"{len(refused)} calls in 8 s, and each was told to wait for 2 s"


def _api_out(w: World, kind: str, seconds: float, **parameters: Any) -> None:
    command = w.started()
    w.fault(kind, "*", caller="client", when={"until_s": seconds}, **parameters)
    pressed_at = time.time()
    command.press()
    assert command.code() == 130, command.err
    w.check_released(f"C5, out for {seconds:.0f} s", pressed_at, w.bounds.outage(seconds))
