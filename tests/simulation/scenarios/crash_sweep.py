"""The exhaustive sweep: canonical lives, and a death of every kind at every step of each.

A step is a point before an effect, between a call and its effect, between the effect and the reply, or after the reply. This
is the small model checker of the guarantee: no step may exist at which a death violates an invariant.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.promise.lease.access import AccessWish
from tests.simulation.model.cluster import ClusterPlan
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.faults import FOREVER, FaultPlan, cloud_fault
from tests.simulation.model.world import RACE_ZONES, ZONES, Layers, Result, World
from tests.simulation.scenarios.clusters import ClusterWorkload
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.random_worlds import Workload

KINDS = ("cli", "cli+guardian", "machine", "signal")
CANCELED = ("cancel", "cli+cancel")  # a run from another terminal, which goes on or has just been killed
QUICK: dict[str, Any] = {"provision_s": 2.0, "delete_s": 0.5}
JOB = Workload("run", lasts_s=3.0, boot_s=0.5)


@dataclass(frozen=True)
class Scenario:
    """A canonical life. `victim` is the process whose steps are counted, `rest` are the other fields of the fault plan."""

    name: str
    workload: Workload = JOB
    victim: str = "run"
    rest: dict[str, Any] = field(default_factory=dict)

    def plan(self, crash: tuple[str | None, float, str]) -> FaultPlan:
        rest = {**QUICK, **self.rest}
        crashes = [*rest.pop("crashes", []), crash]
        return FaultPlan(crashes=crashes, **rest)

    def world(self, step: int, kind: str, *, trace: bool = False, layers: Layers | None = None) -> World:
        return World(7, self.workload, self.plan((self.victim, step, kind)), trace=trace, layers=layers)

    def steps(self) -> int:
        return self.world(0, "cli").run().steps.get(self.victim, 0)


ON_CLUSTER = ClusterWorkload(Workload("run", lasts_s=3.0))


@dataclass(frozen=True)
class ClusterScenario(Scenario):
    """A canonical life on a cluster."""

    on_cluster: ClusterWorkload = ON_CLUSTER

    def world(self, step: int, kind: str, *, trace: bool = False, layers: Layers | None = None) -> World:
        rest = deepcopy(self.rest)  # a world uses up its plan
        plan = ClusterPlan(crashes=[*rest.pop("crashes", []), (self.victim, step, kind)], **rest)
        return ClusterWorld(7, self.on_cluster, plan, trace=trace, layers=layers)


def _dropped(hidden: bool) -> dict[str, Any]:
    return {"while_creating": cloud_fault("delete_dropped", "nodes.delete", hidden=hidden)}


RACE = replace(JOB, candidates=Candidates(RACE_ZONES[:3], 3, 30.0, race=True))
LATER: dict[str, Any] = {"full": [(RACE_ZONES[0], 0.0, 60.0), (RACE_ZONES[2], 0.0, 3.5)]}
FAILED = Workload("failing", lasts_s=3.0, rc=7, hold_s=30.0, boot_s=0.5, keeps_failed=True)
SWEEP = Workload("sweep", lasts_s=3.0, boot_s=0.5)
HELD = Workload("up", hold_s=30.0, down_at=20.0, boot_s=0.5)
OS_LOGIN = AccessWish(os_login="on")
WITH_KEY = replace(JOB, wish=OS_LOGIN)
REFUSED: dict[str, Any] = {"forbid_external_ips": True, "require_os_login": True}
SUBMITTED = ClusterWorkload(Workload("run", lasts_s=6.0), detach=True, attach_at=(3.0,))
SCENARIOS = (
    Scenario("a run"),
    Scenario("a run with a timer", replace(JOB, timer_s=10.0)),
    Scenario("a failing job on two workers", Workload("failing", lasts_s=3.0, rc=7, workers=2, boot_s=0.5)),
    Scenario("no capacity in the first zone", rest={"stockouts": ZONES[:1]}),
    Scenario("the create's reply is lost", rest={"lost_creates": 1}),
    Scenario("a late create", rest={"create_effects": [cloud_fault("late", "nodes.create", seconds=6.0)]}),
    Scenario("a create that is visible late",
             rest={"create_effects": [cloud_fault("hidden", "nodes.create", seconds=7.0)]}),
    Scenario("deletes while CREATING are dropped", rest=_dropped(hidden=True)),
    Scenario("the delete's operation fails",
             rest={"delete_effects": [cloud_fault("operation_fails", "nodes.delete")] * 2}),
    Scenario("a run that is kept", Workload("keep", lasts_s=3.0, hold_s=30.0, boot_s=0.5)),
    Scenario("a job that fails and keeps its slice", FAILED),
    Scenario("the next run on that slice", replace(FAILED, again_at=20.0), victim="again"),
    Scenario("a next run that fails, too", replace(FAILED, again_at=20.0, fails_again=True), victim="again"),
    Scenario("a slice that is held", HELD, victim="up"),
    Scenario("a hold that expires", replace(HELD, down_at=None), victim="up"),
    Scenario("the end of a hold", HELD, victim="down"),
    Scenario("a detached run", Workload("detached", lasts_s=6.0, boot_s=0.5)),
    Scenario("the collector of a detached run", Workload("detached", lasts_s=6.0, boot_s=0.5), victim="collector"),
    Scenario("the recovery after a kill", replace(JOB, timer_s=10.0), victim="recovery by the guardian of run",
             rest={"crashes": [("run", 60, "cli")]}),
    Scenario("the recovery of a create in flight", replace(JOB, timer_s=10.0), victim="recovery by the guardian of run",
             rest={"crashes": [("run", 44, "cli")], "lost_creates": 1, **_dropped(hidden=True)}),
    Scenario("two jobs of a sweep on one slice", SWEEP),
    Scenario("two jobs of a sweep, of which the first fails", replace(SWEEP, rc=7)),
    Scenario("a sweep whose slice is preempted between its jobs", SWEEP, rest={"preemptions": [(7.5, 0.0)]}),
    Scenario("two runs at once", Workload("two", lasts_s=3.0, second_at=1.0, boot_s=0.5)),
    Scenario("race of three", RACE),
    Scenario(
        "race of three, two READY while deletes fail",
        RACE,
        rest={
            "full": [(RACE_ZONES[0], 0.0, 60.0)],
            "request_delete_effects": [cloud_fault("operation_fails", "queuedResources.delete", seconds=1.0)] * 2,
        },
    ),
    Scenario("detached race of three", replace(RACE, kind="detached", lasts_s=6.0), rest=LATER),
    Scenario("the recovery of a race", replace(RACE, timer_s=10.0), victim="recovery by the guardian of run",
             rest={"crashes": [("run", 170, "cli")], **LATER}),
    Scenario("wait out a stockout", replace(JOB, candidates=Candidates(ZONES[:2], 0, 60.0)),
             rest={"full": [(zone, 0.0, 8.0) for zone in ZONES[:2]]}),
    Scenario("a queued request that gets nothing in time", replace(JOB, candidates=Candidates(ZONES[:1], 1, 6.0)),
             rest={"full": [(ZONES[0], 0.0, 60.0)]}),
    Scenario("preempted and restarted",
             replace(JOB, lasts_s=5.0, candidates=Candidates(ZONES[:1], spot=True, restarts=2)),
             rest={"preemptions": [(5.5, 1.0), (12.0, 0.0)]}),
    Scenario("preempted and restarted from a queue",
             replace(JOB, lasts_s=5.0, candidates=Candidates(ZONES[:1], 1, 30.0, spot=True, restarts=1)),
             rest={"preemptions": [(8.0, 0.0)]}),
    Scenario("no disk space for results", replace(JOB, no_room_until=1e6)),
    Scenario("collecting afterwards", replace(JOB, no_room_until=20.0, collect_at=25.0), victim="collect"),
    Scenario("a run with OS Login", WITH_KEY),
    Scenario("a run with OS Login whose import is slow", WITH_KEY,
             rest={"login_rates": {"slow": 1.0}, "rates_until": 0.25}),
    Scenario("a held slice with OS Login", replace(HELD, wish=OS_LOGIN, extend_at=10.0), victim="down"),
    Scenario("both policies refuse", rest=REFUSED),
    Scenario("a policy refuses, and the node exists all the same", rest={**REFUSED, "policy_says": "in spite"}),
    Scenario("the operation of a refused create leaves a node", rest={**REFUSED, "policy_says": "operation"}),
    ClusterScenario("a run on a cluster"),
    ClusterScenario("a job that fails on a cluster", on_cluster=ClusterWorkload(Workload("run", lasts_s=3.0, rc=7))),
    ClusterScenario("a run on a cluster without a queue", on_cluster=replace(ON_CLUSTER, queued=False)),
    ClusterScenario("a run that no cluster admits", on_cluster=ON_CLUSTER, rest={"admitted_after": None}),
    ClusterScenario("replies to posts are lost", rest={"late_posts": [0.05, 0.05]}),
    ClusterScenario("posts that arrive late", rest={"late_posts": [25.0, 60.0]}),
    ClusterScenario("pods that take their time to end", rest={"pod_stop_s": 40.0, "taken": [(8.0, 1, "evicted")]}),
    ClusterScenario("a detached run on a cluster", on_cluster=SUBMITTED),
    ClusterScenario("the one who attaches on a cluster", on_cluster=SUBMITTED, victim="attach"),
    ClusterScenario("cancel on a cluster", on_cluster=replace(SUBMITTED, cancel_at=7.5), victim="cancel"),
    ClusterScenario("the recovery of a run on a cluster",
                    on_cluster=replace(ON_CLUSTER, job=replace(ON_CLUSTER.job, timer_s=60.0)),
                    victim="recovery by the guardian of run",
                    rest={"crashes": [("run", 40, "cli")], "late_posts": [0.05], "pod_stop_s": 10.0}),
    Scenario("only the watchdog", rest={"guardian": "off", "cut": {"laptop-api": [(4.0, FOREVER)]}}),
)  # fmt: skip


def kinds_of(scenario: Scenario) -> tuple[str, ...]:
    if scenario.victim == "run" and type(scenario) is Scenario:
        return (*KINDS, *CANCELED)
    return KINDS if scenario.victim in ("run", "up", "again") else ("cli", "guardian", "machine")


def deaths(scenario: Scenario, *kinds: str) -> Iterator[tuple[int, str]]:
    for step in range(1, scenario.steps() + 1):
        for kind in kinds or kinds_of(scenario):
            yield step, kind


def sweep(scenario: Scenario, *kinds: str) -> tuple[int, list[tuple[int, str, Result]]]:
    """Return the number of deaths (of these kinds, or of all) and those that violated something."""
    count, broken = 0, []
    for step, kind in deaths(scenario, *kinds):
        count += 1
        result = scenario.world(step, kind).run()
        if result.violations:
            broken.append((step, kind, result))
    return count, broken
