"""Faults as data: how they are read, which calls they meet, and in which order, under virtual time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_tpu_emulator.faults.fault import NO_FAULT, Decision, Faults, read
from cloud_tpu_emulator.faults.kinds import CHOICES, KINDS, LIMITS, OPERATIONS, RELAY
from cloud_tpu_emulator.faults.plain_data import BadData

NODE = "projects/p/locations/us-west4-a/nodes/tpujob-x"
PLACE = "projects/p/locations/us-west4-a"


def having(*rows: dict[str, Any], now: float = 100.0) -> Faults:
    faults = Faults()
    faults.add_all(rows, now)
    return faults


def kinds_met(faults: Faults, calls: int, operation: str = "nodes.get", now: float = 100.0) -> list[str | None]:
    decisions = [faults.decide(operation, "client", NODE, now) for _ in range(calls)]
    return [decision.reply.kind if decision.reply else None for decision in decisions]


# -- which calls --------------------------------------------------------------------------------------------------


def test_without_faults_no_call_meets_one() -> None:
    assert Faults().decide("nodes.get", "client", NODE, 0) is NO_FAULT


@pytest.mark.parametrize(("when", "met"), [
    ({}, [1, 2, 3, 4, 5, 6]), ({"calls": 2}, [2]), ({"calls": [1, 3]}, [1, 3]),
    ({"calls": "1,3-4,6-"}, [1, 3, 4, 6]), ({"first": 2}, [1, 2]), ({"probability": 0}, []),
    ({"probability": 1}, [1, 2, 3, 4, 5, 6]), ({"probability": 1, "calls": "5-"}, [5, 6]),
])  # fmt: skip
def test_when_selects_calls_by_number(when: dict[str, Any], met: list[int]) -> None:
    output = kinds_met(having({"kind": "drop", "when": when}), 6)
    assert [number for number, kind in enumerate(output, 1) if kind] == met


def test_a_fault_counts_only_matching_calls() -> None:
    faults = having({"kind": "drop", "operation": "nodes.delete", "when": {"calls": 2}})
    assert kinds_met(faults, 3, "nodes.get") == [None] * 3
    assert kinds_met(faults, 3, "nodes.delete") == [None, "drop", None]
    [row] = faults.dump()
    assert (row["calls"], row["hits"]) == (3, 1)


def test_times_count_from_the_addition_of_the_fault_and_calls_outside_of_them_are_not_counted() -> None:
    faults = having({"kind": "drop", "when": {"from_s": 10, "until_s": 20, "calls": "1-2"}}, now=1000)
    output = {at: kinds_met(faults, 1, now=at)[0] for at in (1000, 1009.9, 1010, 1015, 1016, 1020)}
    assert [at for at, kind in output.items() if kind] == [1010, 1015]


@pytest.mark.parametrize(("fault", "operation", "caller", "name", "state", "met"), [
    ({"operation": "nodes.*"}, "nodes.patch", "client", NODE, None, True),
    ({"operation": "nodes.*"}, "operations.get", "client", NODE, None, False),
    ({"operation": ["nodes.get", "operations.*"]}, "operations.list", "client", PLACE, None, True),
    ({"operation": "nodes.get, nodes.delete"}, "nodes.delete", "client", NODE, None, True),
    ({"caller": "vm"}, "nodes.get", "client", NODE, None, False),
    ({"caller": "vm"}, "nodes.get", "vm", NODE, None, True),
    ({"caller": "any"}, "nodes.get", "vm", NODE, None, True),
    ({"match": {"node": "tpujob-*"}}, "nodes.get", "client", NODE, None, True),
    ({"match": {"node": "other-*"}}, "nodes.get", "client", NODE, None, False),
    ({"match": {"node": "*"}}, "nodes.list", "client", PLACE, None, False),
    ({"match": {"zone": "us-*"}}, "nodes.list", "client", PLACE, None, True),
    ({"match": {"zone": "europe-*"}}, "nodes.get", "client", NODE, None, False),
    ({"match": {"state": "CREATING"}}, "nodes.delete", "client", NODE, "CREATING", True),
    ({"match": {"state": "CREATING"}}, "nodes.delete", "client", NODE, "READY", False),
    ({}, "locations.list", "client", "projects/p/locations/-", None, True),
])  # fmt: skip
def test_what_a_fault_matches(
    fault: dict[str, Any], operation: str, caller: str, name: str, state: str | None, met: bool
) -> None:
    decision = having({"kind": "drop"} | fault).decide(operation, caller, name, 100, state)
    assert (decision.reply is not None) is met


def test_of_several_faults_the_first_one_decides_and_modifiers_add_up() -> None:
    faults = having(
        {"kind": "status", "status": 500, "when": {"calls": 1}},
        {"kind": "lost_reply"},
        {"kind": "slow", "seconds": 2},
        {"kind": "slow", "seconds": 3},
        {"kind": "clock", "seconds": -60},
        {"kind": "hidden"},
    )
    first, second = (faults.decide("nodes.create", "client", NODE, 100) for _ in range(2))
    assert (first.reply and first.reply.kind, first.effect, first.takes_effect) == ("status", None, False)
    assert (second.reply and second.reply.kind, second.effect and second.effect.kind) == ("lost_reply", "hidden")
    assert second.takes_effect
    assert (second.slow_s, second.clock_s) == (5, -60)
    assert [(row["id"], row["hits"]) for row in faults.dump()] == [
        *(("f1", 1), ("f2", 1), ("f3", 2), ("f4", 2), ("f5", 2), ("f6", 1))
    ]
    assert set(first.hits) == {"f1", "f3", "f4", "f5"}


@pytest.mark.parametrize(("fault", "takes_effect"), [
    ({"kind": "lost_reply"}, True), ({"kind": "drop"}, False), ({"kind": "status"}, False),
    ({"kind": "status", "effect": True}, True), ({"kind": "hang"}, False),
    ({"kind": "hang", "effect": True}, True), ({"kind": "garbage"}, True),
    ({"kind": "garbage", "effect": False}, False), ({"kind": "slow"}, True), ({"kind": "late"}, True),
])  # fmt: skip
def test_whether_a_call_takes_effect(fault: dict[str, Any], takes_effect: bool) -> None:
    assert having(fault).decide("nodes.create", "client", NODE, 100).takes_effect is takes_effect


def test_draws_depend_on_the_seed_and_the_number_alone() -> None:
    fault = {"kind": "drop", "when": {"probability": 0.5, "seed": 3}}
    output = kinds_met(having(fault), 400)
    assert output == kinds_met(having(fault), 400)
    assert output != kinds_met(having({"kind": "drop", "when": {"probability": 0.5, "seed": 4}}), 400)
    assert 140 < sum(kind is not None for kind in output) < 260


def test_clearing_removes_some_or_all_and_ids_are_not_reused() -> None:
    faults = having({"kind": "drop"}, {"kind": "hang"}, {"kind": "slow"})
    assert faults.clear(["f2", "f9"]) == 1
    assert [row["id"] for row in faults.dump()] == ["f1", "f3"]
    assert faults.clear() == 2
    assert not faults
    assert faults.add({"kind": "drop"}, 0).id == "f4"


def test_a_list_with_a_mistake_adds_nothing() -> None:
    faults = Faults()
    with pytest.raises(BadData):
        faults.add_all([{"kind": "drop"}, {"kind": "nothing"}], 0)
    assert not faults


# -- as data ------------------------------------------------------------------------------------------------------

times = st.floats(0, 1e6, allow_nan=False)


def parameter(name: str, default: Any) -> st.SearchStrategy[Any]:
    if name == "literal":
        return st.sampled_from(["", '{"code": 5, "message": "Reservation not found"}'])
    if name in CHOICES:
        return st.sampled_from(CHOICES[name])
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, list):
        return st.lists(st.text())
    if isinstance(default, int):
        least, most = (int(LIMITS.get(name, {}).get(end, other)) for end, other in (("least", 0), ("most", 10**9)))
        return st.integers(least, most)
    if isinstance(default, str):
        return st.text()
    return st.floats(LIMITS[name]["least"], 1e9) if name in LIMITS else times


@st.composite
def fault_data(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    when: dict[str, Any] = draw(st.fixed_dictionaries({}, optional={"probability": st.floats(0, 1), "from_s": times}))
    if draw(st.booleans()):
        when["calls"] = draw(st.lists(st.integers(1, 50), min_size=1))
    given_parameters = {key: parameter(key, default) for key, default in kind.parameters.items()}
    optional: dict[str, Any] = {
        "operation": st.sampled_from(kind.operations),
        "caller": st.sampled_from(["client", "vm", "any"]),
        "match": st.fixed_dictionaries({}, optional={"node": st.text(min_size=1), "zone": st.text(min_size=1)}),
    }
    return draw(st.fixed_dictionaries({"kind": st.just(name)}, optional=optional | given_parameters)) | {"when": when}


@given(fault_data())
def test_a_fault_is_read_back_as_it_was_written(data: dict[str, Any]) -> None:
    fault = read(data)
    again = read(json.loads(json.dumps(fault.as_json())))
    assert again == fault


@given(fault_data(), st.lists(st.sampled_from(OPERATIONS), max_size=12))
def test_counts_of_faults_survive_a_restart(data: dict[str, Any], calls: list[str]) -> None:
    stayed, restarted = having(data), having(data)
    for operation in calls:
        restarted = Faults.load(json.loads(json.dumps(restarted.dump())))
        output = [_plain(faults.decide(operation, "client", NODE, 100)) for faults in (stayed, restarted)]
        assert output[0] == output[1]
    assert stayed.dump() == restarted.dump()


def _plain(decision: Decision) -> tuple[Any, ...]:
    return decision.hits, decision.slow_s, decision.clock_s, decision.takes_effect


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_defaults_of_every_kind_are_valid(name: str) -> None:
    fault = read({"kind": name})
    assert fault.operations == set(KINDS[name].operations)
    assert set(KINDS[name].operations) <= {*OPERATIONS, *RELAY}
    assert dict(fault.parameters) == dict(KINDS[name].parameters)


@pytest.mark.parametrize(("data", "expected"), [
    ([], r"^A fault must be an object, not \[\]\.$"),
    ({}, "A fault needs a kind; there are status, lost_reply,"),
    ({"kind": "boom"}, 'There is no fault of kind "boom"; there are'),
    ({"kind": ["drop"]}, "A fault needs a kind; there are"),
    ({"kind": "drop", "wen": {}}, 'no field "wen" in a fault of kind "drop"; there are kind, operation, caller'),
    ({"kind": "drop", "seconds": 1}, 'no field "seconds" in a fault of kind "drop"'),
    ({"kind": "drop", "operation": "nodes.destroy"}, 'There is no operation "nodes.destroy"; there are nodes.create'),
    ({"kind": "drop", "operation": 3}, "operation must be a string like nodes.delete"),
    ({"kind": "hidden", "operation": "nodes.get"},
     'of kind "hidden" concerns nodes.create, queuedResources.create, not nodes.get'),
    ({"kind": "drop", "caller": "me"}, "caller must be one of client, vm, any, not 'me'"),
    ({"kind": "drop", "match": 1}, "Match must be an object, not 1"),
    ({"kind": "drop", "match": {"name": "n"}}, 'no field "name" in match; there are node, zone, state'),
    ({"kind": "drop", "match": {"node": 1}}, "match.node must be a string, not 1"),
    ({"kind": "drop", "when": {"nth": 1}}, 'no field "nth" in when; there are calls, first'),
    ({"kind": "drop", "when": {"calls": 0}}, "counts upwards from 1"),
    ({"kind": "drop", "when": {"calls": "3-2"}}, "counts upwards from 1"),
    ({"kind": "drop", "when": {"calls": "x"}}, "when.calls must be like 2"),
    ({"kind": "drop", "when": {"calls": "٣"}}, "when.calls must be like 2"),
    ({"kind": "drop", "when": {"calls": "1", "first": 1}}, "give one of them"),
    ({"kind": "drop", "when": {"first": 0}}, "when.first must be a whole number from 1"),
    ({"kind": "drop", "when": {"probability": 1.5}}, "when.probability must be a number from 0 to 1, not 1.5"),
    ({"kind": "drop", "when": {"probability": "1"}}, "when.probability must be a number"),
    ({"kind": "drop", "when": {"seed": 0.5}}, "when.seed must be a whole number"),
    ({"kind": "drop", "when": {"from_s": -1}}, "when.from_s must be a number from 0"),
    ({"kind": "drop", "when": {"from_s": 5, "until_s": 5}}, "must be after"),
    ({"kind": "hidden", "seconds": "5"}, "seconds must be a number from 0 to 1e\\+09, not '5'"),
    ({"kind": "hidden", "seconds": True}, "seconds must be a number from 0 to 1e\\+09, not True"),
    ({"kind": "hidden", "seconds": float("nan")}, "seconds must be a number from 0 to 1e\\+09, not nan"),
    ({"kind": "hidden", "seconds": -1}, "seconds must be a number from 0 to 1e\\+09, not -1"),
    ({"kind": "hidden", "seconds": float("inf")}, "seconds must be a number from"),
    ({"kind": "status", "status": 418}, "status must be one of 400, 401"),
    ({"kind": "status", "effect": 1}, "effect must be true or false, not 1"),
    ({"kind": "status", "message": 1}, "message must be a string, not 1"),
    ({"kind": "create_fails", "literal": "nothing"}, "literal must be a google.rpc.Status as JSON"),
    ({"kind": "operation_fails", "literal": '{"code": "5"}'}, "literal must be a google.rpc.Status as JSON"),
    ({"kind": "garbage", "form": "xml"}, "form must be one of truncated, html"),
    ({"kind": "unreachable", "zones": "a"}, "zones must be a list of strings"),
    ({"kind": "relay_refuse", "close_code": 999}, "close_code must be a whole number from 1000 to 4999, not 999"),
    ({"kind": "relay_close", "close_code": 5000}, "close_code must be a whole number from 1000 to 4999, not 5000"),
    ({"kind": "relay_slow", "bytes_per_s": 0}, "bytes_per_s must be a number from 1 to 1e\\+09, not 0"),
])  # fmt: skip
def test_a_mistake_is_one_clear_line(data: Any, expected: str) -> None:
    with pytest.raises(BadData, match=expected) as caught:
        read(data)
    assert "\n" not in str(caught.value)
