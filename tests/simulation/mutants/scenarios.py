"""Where mutants are hunted: small families of worlds, each about one promise, most with all layers but one switched off.

Every ground holds for the production code (`test_mutants` checks that first), so whatever breaks there is the mutant's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from orchestrator.engine.leases.gc import collect_garbage
from tests.simulation.model.cloud import PROJECT
from tests.simulation.model.faults import FOREVER, FaultPlan, cloud_fault
from tests.simulation.model.world import RACE_ZONES, ZONES, Layers, Result, Violation, World
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.scenarios import commands
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.crash_sweep import SCENARIOS, Scenario, deaths
from tests.simulation.scenarios.random_worlds import Workload, world_of

Plays = Iterator[tuple[str, Callable[[], Result]]]  # what it is called, how it is played
MUTANT_SCENARIOS: dict[str, Callable[[], Plays]] = {}
NO_LAYER = Layers(guardian=False, watchdog=False, gc=False, timer=False)
WATCHDOG_ONLY, GC_ONLY, GUARDIAN_ONLY = (replace(NO_LAYER, **{layer: True}) for layer in ("watchdog", "gc", "guardian"))
RUN = Workload("run", lasts_s=10.0, boot_s=1.0)
RACE = replace(RUN, candidates=Candidates(RACE_ZONES[:3], 3, 40.0, race=True))
QUEUED = replace(RUN, candidates=Candidates(ZONES[:1], 1, 40.0))


def scenario(made: Callable[[], Plays]) -> Callable[[], Plays]:
    MUTANT_SCENARIOS[made.__name__] = made
    return made


def one(workload: Workload, *, layers: Layers | None = None, seed: int = 1, **plan: Any) -> Callable[[], Result]:
    return lambda: World(seed, workload, FaultPlan(**plan), layers=layers).run()


def _seeds(count: int, workload: Workload, layers: Layers | None = None, **plan: Any) -> Plays:
    for seed in range(count):
        yield f"seed {seed}", one(workload, layers=layers, seed=seed, **plan)


def _deaths(scenarios: tuple[Scenario, ...], layers: Layers | None = None, every: int = 1) -> Plays:
    for scenario in scenarios:
        for number, (step, kind) in enumerate(deaths(scenario)):
            if number % every == 0:
                name = f"{scenario.name}, {kind} dies at step {step}"
                yield name, lambda s=scenario, n=step, k=kind: s.world(n, k, layers=layers).run()  # type: ignore[misc]


# -- whole worlds ------------------------------------------------------------------------------------------------------


@scenario
def worlds() -> Plays:
    for seed in range(400):
        yield f"world {seed}", lambda seed=seed: world_of(seed).run()  # type: ignore[misc]


@scenario
def deaths_everywhere() -> Plays:
    """Named `deaths` below: a function of that name is imported here."""
    chosen = ("a run", "the create's reply is lost", "a create that comes late", "deletes of a coming node are dropped")
    return _deaths(tuple(s for s in SCENARIOS if s.name in chosen), every=4)


MUTANT_SCENARIOS["deaths"] = deaths_everywhere


@scenario
def deaths_alone() -> Plays:
    """The guardian is the only one who could act."""
    return _deaths((SCENARIOS[0],), GUARDIAN_ONLY, every=3)


# -- the command itself --------------------------------------------------------------------------------------------------


@scenario
def only_command() -> Plays:
    """Nobody else would finish a teardown."""
    for at in (0.5, 2.0, 4.0, 8.0, 12.0):
        failing = [cloud_fault("operation_fails", "nodes.delete")]
        yield f"Ctrl-C twice at {at} s", one(RUN, layers=NO_LAYER, signals=[at, at + 0.3], delete_effects=failing)
        slow = {"rates": {"e503": 0.5}, "rates_until": 60.0, "signals": [at]}
        yield f"Ctrl-C at {at} s, the API stutters", one(RUN, layers=NO_LAYER, **slow)
        gone = {"forbidden": {"laptop-api": [(at, at + 60.0)]}, "signals": [at + 0.5]}
        yield f"no permission from {at} s on", one(RUN, layers=NO_LAYER, **gone)


@scenario
def create_seen_late() -> Plays:
    late = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    for down_at in (3.0, 4.0, 5.0, 6.0, 7.0):
        workload = replace(RUN, down_at=down_at)
        yield f"down at {down_at} s", one(workload, layers=NO_LAYER, create_effects=late)
        crash = {"crashes": [(None, down_at, "cli")], "command_after_s": 0.5}
        yield f"killed at {down_at} s", one(RUN, layers=NO_LAYER, create_effects=late, **crash)


@scenario
def failing_deletes() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=NO_LAYER, delete_effects=effects)


@scenario
def stalled_delete() -> Plays:
    """Accepted, DELETING, and nothing more happens until somebody asks once more."""
    for times in (1, 2):
        stalled = [cloud_fault("stalled", "nodes.delete")] * times
        yield f"{times} times", one(RUN, layers=NO_LAYER, delete_effects=stalled)


@scenario
def create_under_way_unlisted() -> Plays:
    """The create goes on, its node is not visible yet, and of the operations nobody hears but that there may be more."""
    unlisted = [("operations.list", (0.0, 30.0), cloud_fault("unreachable", "operations.list"))]
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "spoiled": unlisted, **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def create_of_an_unknown_verb() -> Plays:
    """The operations are all there, and the create among them has a name that nobody here ever heard."""
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "create_verb": "provision", **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def landing_between_two_answers() -> Plays:
    """The node comes while the answer that knows of no create is on its way; the list that follows is an old one."""
    stale = [("nodes.list", (5.0, 60.0), cloud_fault("stale_list", "nodes.list", seconds=20.0))]
    for late_s in (9.0, 11.0, 13.0, 14.0):
        late = [cloud_fault("late", "nodes.create", seconds=late_s)] * 9
        rest = {"create_effects": late, "spoiled": stale, "slow_replies": {"operations.list": 4.0}}
        yield f"{late_s} s late", one(RUN, layers=NO_LAYER, signals=[0.4], **rest)


@scenario
def revoked() -> Plays:
    for at in (3.0, 8.0):
        yield f"from {at} s on", one(RUN, layers=NO_LAYER, forbidden={"laptop-api": [(at, FOREVER)]})


@scenario
def lost_create() -> Plays:
    for lost in (1, 2):
        yield f"{lost} replies lost", one(RUN, layers=NO_LAYER, lost_creates=lost)
        late = [cloud_fault("late", "nodes.create", seconds=6.0)]
        yield f"{lost} late", one(RUN, layers=NO_LAYER, create_effects=late * lost)


@scenario
def stockout_leaves_node() -> Plays:
    effects = [cloud_fault("create_fails_leaving_node", "nodes.create", state="TERMINATED")]
    yield "the failed create leaves a node", one(RUN, layers=NO_LAYER, create_effects=effects, stockouts=ZONES[:1])


@scenario
def taken_name() -> Plays:
    def played() -> Result:
        def workload(world: World) -> None:
            RUN(world)
            commands.take_name(world)

        return World(3, workload, FaultPlan(), layers=NO_LAYER).run()

    yield "somebody else has the name", played


@scenario
def slow_create() -> Plays:
    workload = replace(RUN, life_s=30.0)
    yield "READY after its deadline", one(workload, layers=NO_LAYER, provision_s=100.0)


# -- claims --------------------------------------------------------------------------------------------------------------


@scenario
def long_runs() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=420.0, workers=workers, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def kept() -> Plays:
    yield "kept", one(Workload("keep", lasts_s=4.0, hold_s=90.0))


@scenario
def kept_labels_lost() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.patch", seconds=1.0)]
        yield kind, one(Workload("keep", lasts_s=4.0, hold_s=90.0), patch_effects=effects)


@scenario
def wrong_clock() -> Plays:
    for offset_s in (-86400.0, 86400.0):
        workload = replace(RUN, lasts_s=30.0, life_s=200.0, gc_every_s=20.0)
        crash = {"crashes": [(None, 12.0, "machine")]} if offset_s > 0 else {}
        yield f"{offset_s:+.0f} s", one(workload, clock_offset_s=offset_s, **crash)
        alone = {"crashes": [(None, 12.0, "machine")], "clock_offset_s": offset_s, "script_runs": False}
        yield f"{offset_s:+.0f} s, for gc", one(workload, layers=GC_ONLY, **alone)


@scenario
def clock_set_forward_at_create() -> Plays:
    """The create comes late and unanswered; then the wall clock says that two hours have passed."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, signals=[tenth / 10], **rest)


