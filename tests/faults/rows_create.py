"""Rows 9-18, 57, 58: create calls that lie, come late, fail, or are deleted before they are done."""

from __future__ import annotations

from typing import Any

from tests.faults.row import row
from tests.faults.world import World
from tests.waiting import until

ONE_NODE = "this version makes one node for a run, not several slices"
TOO_LATE = "assumption A1 is broken: the create shows up later than the API promises, and nobody can wait for ever"


@row("9", "the reply to the create call is lost, and it had its effect")
def lost_reply(w: World) -> None:
    _one_node(w, "lost_reply")


@row("10", "the create call is answered with 503, and it had its effect")
def unavailable_with_effect(w: World) -> None:
    _one_node(w, "status", status=503, effect=True)


@row("11", "the create call is answered with 503, and it had none")
def unavailable_without_effect(w: World) -> None:
    _one_node(w, "status", status=503)


def _one_node(w: World, kind: str, **parameters: Any) -> None:
    w.fault(kind, "nodes.create", when={"first": 1}, **parameters)
    done = w.do("run", w.hello)
    assert done.code() == 0, done.err
    assert len(w.requests("nodes.create")) == 2 and w.lived() == 1
    w.keeps("C0", w.job_ended_at, w.promise.own())
    assert w.states() == {"gone"}


@row("12", "the create's operation goes on long after the client is gone", provision_s=4)
def slow_create(w: World) -> None:
    w.fault("lost_reply", "nodes.create", when={"first": 1})
    w.fault("refuse_delete")
    died_at = w.crash("Sleep:1:before", "run", w.hello)
    w.until_alone()
    assert w.lived() == 1
    w.keeps("C1, ready in 4 s", died_at, w.promise.guardian(ready_in_s=4))
    assert w.states() == {"gone"}


@row("13a", "the create shows up only after a while: absence now proves nothing", provision_s=2)
def shows_up_late(w: World) -> None:
    w.fault("hidden", seconds=1.5)
    w.fault("lost_reply", "nodes.create", when={"first": 1})
    died_at = w.crash("Sleep:1:before", "run", w.hello)
    w.until_alone()
    assert w.lived() == 1
    w.keeps("C1, ready in 2 s", died_at, w.promise.guardian(ready_in_s=2))
    assert w.states() == {"gone"}


@row("13a'", "the create lands late, as late as the API promises, after its sender died")
def lands_late(w: World) -> None:
    w.fault("late", seconds=1.5)
    died_at = w.crash("Sleep:1:before", "run", w.hello)
    w.until_alone()
    assert w.lived() == 1
    w.keeps("C1, ready in 1.5 s", died_at, w.promise.guardian(ready_in_s=1.5))
    assert w.states() == {"gone"}


@row("13b", "a delete while CREATING is dropped without a word, and the slice comes to life", provision_s=10)
def delete_dropped(w: World) -> None:
    w.fault("delete_dropped")
    command = w.begin("run", w.hello)
    w.until_alive("CREATING")
    until(lambda: w.states() == {"creating"}, "its create call was answered")
    pressed_at = command.press()
    assert command.code() == 130, command.err
    w.keeps("C0, ready in 10 s", pressed_at, w.promise.own(ready_in_s=10))
    assert w.states() == {"gone"}


@row("14", "the create lands later than the API promises", limit=TOO_LATE, history={"gone_is_true": False}, speed=100)
def lands_too_late(w: World) -> None:
    """GONE was said in good faith, and the switch that travelled in the create call ends the slice all the same.

    At a speed that leaves no command the time to show a sign of life; here none does."""
    w.fault("late", seconds=40)
    w.crash("Sleep:1:before", "run", w.hello)
    w.until_alone()
    assert w.states() == {"gone"} and w.lived() == 0
    w.until_absent()
    w.keeps("C3', from its landing on", 0.0, w.promise.creating(0))


@row("15", "the create fails, and leaves a node in CREATING behind")
def leaves_a_node(w: World) -> None:
    w.fault("create_fails_leaving_node")
    done = w.do("run", w.hello)
    assert done.code() == 69 and "no capacity" in done.err
    assert w.lived() == 1
    w.keeps("C0", 0.0, w.promise.own())
    assert w.states() == {"gone"}


@row("57", "the next zone is asked, and the create in the first one lands late")
def late_in_the_first_zone(w: World) -> None:
    """One create of the first zone gets no reply and lands later, the next one is told that there is no capacity.

    Not as late as the API promises, which is made a longer time, so that the second one has left before on any machine."""
    w.fault("late", seconds=10, match={"zone": "us-east1-b"}, when={"first": 1})
    w.fault("stockout", match={"zone": "us-east1-b"}, when={"calls": 2})
    done = w.do("run", w.brief("us-east1"), bend={"orchestrator.clouds.tpu.calls:EMULATED_VISIBLE_S": 20.0})
    assert done.code() == 0, done.err
    assert "us-east1-b   no capacity (released: absent)" in done.err
    w.keeps("C0", w.job_ended_at, w.promise.own())  # and `check_history`: never two at once
    assert w.states() == {"gone"}


@row("58", "three of four slices of a multislice job come up", limit=ONE_NODE)
def multislice(w: World) -> None:
    refused = w.do("run", w.job("name: work\ntpu: {zone: us-central1-a, slices: 4}\ncommand: ls\n"))
    assert refused.code() == 64 and "unknown key" in refused.err
    assert w.leases() == []
