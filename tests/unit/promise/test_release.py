"""Release: what proves that a slice is gone, and what does not; and what a recovery leaves alone.

A death and a signal at every effect: tests/simulation/test_crash_sweep.py.
"""

import math
from dataclasses import replace

import pytest

from orchestrator.errors import AuthError, CapacityError, CloudError, CloudUnavailable
from orchestrator.promise.effects.cloud import ListSlices
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.access import Route
from orchestrator.promise.lease.changes import CreateSent, HeldUntil, Intent
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceView
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.obtain.acquire import acquire
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.recover import close_attempts, recover
from orchestrator.promise.release import release, release_all
from tests.fakes.leases import lease_and_request, queued
from tests.simulation.model.bench import CAN, Bench, Crash, created, held
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.process import ProcessLocks


def a_slice(world: Bench) -> Lease:
    return created(world, lease_and_request(), ready=True)


def let_go(world: Bench, lease: Lease, budget_s: float = 7200.0) -> Released:
    return world.drive(release(lease, CAN, reason="test", budget_s=budget_s))


def test_the_delete_is_the_first_call_on_the_wire(world: Bench) -> None:
    lease = a_slice(world)
    world.effects.clear()
    let_go(world, lease)
    assert world.calls[0][0] == "Delete"


# -- keys in the OS Login profile ---------------------------------------------------------------------------------------


def with_key(world: Bench) -> Lease:
    lease, request = lease_and_request(now=world.time)
    draft = replace(lease, route=Route(os_login=True, user="")), request
    return world.drive(acquire(*draft, CAN))


@pytest.mark.parametrize(("error", "budget_s"), [
    (CloudUnavailable("no answer"), 7200.0), (CloudUnavailable("no answer"), 30.0),
    (AuthError("permission denied"), 7200.0),
])  # fmt: skip
def test_a_key_that_os_login_never_removes_is_left_to_its_expiry_reported_once_and_holds_up_no_release(
    world: Bench, error: CloudError, budget_s: float
) -> None:
    lease = with_key(world)
    where = world.plan.forbidden if isinstance(error, AuthError) else world.plan.cut
    where["os-login"], began = [(0.0, math.inf)], world.time
    assert let_go(world, lease, budget_s).gone and world.time - began < 120
    (told,) = [line for line in world.told if "until it expires" in line]
    assert told.endswith(error.message) and lease.name.node in told


def test_a_retry_after_is_respected_up_to_a_minute(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = a_slice(world)
    for asked_s, calls in ((20.0, 30), (3600.0, 10)):

        def get(*_: object, asked_s: float = asked_s) -> SliceView | None:
            raise CloudUnavailable("quota of requests", retry_after_s=asked_s)

        monkeypatch.setattr(CloudClient, "get", get)
        world.effects.clear()
        assert not let_go(world, lease, budget_s=600).gone
        asked = [name for name, _ in world.calls if name == "Get"]
        assert calls <= len(asked) <= calls + 3
    monkeypatch.undo()
    assert let_go(world, lease).gone


def test_the_reply_to_a_delete_is_kept_for_the_user(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = a_slice(world)
    monkeypatch.setattr(CloudClient, "delete", _refuses)
    assert let_go(world, lease, budget_s=30).answer == "refused: Permission 'tpu.nodes.delete' denied"


def _refuses(*_: object) -> Operation:
    raise AuthError("Permission 'tpu.nodes.delete' denied")


# -- queued ------------------------------------------------------------------------------------------------------------


def lists(world: Bench) -> set[bool]:
    """Return whether the lists had the queue in them."""
    return {effect.queued for effect in world.effects if isinstance(effect, ListSlices)}


def test_deletes_of_a_provisioning_request_are_sent_one_at_a_time() -> None:
    world = Bench(provision_s=12 * 60.0)
    lease, request = queued(lease_and_request())
    lease = created(world, Draft(replace(lease, ready_by=world.time + 3600), request))
    world.time += 5
    released = let_go(world, lease)
    assert released.gone and world.nodes == {}
    # Each failed delete took 1.5 s; in between they are sent no faster than that, and ever more rarely.
    assert 2 <= released.deletes_sent < 12 * 60 / world.settings.refuse_s / 4
    assert lists(world) == {True}, "the proof is a list with the queue in it"


def test_the_proof_for_a_plain_slice_lists_no_requests(world: Bench) -> None:
    assert let_go(world, a_slice(world)).gone and lists(world) == {False}


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
    world: Bench, monkeypatch: pytest.MonkeyPatch, on: str, verb: str, done: bool, gone: bool
) -> None:
    """The reply to the create was lost, the slice is not there, and one operation is found. One that has ended is no word
    about our create: that one is given the time in which it would be seen."""
    lease, _ = lease_and_request()
    queued = verb.startswith("create")  # a failed create of a plain slice settles it at once
    lease = replace(lease, name=replace(lease.name, queued=queued))
    world.ledger.record(Intent(lease), CreateSent(lease.id, world.time))
    error = CapacityError("no capacity") if queued and done else None
    found = Operation("operation-1", done, verb, f"projects/p/locations/z/{on.format(lease.name.node)}", error)
    monkeypatch.setattr(CloudClient, "operations", lambda *_: Listing((found,)))
    began = world.time
    released = let_go(world, world.ledger.lease(lease.id), budget_s=CAN.settles_within_s + 60)
    assert released.gone is gone
    assert not gone or CAN.visible_within_s <= world.time - began < 2 * CAN.visible_within_s


def test_without_leases_there_is_nothing_to_release(world: Bench) -> None:
    assert world.drive(release_all([], CAN, budget_s=600)) == [] and world.effects == []


def test_recovery_skips_leases_that_were_held_since_they_were_judged(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = held(world, for_s=60.0)
    world.time += 61.0
    lock = ProcessLocks.lock

    def held_meanwhile(locks: ProcessLocks, lease_id: str) -> bool:
        world.ledger.record(HeldUntil(lease.id, world.time, world.time + 3600.0))
        return lock(locks, lease_id)

    monkeypatch.setattr(ProcessLocks, "lock", held_meanwhile)
    assert world.drive(recover("emulated", CAN, budget_s=60)) == []
    assert len(world.nodes) == 1


@pytest.mark.parametrize(("cloud", "purpose"), [("google", "run"), ("emulated", "lent")])
def test_recovery_never_touches_a_lease_of_another_cloud_or_with_a_word_of_a_newer_tpujob(
    world: Bench, cloud: str, purpose: str
) -> None:
    with pytest.raises(Crash):
        world.ran(killed_at=344)
    world.ledger._db.execute("update lease set purpose = ?", (purpose,))
    world.drive(close_attempts())
    assert bool(world.ledger.attempts_open()) is (purpose == "lent"), "that one says how its attempt ends, too"
    assert world.drive(recover(cloud, CAN, budget_s=60)) == []
    assert len(world.nodes) == 1