@scenario
def clock_set_in_a_run() -> Plays:
    for by_s in (7200.0, -7200.0, 86400.0):
        for at in (2.0, 12.0):
            yield f"{by_s:+.0f} s at {at} s", _succeeds(RUN, clock_steps=[(at, by_s)])


@scenario
def clock_put_right_while_held() -> Plays:
    workload = Workload("up", hold_s=60.0, timer_s=10.0)
    for behind_s in (7200.0, 86400.0):
        yield f"{behind_s:.0f} s", one(workload, clock_offset_s=-behind_s, clock_steps=[(20.0, behind_s)])


@scenario
def restarted_with_another_clock() -> Plays:
    """The create is on its way when the power fails; when it is back, the wall clock is two hours ahead."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"crashes": [(None, tenth / 10, "machine")], "reboot_after_s": 0.5, "command_after_s": 0.2}
        steps = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"power cut at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest, **steps)


@scenario
def restarted_after_the_hold() -> Plays:
    """Off while the hold ended. The recovery of the next start is the only one who could act."""
    workload = Workload("up", hold_s=300.0, timer_s=10.0)
    alone = {"layers": replace(NO_LAYER, timer=True), "crashes": [(None, 20.0, "machine")], "reboot_after_s": 600.0}
    yield "the wall clock goes on", one(workload, **alone)  # type: ignore[arg-type]
    yield "the wall clock went back", one(workload, clock_steps=[(30.0, -7200.0)], **alone)  # type: ignore[arg-type]


@scenario
def extended() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=300.0, workers=workers, extend_at=15.0, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def extended_answer_lost() -> Plays:
    workload = Workload("up", hold_s=60.0, extend_at=20.0, gc_every_s=10.0, life_s=60.0)
    yield "a hold", one(workload, layers=GC_ONLY, lost_patches=2, **_dead_laptop(40.0))


@scenario
def extended_at_hand_over() -> Plays:
    for tenth in range(60, 120):
        workload = Workload("detached", lasts_s=80.0, extend_at=tenth / 10)
        yield f"at {tenth / 10} s", one(workload)


@scenario
def extended_before_it_is_followed() -> Plays:
    for extend_at in (10.0, 18.6, 23.0):
        workload = Workload("detached", lasts_s=40.0, life_s=30.0, extend_at=extend_at, boot_s=4.0)
        yield f"extended at {extend_at} s", one(workload)


@scenario
def lid_closed_at_create() -> Plays:
    for tenth in range(0, 8):
        begin = tenth / 50
        yield f"lid closed at {begin} s", one(Workload("up", hold_s=200.0), asleep=[(begin, begin + 900.0)])


@scenario
def clock_behind_and_blind() -> Plays:
    hidden = [cloud_fault("hidden", "nodes.create", seconds=9.0)]
    yield "seen late", one(RUN, clock_offset_s=-86400.0, create_effects=hidden)


@scenario
def down_at_hand_over() -> Plays:
    for tenth in range(70, 110, 2):
        yield f"down at {tenth / 10} s", one(Workload("detached", lasts_s=40.0, down_at=tenth / 10))


@scenario
def end_with_dead_worker() -> Plays:
    workload = Workload("run", lasts_s=900.0, life_s=300.0)
    yield "no answer at the deadline", one(workload, layers=NO_LAYER, worker_dies=[(0, 200.0, None)])
    yield (
        "no answer at the end of the job",
        one(replace(workload, lasts_s=250.0), layers=NO_LAYER, worker_dies=[(0, 254.0, None)]),
    )


@scenario
def end_while_collecting() -> Plays:
    """Results come and come: the deadline is the end of it."""
    yield "after the job", one(replace(RUN, life_s=200.0, collect_s=1500.0), layers=NO_LAYER)
    yield "at the deadline", one(replace(RUN, lasts_s=900.0, life_s=300.0, collect_s=1500.0), layers=NO_LAYER)


@scenario
def results_left_behind() -> Plays:
    """There is no room for the results: the slice is held for them, for no longer than was said, and goes once they came."""
    full = replace(RUN, no_room_until=1e6)
    yield "the guardian ends the hold", one(full, layers=GUARDIAN_ONLY)
    yield "the switch ends the hold", one(full, layers=WATCHDOG_ONLY, crashes=[(None, 60.0, "machine")])
    yield "the deadline comes first", one(replace(full, life_s=60.0), layers=GUARDIAN_ONLY)
    yield "in vain, again and again", one(replace(full, collect_at=60.0), layers=GUARDIAN_ONLY)
    later = replace(full, no_room_until=50.0, collect_at=60.0)
    yield "collected", one(later, layers=NO_LAYER)
    yield "collected, slowly", one(replace(later, collect_s=100.0), layers=GUARDIAN_ONLY)
    yield (
        "killed while it collects",
        one(replace(later, collect_s=100.0), layers=GUARDIAN_ONLY, crashes=[(None, 90.0, "cli")]),
    )
    yield "of a detached run", one(replace(full, kind="detached"), layers=WATCHDOG_ONLY)


@scenario
def proved_by_another() -> Plays:
    workload = Workload("run", lasts_s=20.0, down_at=15.0)
    rest = {"stopped": [(10.0, 40.0)], "forbidden": {"laptop-api": [(30.0, FOREVER)]}}
    yield "down, then no permission", one(workload, layers=NO_LAYER, **rest)


@scenario
def client_cut_off() -> Plays:
    for at in (12.0, 15.0):
        yield f"at {at} s", one(RUN, layers=WATCHDOG_ONLY, cut={"laptop-api": [(at, FOREVER)]})


@scenario
def detached_unarmed() -> Plays:
    yield "no switch", one(Workload("detached", lasts_s=10.0), script_runs=False)
    yield "no permission", one(Workload("detached", lasts_s=10.0), forbidden={"vm-api": [(0.0, FOREVER)]})


# -- recovery and guardian -----------------------------------------------------------------------------------------------


@scenario
def disk_full() -> Plays:
    for at in (3.0, 8.0):
        rest = {"disk_full": (at, FOREVER), "crashes": [(None, at + 0.5, "cli")]}
        yield f"killed at {at + 0.5} s", one(RUN, layers=GUARDIAN_ONLY, **rest)


@scenario
def holds_alone() -> Plays:
    yield "held", one(Workload("up", hold_s=60.0), layers=GUARDIAN_ONLY)


@scenario
def timer_beside_runs() -> Plays:
    yield "a timer", one(Workload("run", lasts_s=40.0, timer_s=10.0))


# -- the switch ------------------------------------------------------------------------------------------------------------


def _dead_laptop(at: float) -> dict[str, Any]:
    return {"crashes": [(None, at, "machine")]}


@scenario
def only_switch() -> Plays:
    for at in (1.0, 6.0, 8.0, 12.0):
        yield f"power cut at {at} s", one(RUN, layers=WATCHDOG_ONLY, **_dead_laptop(at))
        again = {"watchdog_dies": [(0, at + 2.0, 0.5)], **_dead_laptop(at)}
        yield f"power cut at {at} s, the switch restarts", one(RUN, layers=WATCHDOG_ONLY, **again)


@scenario
def vm_pauses() -> Plays:
    for begin, length in ((15.0, 40.0), (20.0, 100.0)):
        workload = Workload("run", lasts_s=200.0, workers=2)
        yield f"{length} s", one(workload, vms_paused=[(begin, begin + length)])


@scenario
def switch_alone_flaky() -> Plays:
    flaky = {"rates": {"drop": 0.35, "lost_reply": 0.15}}
    return _seeds(10, RUN, WATCHDOG_ONLY, **flaky, **_dead_laptop(12.0))


@scenario
def second_worker_flaky() -> Plays:
    """Worker 0 is dead; the others go by the label, over a bad line."""
    rest = {"rates": {"drop": 0.3, "lost_reply": 0.2}, "worker_dies": [(0, 14.0, None)], **_dead_laptop(12.0)}
    return _seeds(10, replace(RUN, workers=2), WATCHDOG_ONLY, **rest)


@scenario
def switch_alone_failing() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=WATCHDOG_ONLY, delete_effects=effects, **_dead_laptop(12.0))


# -- gc --------------------------------------------------------------------------------------------------------------------


@scenario
def gc_beside_runs() -> Plays:
    yield "a run", one(Workload("run", lasts_s=100.0, gc_every_s=20.0))


@scenario
def gc_alone_flaky() -> Plays:
    flaky = {"rates": {"e503": 0.1, "lost_reply": 0.1}}
    return _seeds(20, replace(RUN, gc_every_s=600.0), GC_ONLY, **flaky, **_dead_laptop(12.0))


@scenario
def gc_alone_failing() -> Plays:
    effects = [cloud_fault("operation_fails", "nodes.delete")] * 10
    return _seeds(3, replace(RUN, gc_every_s=60.0), GC_ONLY, delete_effects=effects, **_dead_laptop(12.0))


@scenario
def gc_among_neighbours() -> Plays:
    yield "neighbours", one(replace(RUN, gc_every_s=10.0, foreign_slices=True))


@scenario
def gc_partly_blind() -> Plays:
    """A gc run that could not see a zone says so: it is never done."""

    def played() -> Result:
        def workload(world: World) -> None:
            RUN(world)
            program = collect_garbage(PROJECT, ZONES, world.capabilities, deadline_s=30.0)
            process = world.laptop.run("gc", program, role="timer")
            assert process is not None

            def ended(_: Any) -> None:
                if process.result is not None and process.result.done:
                    world.violations.append(_untrue(world))

            process.on_exit = ended

        return World(3, workload, FaultPlan(unreachable=1.0), layers=NO_LAYER).run()

    yield "zones unreachable all the time", played


def _untrue(world: World) -> Violation:
    return Violation(
        Invariant.HONEST_EXIT_CODE, world.faults.elapsed_s(), "gc says that it saw everything, though every list was partial"
    )


# -- not enough capacity ---------------------------------------------------------------------------------------------------


def _failing(kind: str, count: int, seconds: float = 1.0) -> list[Any]:
    return [cloud_fault(kind, "queuedResources.delete", seconds=seconds)] * count


@scenario
def loser_whose_delete_fails() -> Plays:
    """Both come at the same moment, and the first deletes of the one that lost come to nothing."""
    for kind in ("operation_fails", "operation_forgets"):
        workload = replace(RACE, lasts_s=400.0)
        yield kind, one(workload, layers=NO_LAYER, request_delete_effects=_failing(kind, 2))


@scenario
def loser_when_the_winner_stays() -> Plays:
    """The command ends long before the one that lost is gone."""
    for kind in ("keep", "detached"):
        workload = replace(RACE, kind=kind, lasts_s=2.0, hold_s=120.0)
        yield kind, one(workload, layers=WATCHDOG_ONLY, request_delete_effects=_failing("stuck", 2, 60.0))


@scenario
def killed_in_a_race() -> Plays:
    """The deletes of the first one fail for a while: that is no reason to leave the others alone."""
    full = [(zone, 0.0, 90.0) for zone in RACE_ZONES]
    for at in (2.0, 4.0):
        rest = {"request_delete_effects": _failing("stuck", 1, 100.0), "crashes": [(None, at, "cli")], "full": full}
        yield f"killed at {at} s", one(RACE, layers=GUARDIAN_ONLY, **rest)


@scenario
def forbidden_to_look() -> Plays:
    yield "no permission at all", one(RACE, layers=NO_LAYER, forbidden={"laptop-api": [(0.0, FOREVER)]})


@scenario
def queue_closed() -> Plays:
    """The request FAILED before anybody could see it."""
    hidden = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    yield "seen late", one(QUEUED, layers=NO_LAYER, closed=ZONES[:1], create_effects=hidden)


@scenario
def waiting_in_a_queue() -> Plays:
    full = [(ZONES[0], 0.0, 30.0)]
    yield "until there is capacity", one(QUEUED, layers=NO_LAYER, full=full)
    yield "Ctrl-C", one(QUEUED, layers=NO_LAYER, full=full, signals=[10.0])
    deaf = {"signals": [10.0], "request_delete_effects": _failing("operation_fails", 1)}
    yield "Ctrl-C, and the delete fails", one(QUEUED, layers=NO_LAYER, full=full, **deaf)


@scenario
def taken_away() -> Plays:
    """With notice and without. Whoever may start over does."""
    for notice_s in (0.0, 1.0, 5.0):
        for queued in (0, 1):
            workload = replace(RUN, lasts_s=20.0, candidates=Candidates(ZONES[:1], queued, spot=True, restarts=2))
            for second in (27.5 + 1.5 * queued, 40.0):
                rest = {"preemptions": [(12.0, notice_s), (second, notice_s)], "delete_s": 6.0}
                yield f"{queued} queued, at {second} s, notice {notice_s} s", _succeeds(workload, **rest)


@scenario
def extended_and_taken_away() -> Plays:
    candidates = Candidates(ZONES[:1], spot=True, restarts=2)
    workload = replace(RUN, lasts_s=60.0, life_s=30.0, extend_at=12.0, candidates=candidates)
    yield "extended, preempted", one(workload, preemptions=[(26.0, 0.0)])


@scenario
def early_out_of_its_queue() -> Plays:
    """It might have waited for two minutes. Then its laptop dies, and only gc is left."""
    workload = replace(RUN, lasts_s=60.0, gc_every_s=20.0, candidates=Candidates(ZONES[:1], 1, 120.0))
    yield "a run", one(workload, layers=GC_ONLY, **_dead_laptop(40.0))


@scenario
def up_dies_with_everything() -> Plays:
    for at in (0.5, 2.0, 4.0):
        yield (
            f"power cut at {at} s",
            one(Workload("up", hold_s=60.0), layers=WATCHDOG_ONLY, provision_s=5.0, **_dead_laptop(at)),
        )


@scenario
def dies_before_it_is_held() -> Plays:
    workload = Workload("up", hold_s=60.0, gc_every_s=20.0, candidates=Candidates(ZONES[:1], 1, 120.0))
    for step in range(165, 215, 4):
        rest = {"crashes": [("up", step, "machine")]}
        yield f"machine dies at step {step}", one(workload, layers=GC_ONLY, **rest)


def _succeeds(workload: Workload, **plan: Any) -> Callable[[], Result]:
    def played() -> Result:
        world = World(1, workload, FaultPlan(**plan), layers=WATCHDOG_ONLY)
        result = world.run()
        owner = world.oracle.claims[0].owner
        if not result.violations and (owner is None or owner.result.exit_code != 0):
            result.violations.append(
                Violation(Invariant.RUN_SUCCEEDS, world.faults.elapsed_s(), "a run that may start over did not succeed")
            )
        return result

    return played
