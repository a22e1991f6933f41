"""Release: what proves that a slice is gone, and what does not."""

from dataclasses import replace

import pytest

from orchestrator.core.lease.access import Route
from orchestrator.core.lease.cloud_api import Listing, Operation, QueueTerms, SliceName, SliceView
from orchestrator.core.lease.lease import CreateRefused, Gone, Intent, Lease, LeaseState, Sent
from orchestrator.engine.leases.release import Released, release, release_all
from orchestrator.engine.provision.acquire import acquire
from orchestrator.engine.provision.drafts import Draft
from orchestrator.errors import AuthError, CapacityError, CloudError, CloudUnavailable, WrongState
from tests.unit.engine.virtual import CAN, VirtualCloud, VirtualWorld, created, lease_and_request


def a_slice(world: VirtualWorld, n: int = 0) -> Lease:
    return created(world, lease_and_request(n), ready=True)


def let_go(world: VirtualWorld, lease: Lease, budget_s: float = 7200.0) -> Released:
    return world.drive(release(lease, CAN, reason="test", budget_s=budget_s))


def test_the_delete_is_the_first_call_on_the_wire(world: VirtualWorld) -> None:
    lease = a_slice(world)
    world.cloud.calls.clear()
    let_go(world, lease)
    assert world.cloud.calls[0][0] == "delete"


# -- keys in the OS Login profile ---------------------------------------------------------------------------------------


def with_key(world: VirtualWorld) -> Lease:
    lease, request = lease_and_request(now=world.time)
    draft = replace(lease, route=Route(os_login=True, user="")), request
    return world.drive(acquire(*draft, CAN))


@pytest.mark.parametrize(("error", "budget_s"), [
    (CloudUnavailable("no answer"), 7200.0), (CloudUnavailable("no answer"), 30.0),
    (AuthError("permission denied"), 7200.0),
])  # fmt: skip
def test_a_key_that_os_login_never_removes_is_left_to_its_expiry_reported_once_and_holds_up_no_release(
    world: VirtualWorld, error: CloudError, budget_s: float
) -> None:
    lease = with_key(world)
    world.os_login_error, began = error, world.time
    assert let_go(world, lease, budget_s).gone and world.time - began < 120
    (told,) = [line for line in world.told if "until it expires" in line]
    assert told.endswith(error.message) and lease.name.node in told


def test_with_no_trace_of_a_sent_create_the_visibility_bound_is_waited_out(world: VirtualWorld) -> None:
    lease, _ = lease_and_request()
    world.ledger.record(Intent(lease), Sent(lease.id, world.time))
    early = let_go(world, world.ledger.lease(lease.id), budget_s=60)
    assert not early.gone and early.verdict.quiet_until == pytest.approx(1_800_000_300, abs=1)
    late = let_go(world, world.ledger.lease(lease.id))
    assert late.gone and world.time >= 1_800_000_300


def test_a_foreign_slice_of_the_same_name_stays_when_the_only_create_was_refused(world: VirtualWorld) -> None:
    lease, request = lease_and_request()
    world.ledger.record(Intent(lease), Sent(lease.id, world.time), CreateRefused(lease.id, world.time, "it exists"))
    world.cloud.create(type(request)(request.name, request.accelerator_type, request.runtime_version, labels={}))
    released = let_go(world, world.ledger.lease(lease.id), budget_s=60)
    assert released.gone and world.ledger.lease(lease.id).state is LeaseState.GONE
    assert ("delete", request.name.node) not in world.cloud.calls
    assert world.time == 1_800_000_000.0, "nothing was waited for"


def test_a_retry_after_is_respected_up_to_a_minute(world: VirtualWorld) -> None:
    lease = a_slice(world)
    for asked_s, calls in ((20.0, 30), (3600.0, 10)):
        world.cloud.get_error = CloudUnavailable("quota of requests", retry_after_s=asked_s)
        world.cloud.calls.clear()
        assert not let_go(world, lease, budget_s=600).gone
        asked = [name for name, _ in world.cloud.calls if name == "get"]
        assert calls <= len(asked) <= calls + 3
    world.cloud.get_error = None
    assert let_go(world, lease).gone


def test_the_reply_to_a_delete_is_kept_for_the_user(world: VirtualWorld) -> None:
    lease = a_slice(world)
    world.cloud.delete = _refuses  # type: ignore[method-assign]
    assert let_go(world, lease, budget_s=30).answer == "refused: Permission 'tpu.nodes.delete' denied"


def _refuses(name: object) -> Operation:
    raise AuthError("Permission 'tpu.nodes.delete' denied")


# -- queued ------------------------------------------------------------------------------------------------------------


class QueuedCloud(VirtualCloud):
    """A request and its node under one name. While it is PROVISIONING a delete is accepted, and fails a while later."""

    refuse_s = 1.5
    provisioning_until = 0.0
    listed_queued: bool | None = None

    def delete(self, name: SliceName) -> Operation | None:
        if self.world.time >= self.provisioning_until or name.node not in self.nodes:
            return super().delete(name)
        self._call("delete", name)
        operation = self._operation("delete", name.node, self.world.time + self.refuse_s)
        self.failed[operation.name] = WrongState("delete is not supported while in state PROVISIONING")
        return operation

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        self.listed_queued = queued
        return super().list(project, zone, queued)


