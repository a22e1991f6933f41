"""One teardown, call by call, against a cloud whose replies are written down: what is asked, sent again, recorded and said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import AuthError, CloudError, CloudUnavailable, TpujobError
from orchestrator.promise import release as teardown
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.access import Route
from orchestrator.promise.lease.changes import Gone, NotAllowed, ReleaseBegan, Settled
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.obligations import Obligations, release_owed
from orchestrator.promise.release import release_all
from tests.fakes.leases import lease_and_request, lease_on
from tests.fakes.scripted_cloud import ScriptedCloud
from tests.simulation.model.bench import CAN

BEGAN = 1_800_000_000.0
NAME = lease_and_request().lease.name
HERE = SliceView(NAME, SliceState.READY, "READY", "v5litepod-8", "r", {"tpujob-lease-id": "0000000000"})
DELETING = replace(HERE, state=SliceState.DELETING, native_state="DELETING")
FOREIGN = replace(HERE, labels={})
CREATED = Operation("c", True, "create", f"projects/p/locations/z/nodes/{NAME.node}")
RUNS, DONE = Operation("d", False, "delete"), Operation("d", True, "delete")
FAILED = replace(DONE, error=CloudError("internal"))
AWAY, DENIED = CloudUnavailable("no answer"), AuthError("denied")
SETTLED = {"operation": "c", "settled": True}
DEFAULTS: dict[str, list[Any]] = {
    "Delete": [DONE],
    "ListSlices": [Listing(())],
    "ListOperations": [Listing((CREATED,))],
}


def lease(**fields: Any) -> Lease:
    return lease_on(NAME, BEGAN - 60, **{"state": LeaseState.CREATING, "sent_at": BEGAN - 60, "sends": 1, **fields})


class Cloud(ScriptedCloud):
    def release(self, *leases: Lease, budget_s: float = 600.0) -> list[Released]:
        self.ledger |= {each.id: each for each in leases}
        self.replies = DEFAULTS | self.replies
        return self.drive(release_all([(each, "test") for each in leases], CAN, budget_s=budget_s))


@pytest.mark.parametrize(("fields", "replies", "calls"), [
    (SETTLED, {}, "Delete Get ListSlices"),
    ({"operation": "c"}, {"operation c": [CREATED]}, "Delete Get GetOperation Get ListSlices"),
    ({"operation": "c", "sends": 2}, {"ListOperations": [Listing((CREATED, CREATED))]},
     "Delete Get ListOperations Get ListSlices"),
    ({}, {"Get": [HERE, None], "Delete": [None]}, "Get Delete Get ListOperations Get ListSlices"),  # seen, then gone
    ({"sends": 0}, {}, "Get Get ListSlices"),  # every create was refused
    ({"sends": 0}, {"Get": [FOREIGN]}, "Get"),
])  # fmt: skip
def test_the_calls_of_a_proof(fields: dict[str, Any], replies: dict[str, list[Any]], calls: str) -> None:
    cloud = Cloud(replies)
    (released,) = cloud.release(lease(**fields))
    assert (" ".join(cloud.calls), released.gone) == (f"MaskSignals {calls}", True)
    foreign = "Get" in replies and replies["Get"] == [FOREIGN]
    unsettled = [] if "settled" in fields or foreign else [Settled]
    assert [type(each) for each in cloud.log] == [ReleaseBegan, *unsettled, Gone]


@pytest.mark.parametrize(("fields", "replies", "missing"), [
    ({"operation": "c"}, {"operation c": [None]}, "the create call has not settled"),
    ({"operation": "c"}, {"operation c": [AWAY]}, "the create call has not settled"),
    ({}, {"ListOperations": [AWAY]}, "the create call has not settled"),
    ({}, {"ListOperations": [Listing((), unreachable=("z",))]}, "the create call has not settled"),
    ({"operation": "c"}, {"operation c": [replace(CREATED, done=False)]}, "the create call is still under way"),
    ({}, {"Get": [FOREIGN]}, f"a slice named {NAME.node} exists without the label of this lease"),
    ({"operation": "c"}, {"Get": [FOREIGN]}, f"a slice named {NAME.node} exists without the label of this lease"),
    (SETTLED, {"Get": [AWAY]}, "get failed: no answer"), (SETTLED, {"ListSlices": [DENIED]}, "list failed: denied"),
])  # fmt: skip
def test_what_is_not_known_is_missing_until_the_budget_is_over(
    fields: dict[str, Any], replies: dict[str, list[Any]], missing: str
) -> None:
    cloud = Cloud(replies)
    (released,) = cloud.release(lease(**fields), budget_s=400.0)
    assert not released.gone and released.verdict.missing[0].startswith(missing)
    assert BEGAN + 400 <= cloud.now < BEGAN + 402 and Gone not in map(type, cloud.log)


@pytest.mark.parametrize(("fields", "delete", "operation", "view", "in_30_s", "in_130_s"), [
    ({}, DONE, DONE, DELETING, "often", "often"), ({}, DONE, FAILED, HERE, "often", "often"),
    ({}, RUNS, RUNS, DELETING, 1, 2), ({}, RUNS, RUNS, HERE, "often", "often"),
    ({}, RUNS, None, DELETING, 1, 2), ({}, RUNS, AWAY, DELETING, 1, 2), ({}, RUNS, None, HERE, "often", "often"),
    ({"name": replace(NAME, queued=True)}, RUNS, RUNS, HERE, 1, 2),  # a delete of a request fails later, and is one at a time
    ({"name": replace(NAME, queued=True)}, RUNS, None, HERE, "often", "often"),
    ({"name": replace(NAME, queued=True)}, RUNS, None, DELETING, 1, 2),
    ({}, AWAY, None, DELETING, "often", "often"),  # not known to have been accepted
])  # fmt: skip
def test_when_a_delete_is_sent_again(
    fields: dict[str, Any], delete: Any, operation: Any, view: SliceView, in_30_s: int | str, in_130_s: int | str
) -> None:
    for budget_s, sent in ((30.0, in_30_s), (130.0, in_130_s)):
        cloud = Cloud({"Delete": [delete], "operation d": [operation], "Get": [view]})
        owed = replace(lease(**SETTLED), **fields)
        (released,) = cloud.release(owed, budget_s=budget_s)
        assert released.deletes_sent == cloud.calls.count("Delete")
        assert released.deletes_sent == sent if isinstance(sent, int) else released.deletes_sent > 5
        assert ("GetOperation" in cloud.calls) is (delete is not AWAY)


@pytest.mark.parametrize(("deletes", "operations", "answer", "told"), [
    ([DENIED], [None], "refused: denied", True), ([AWAY], [None], "refused: no answer", False),
    ([AWAY, RUNS], [RUNS], "accepted", False),
    ([RUNS], [FAILED], "accepted, and its operation failed: internal", False), ([RUNS], [DONE], "accepted", False),
])  # fmt: skip
def test_the_reply_to_the_delete_is_kept(deletes: list[Any], operations: list[Any], answer: str, told: bool) -> None:
    cloud = Cloud({"Delete": deletes, "operation d": operations, "Get": [HERE]})
    (released,) = cloud.release(lease(**SETTLED), budget_s=30.0)
    assert released.answer == answer
    assert any("delete refused: denied" in each for each in cloud.passing) is told


# -- a key in the OS Login profile ---------------------------------------------------------------------------------------

KEY = {**SETTLED, "route": Route(os_login=True, user="ada")}
NOT_IMPORTED = {**KEY, "route": Route(os_login=True, user="")}
LEFT = "its SSH key stays in your OS Login profile until it expires, or a later command removes it"


@pytest.mark.parametrize(("fields", "replies", "budget_s", "takes_s", "left"), [
    (KEY, [None], 600.0, (0, 1), False), (KEY, [AWAY, AWAY, AWAY, None], 600.0, (0, 30), False),
    (KEY, [AWAY], 600.0, (60, 90), True), (KEY, [AWAY], 20.0, (20, 22), True), (KEY, [DENIED], 600.0, (0, 1), True),
    (NOT_IMPORTED, [None], 600.0, (60, 90), False), (NOT_IMPORTED, [None], 20.0, (20, 22), False),
])  # fmt: skip
def test_a_key_is_removed_or_left_to_its_expiry(
    fields: dict[str, Any], replies: list[Any], budget_s: float, takes_s: tuple[float, float], left: bool
) -> None:
    cloud = Cloud({"RevokeLogin": replies})
    (released,) = cloud.release(lease(**fields), budget_s=budget_s)
    assert released.gone and released.verdict.missing == () and takes_s[0] <= cloud.now - BEGAN < takes_s[1]
    assert [each for each in cloud.log if isinstance(each, str)] == [
        f"{NAME.node}: {LEFT}: {replies[0].message}" for _ in range(left)
    ]


@pytest.mark.parametrize(("fields", "reply", "missing"), [
    (KEY, AWAY, "its SSH key is still in your OS Login profile: no answer"),
    (NOT_IMPORTED, None, "the import of its SSH key into your OS Login profile has not settled"),
])  # fmt: skip
def test_without_a_budget_the_key_is_for_those_who_follow(fields: dict[str, Any], reply: Any, missing: str) -> None:
    cloud = Cloud({"RevokeLogin": [reply]})
    (released,) = cloud.release(lease(**fields), budget_s=0.0)
    assert not released.gone and released.verdict.missing == (missing,)
    assert cloud.release(lease(**fields), budget_s=0.5)[0].gone, "the last try of a budget leaves it"


# -- several at once, and beside others ----------------------------------------------------------------------------------


def three() -> list[Lease]:
    return [replace(lease(**SETTLED), id=f"{n:010}", name=replace(NAME, node=f"n{n}")) for n in range(3)]


def test_the_deletes_of_several_leave_at_once_and_each_once() -> None:
    cloud = Cloud({"DeleteAll": [(RUNS, AWAY, RUNS)]})
    released = cloud.release(*three())
    assert cloud.calls[1] == "DeleteAll" and [each.gone for each in released] == [True] * 3
    assert [each.deletes_sent for each in released] == [1, 2, 1] and Counter(cloud.calls)["Delete"] == 1
    two = Cloud({"DeleteAll": [(RUNS, RUNS)]})
    two.release(*three()[:2])
    assert Counter(two.calls) == {"MaskSignals": 1, "DeleteAll": 1, "Get": 2, "ListSlices": 2}
    unknown = Cloud()
    unknown.release(*(replace(each, operation=None) for each in three()))
    assert "DeleteAll" not in unknown.calls, "whose slice it is is looked at first"


@pytest.mark.parametrize("when", ["tick", "end"])
def test_the_proof_of_another_process_counts(when: str) -> None:
    first, second = three()[:2]
    cloud = Cloud({"DeleteAll": [(RUNS, RUNS)], "Get": [AWAY]})
    call = cloud.call

    def proven_elsewhere(name: str, effect: Any) -> Any:
        if name == "Get" and effect.name == (first if when == "tick" else second).name:
            cloud.ledger[first.id] = replace(cloud.ledger[first.id], state=LeaseState.GONE)
        return call(name, effect)

    cloud.call = proven_elsewhere  # type: ignore[method-assign]
    released = cloud.release(first, second, budget_s=0.0 if when == "end" else 30.0)
    assert [each.gone for each in released] == [True, False] and released[0].verdict.gone
    if when == "tick":
        assert cloud.calls.count("Get") > 5 and released[0].checked_at < BEGAN + 1, "it is asked no more"


@pytest.mark.parametrize(("error", "told"), [
    (NotAllowed(lease(), Settled("x", 0.0)), []),
    (TpujobError("disk full"), ["disk full; the teardown goes on without it"] * 2),
])  # fmt: skip
def test_a_ledger_that_refuses_stops_no_teardown(error: Any, told: list[str]) -> None:
    cloud = Cloud(ledger_fails=error)
    (released,) = cloud.release(lease(**SETTLED))
    assert released.gone and cloud.log == told
    owing = Cloud(ledger_fails=error, ledger={lease().id: lease(**SETTLED)})
    owing.drive(release_owed(Obligations(lease(**SETTLED)), CAN, "test"))
    assert "Delete" in owing.calls


def test_what_cannot_be_done_beside_a_teardown_is_said() -> None:
    cloud = Cloud({"RevokeLogin": [DENIED], "StartGuardian": [TpujobError("no memory")]})
    cloud.drive(teardown.remove_key(lease(**KEY)))
    cloud.drive(teardown.try_start_guardian())
    assert cloud.calls == ["RevokeLogin", "StartGuardian"]
    assert cloud.log == [f"{NAME.node}: {LEFT}: denied", "no memory"]


def test_a_retry_after_counts_for_one_pause() -> None:
    cloud = Cloud({"Get": [CloudUnavailable("429", retry_after_s=20.0), AWAY, AWAY, AWAY, None]})
    cloud.release(lease(**SETTLED))
    assert 20 <= cloud.now - BEGAN < 25
    assert teardown.LONGEST_WAIT_S == 60.0