def queued_lease(world: VirtualWorld) -> tuple[Lease, QueuedCloud]:
    """Created and confirmed; what comes of it takes a minute."""
    cloud = world.cloud = QueuedCloud(world)
    lease, request = lease_and_request()
    name = replace(lease.name, queued=True)
    lease = replace(lease, name=name, ready_by=world.time + 3600)
    return created(world, Draft(lease, replace(request, name=name, queue=QueueTerms(3600.0, "id")))), cloud


def test_deletes_of_a_provisioning_request_are_sent_one_at_a_time(world: VirtualWorld) -> None:
    lease, cloud = queued_lease(world)
    cloud.provisioning_until = world.time + 12 * 60
    released = let_go(world, lease)
    assert released.gone and cloud.nodes == {}
    # Each failed delete took 1.5 s; in between they are sent no faster than that, and ever more rarely.
    assert 2 <= released.deletes_sent < 12 * 60 / cloud.refuse_s / 4
    assert cloud.listed_queued is True, "the proof is a list with the queue in it"


def test_the_proof_for_a_plain_slice_lists_no_requests(world: VirtualWorld) -> None:
    cloud = world.cloud = QueuedCloud(world)
    assert let_go(world, a_slice(world)).gone
    assert cloud.listed_queued is False


@pytest.mark.parametrize(("on", "verb", "done", "gone"), [
    ("queuedResources/{}", "create", True, True),
    ("queuedResources/{}", "createQueuedResource", True, True),
    ("queuedResources/{}", "create", False, False),
    ("nodes/{}", "create", True, True), ("nodes/{}", "create", False, False),
    # A verb that is not known counts as that of a create.
    ("nodes/{}", "insert", False, False), ("nodes/{}", "", False, False),
    ("nodes/{}", "Provision", False, False),
    ("nodes/{}", "insert", True, True),
    ("nodes/{}", "deleteNode", False, True),
    ("nodes/{}", "updateNode", False, True),
    ("nodes/{}0", "insert", False, True),  # on another name
])  # fmt: skip
def test_an_operation_that_may_create_the_slice_or_its_request_delays_the_proof(
    world: VirtualWorld, on: str, verb: str, done: bool, gone: bool
) -> None:
    """The reply to the create was lost, the slice is not there, and one operation is found. One that has ended is no word
    about our create: that one is given the time in which it would be seen."""
    lease, _ = lease_and_request()
    queued = verb.startswith("create")  # a failed create of a plain slice settles it at once
    lease = replace(lease, name=replace(lease.name, queued=queued))
    world.ledger.record(Intent(lease), Sent(lease.id, world.time))
    error = CapacityError("no capacity") if queued and done else None
    found = Operation("operation-1", done, verb, f"projects/p/locations/z/{on.format(lease.name.node)}", error)
    world.cloud.operations = lambda project, zone: Listing((found,))  # type: ignore[method-assign]
    began = world.time
    released = let_go(world, world.ledger.lease(lease.id), budget_s=CAN.settles_within_s + 60)
    assert released.gone is gone
    assert not gone or CAN.visible_within_s <= world.time - began < 2 * CAN.visible_within_s


def test_of_several_leases_no_delete_waits_for_the_proof_of_another(world: VirtualWorld) -> None:
    stuck, other = a_slice(world), a_slice(world, 1)
    world.cloud.stuck = {stuck.name.node}
    world.cloud.calls.clear()
    began = world.time
    results = world.drive(release_all([(stuck, "test"), (other, "test")], CAN, budget_s=600))
    assert [released.gone for released in results] == [False, True]
    assert [call for call, _ in world.cloud.calls[:2]] == ["delete", "delete"]
    assert (world.ledger.lease(other.id).gone_at or 0.0) - began < 60


def test_a_proof_by_another_process_meanwhile_counts(world: VirtualWorld) -> None:
    """A machine that resumes when the time is over makes one pass, during which `down` in another terminal finishes."""
    first, second = a_slice(world), a_slice(world, 1)
    world.cloud.stuck = {first.name.node, second.name.node}

    def prove_elsewhere(world: VirtualWorld) -> None:
        if world.cloud.calls[-1] == ("get", second.name.node) and world.ledger.lease(first.id).gone_at is None:
            world.ledger.record(Gone(first.id, world.time, evidence="get 404 elsewhere"))

    released = world.drive(release_all([(first, ""), (second, "")], CAN, budget_s=0), between=prove_elsewhere)
    assert [each.gone for each in released] == [True, False]


def test_without_leases_there_is_nothing_to_release(world: VirtualWorld) -> None:
    assert world.drive(release_all([], CAN, budget_s=600)) == [] and world.effects == []
