"""Where mutants are hunted: small families of worlds, each about one promise, most with all layers but one switched off.

Every ground holds for the production code (`test_mutants` checks that first), so whatever breaks there is the mutant's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from orchestrator.engine.leases.gc import collect_garbage
from tests.simulation.model.cloud import PROJECT
from tests.simulation.model.faults import FOREVER, Plan, cloud_fault
from tests.simulation.model.world import RACE_ZONES, ZONES, Layers, Result, Violation, World
from tests.simulation.scenarios import commands
from tests.simulation.scenarios.commands import Wish
from tests.simulation.scenarios.crash_sweep import SCENARIOS, Scenario, deaths
from tests.simulation.scenarios.random_worlds import Doing, world_of

Hunt = Iterator[tuple[str, Callable[[], Result]]]  # what it is called, how it is played
GROUNDS: dict[str, Callable[[], Hunt]] = {}
NOBODY = Layers(guardian=False, switch=False, sweeper=False, timer=False)
SWITCH, SWEEPER, GUARDIAN = (replace(NOBODY, **{layer: True}) for layer in ("switch", "sweeper", "guardian"))
RUN = Doing("run", lasts_s=10.0, boot_s=1.0)
RACE = replace(RUN, wish=Wish(RACE_ZONES[:3], 3, 40.0, race=True))
QUEUED = replace(RUN, wish=Wish(ZONES[:1], 1, 40.0))


def ground(made: Callable[[], Hunt]) -> Callable[[], Hunt]:
    GROUNDS[made.__name__] = made
    return made


def one(doing: Doing, *, layers: Layers | None = None, seed: int = 1, **plan: Any) -> Callable[[], Result]:
    return lambda: World(seed, doing, Plan(**plan), layers=layers).run()


def _seeds(count: int, doing: Doing, layers: Layers | None = None, **plan: Any) -> Hunt:
    for seed in range(count):
        yield f"seed {seed}", one(doing, layers=layers, seed=seed, **plan)


def _deaths(scenarios: tuple[Scenario, ...], layers: Layers | None = None, every: int = 1) -> Hunt:
    for scenario in scenarios:
        for number, (step, kind) in enumerate(deaths(scenario)):
            if number % every == 0:
                name = f"{scenario.name}, {kind} dies at step {step}"
                yield name, lambda s=scenario, n=step, k=kind: s.world(n, k, layers=layers).run()  # type: ignore[misc]


# -- whole worlds ------------------------------------------------------------------------------------------------------


@ground
def worlds() -> Hunt:
    for seed in range(400):
        yield f"world {seed}", lambda seed=seed: world_of(seed).run()  # type: ignore[misc]


@ground
def deaths_everywhere() -> Hunt:
    """Named `deaths` below: a function of that name is imported here."""
    chosen = ("a run", "the create's reply is lost", "a create that comes late", "deletes of a coming node are dropped")
    return _deaths(tuple(s for s in SCENARIOS if s.name in chosen), every=4)


GROUNDS["deaths"] = deaths_everywhere


@ground
def deaths_alone() -> Hunt:
    """The guardian is the only one who could act."""
    return _deaths((SCENARIOS[0],), GUARDIAN, every=3)


# -- the command itself --------------------------------------------------------------------------------------------------


@ground
def only_command() -> Hunt:
    """Nobody else would finish a teardown."""
    for at in (0.5, 2.0, 4.0, 8.0, 12.0):
        failing = [cloud_fault("operation_fails", "nodes.delete")]
        yield f"Ctrl-C twice at {at} s", one(RUN, layers=NOBODY, signals=[at, at + 0.3], delete_effects=failing)
        slow = {"rates": {"e503": 0.5}, "rates_until": 60.0, "signals": [at]}
        yield f"Ctrl-C at {at} s, the API stutters", one(RUN, layers=NOBODY, **slow)
        gone = {"forbidden": {"laptop-api": [(at, at + 60.0)]}, "signals": [at + 0.5]}
        yield f"no permission from {at} s on", one(RUN, layers=NOBODY, **gone)


@ground
def create_seen_late() -> Hunt:
    late = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    for down_at in (3.0, 4.0, 5.0, 6.0, 7.0):
        doing = replace(RUN, down_at=down_at)
        yield f"down at {down_at} s", one(doing, layers=NOBODY, create_effects=late)
        crash = {"crashes": [(None, down_at, "cli")], "command_after_s": 0.5}
        yield f"killed at {down_at} s", one(RUN, layers=NOBODY, create_effects=late, **crash)


@ground
def failing_deletes() -> Hunt:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=NOBODY, delete_effects=effects)


@ground
def stalled_delete() -> Hunt:
    """Accepted, DELETING, and nothing more happens until somebody asks once more."""
    for times in (1, 2):
        stalled = [cloud_fault("stalled", "nodes.delete")] * times
        yield f"{times} times", one(RUN, layers=NOBODY, delete_effects=stalled)


@ground
def create_under_way_unlisted() -> Hunt:
    """The create goes on, its node is not visible yet, and of the operations nobody hears but that there may be more."""
    unlisted = [("operations.list", (0.0, 30.0), cloud_fault("unreachable", "operations.list"))]
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "spoiled": unlisted, **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NOBODY, **rest)


@ground
def create_of_an_unknown_verb() -> Hunt:
    """The operations are all there, and the create among them has a name that nobody here ever heard."""
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "create_verb": "provision", **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NOBODY, **rest)


@ground
def landing_between_two_answers() -> Hunt:
    """The node comes while the answer that knows of no create is on its way; the list that follows is an old one."""
    stale = [("nodes.list", (5.0, 60.0), cloud_fault("stale_list", "nodes.list", seconds=20.0))]
    for late_s in (9.0, 11.0, 13.0, 14.0):
        late = [cloud_fault("late", "nodes.create", seconds=late_s)] * 9
        rest = {"create_effects": late, "spoiled": stale, "slow_replies": {"operations.list": 4.0}}
        yield f"{late_s} s late", one(RUN, layers=NOBODY, signals=[0.4], **rest)


@ground
def revoked() -> Hunt:
    for at in (3.0, 8.0):
        yield f"from {at} s on", one(RUN, layers=NOBODY, forbidden={"laptop-api": [(at, FOREVER)]})


@ground
def lost_create() -> Hunt:
    for lost in (1, 2):
        yield f"{lost} replies lost", one(RUN, layers=NOBODY, lost_creates=lost)
        late = [cloud_fault("late", "nodes.create", seconds=6.0)]
        yield f"{lost} late", one(RUN, layers=NOBODY, create_effects=late * lost)


@ground
def stockout_leaves_node() -> Hunt:
    effects = [cloud_fault("create_fails_leaving_node", "nodes.create", state="TERMINATED")]
    yield "the failed create leaves a node", one(RUN, layers=NOBODY, create_effects=effects, stockouts=ZONES[:1])


@ground
def taken_name() -> Hunt:
    def played() -> Result:
        def shape(world: World) -> None:
            RUN(world)
            commands.take_name(world)

        return World(3, shape, Plan(), layers=NOBODY).run()

    yield "somebody else has the name", played


@ground
def slow_create() -> Hunt:
    doing = replace(RUN, life_s=30.0)
    yield "READY after its deadline", one(doing, layers=NOBODY, provision_s=100.0)


# -- claims --------------------------------------------------------------------------------------------------------------


@ground
def long_runs() -> Hunt:
    for workers in (1, 2):
        doing = Doing("run", lasts_s=420.0, workers=workers, sweep_every_s=30.0)
        yield f"{workers} workers", one(doing)


@ground
def kept() -> Hunt:
    yield "kept", one(Doing("keep", lasts_s=4.0, hold_s=90.0))


@ground
def kept_labels_lost() -> Hunt:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.patch", seconds=1.0)]
        yield kind, one(Doing("keep", lasts_s=4.0, hold_s=90.0), patch_effects=effects)


@ground
def wrong_clock() -> Hunt:
    for offset_s in (-86400.0, 86400.0):
        doing = replace(RUN, lasts_s=30.0, life_s=200.0, sweep_every_s=20.0)
        crash = {"crashes": [(None, 12.0, "machine")]} if offset_s > 0 else {}
        yield f"{offset_s:+.0f} s", one(doing, clock_offset_s=offset_s, **crash)
        alone = {"crashes": [(None, 12.0, "machine")], "clock_offset_s": offset_s, "script_runs": False}
        yield f"{offset_s:+.0f} s, for the sweep", one(doing, layers=SWEEPER, **alone)


@ground
def clock_set_forward_at_create() -> Hunt:
    """The create comes late and unanswered; then the wall clock says that two hours have passed."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NOBODY, signals=[tenth / 10], **rest)


@ground
def clock_set_in_a_run() -> Hunt:
    for by_s in (7200.0, -7200.0, 86400.0):
        for at in (2.0, 12.0):
            yield f"{by_s:+.0f} s at {at} s", _succeeds(RUN, clock_steps=[(at, by_s)])


@ground
def clock_put_right_while_held() -> Hunt:
    doing = Doing("up", hold_s=60.0, timer_s=10.0)
    for behind_s in (7200.0, 86400.0):
        yield f"{behind_s:.0f} s", one(doing, clock_offset_s=-behind_s, clock_steps=[(20.0, behind_s)])


@ground
def restarted_with_another_clock() -> Hunt:
    """The create is on its way when the power fails; when it is back, the wall clock is two hours ahead."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"crashes": [(None, tenth / 10, "machine")], "reboot_after_s": 0.5, "command_after_s": 0.2}
        steps = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"power cut at {tenth / 10} s", one(RUN, layers=NOBODY, **rest, **steps)


@ground
def restarted_after_the_hold() -> Hunt:
    """Off while the hold ended. The recovery of the next start is the only one who could act."""
    doing = Doing("up", hold_s=300.0, timer_s=10.0)
    alone = {"layers": replace(NOBODY, timer=True), "crashes": [(None, 20.0, "machine")], "reboot_after_s": 600.0}
    yield "the wall clock goes on", one(doing, **alone)  # type: ignore[arg-type]
    yield "the wall clock went back", one(doing, clock_steps=[(30.0, -7200.0)], **alone)  # type: ignore[arg-type]


@ground
def extended() -> Hunt:
    for workers in (1, 2):
        doing = Doing("run", lasts_s=300.0, workers=workers, extend_at=15.0, sweep_every_s=30.0)
        yield f"{workers} workers", one(doing)


@ground
def extended_answer_lost() -> Hunt:
    doing = Doing("up", hold_s=60.0, extend_at=20.0, sweep_every_s=10.0, life_s=60.0)
    yield "a hold", one(doing, layers=SWEEPER, lost_patches=2, **_dead_laptop(40.0))


@ground
def extended_at_hand_over() -> Hunt:
    for tenth in range(60, 120):
        doing = Doing("detached", lasts_s=80.0, extend_at=tenth / 10)
        yield f"at {tenth / 10} s", one(doing)


@ground
def extended_before_it_is_followed() -> Hunt:
    for extend_at in (10.0, 18.6, 23.0):
        doing = Doing("detached", lasts_s=40.0, life_s=30.0, extend_at=extend_at, boot_s=4.0)
        yield f"extended at {extend_at} s", one(doing)


@ground
def lid_closed_at_create() -> Hunt:
    for tenth in range(0, 8):
        begin = tenth / 50
        yield f"lid closed at {begin} s", one(Doing("up", hold_s=200.0), asleep=[(begin, begin + 900.0)])


@ground
def clock_behind_and_blind() -> Hunt:
    hidden = [cloud_fault("hidden", "nodes.create", seconds=9.0)]
    yield "seen late", one(RUN, clock_offset_s=-86400.0, create_effects=hidden)


@ground
def down_at_hand_over() -> Hunt:
    for tenth in range(70, 110, 2):
        yield f"down at {tenth / 10} s", one(Doing("detached", lasts_s=40.0, down_at=tenth / 10))


@ground
def end_with_dead_worker() -> Hunt:
    doing = Doing("run", lasts_s=900.0, life_s=300.0)
    yield "no answer at the deadline", one(doing, layers=NOBODY, worker_dies=[(0, 200.0, None)])
    yield (
        "no answer at the end of the job",
        one(replace(doing, lasts_s=250.0), layers=NOBODY, worker_dies=[(0, 254.0, None)]),
    )


@ground
def end_while_collecting() -> Hunt:
    """Results come and come: the deadline is the end of it."""
    yield "after the job", one(replace(RUN, life_s=200.0, collect_s=1500.0), layers=NOBODY)
    yield "at the deadline", one(replace(RUN, lasts_s=900.0, life_s=300.0, collect_s=1500.0), layers=NOBODY)


@ground
def results_left_behind() -> Hunt:
    """There is no room for the results: the slice is held for them, for no longer than was said, and goes once they came."""
    full = replace(RUN, no_room_until=1e6)
    yield "the guardian ends the hold", one(full, layers=GUARDIAN)
    yield "the switch ends the hold", one(full, layers=SWITCH, crashes=[(None, 60.0, "machine")])
    yield "the deadline comes first", one(replace(full, life_s=60.0), layers=GUARDIAN)
    yield "in vain, again and again", one(replace(full, collect_at=60.0), layers=GUARDIAN)
    later = replace(full, no_room_until=50.0, collect_at=60.0)
    yield "collected", one(later, layers=NOBODY)
    yield "collected, slowly", one(replace(later, collect_s=100.0), layers=GUARDIAN)
    yield (
        "killed while it collects",
        one(replace(later, collect_s=100.0), layers=GUARDIAN, crashes=[(None, 90.0, "cli")]),
    )
    yield "of a detached run", one(replace(full, kind="detached"), layers=SWITCH)


@ground
def proved_by_another() -> Hunt:
    doing = Doing("run", lasts_s=20.0, down_at=15.0)
    rest = {"stopped": [(10.0, 40.0)], "forbidden": {"laptop-api": [(30.0, FOREVER)]}}
    yield "down, then no permission", one(doing, layers=NOBODY, **rest)


@ground
def client_cut_off() -> Hunt:
    for at in (12.0, 15.0):
        yield f"at {at} s", one(RUN, layers=SWITCH, cut={"laptop-api": [(at, FOREVER)]})


@ground
def detached_unarmed() -> Hunt:
    yield "no switch", one(Doing("detached", lasts_s=10.0), script_runs=False)
    yield "no permission", one(Doing("detached", lasts_s=10.0), forbidden={"vm-api": [(0.0, FOREVER)]})


# -- recovery and guardian -----------------------------------------------------------------------------------------------


@ground
def disk_full() -> Hunt:
    for at in (3.0, 8.0):
        rest = {"disk_full": (at, FOREVER), "crashes": [(None, at + 0.5, "cli")]}
        yield f"killed at {at + 0.5} s", one(RUN, layers=GUARDIAN, **rest)


@ground
def holds_alone() -> Hunt:
    yield "held", one(Doing("up", hold_s=60.0), layers=GUARDIAN)


@ground
def timer_beside_runs() -> Hunt:
    yield "a timer", one(Doing("run", lasts_s=40.0, timer_s=10.0))


# -- the switch ------------------------------------------------------------------------------------------------------------


def _dead_laptop(at: float) -> dict[str, Any]:
    return {"crashes": [(None, at, "machine")]}


@ground
def only_switch() -> Hunt:
    for at in (1.0, 6.0, 8.0, 12.0):
        yield f"power cut at {at} s", one(RUN, layers=SWITCH, **_dead_laptop(at))
        again = {"switch_dies": [(0, at + 2.0, 0.5)], **_dead_laptop(at)}
        yield f"power cut at {at} s, the switch restarts", one(RUN, layers=SWITCH, **again)


@ground
def vm_pauses() -> Hunt:
    for begin, length in ((15.0, 40.0), (20.0, 100.0)):
        doing = Doing("run", lasts_s=200.0, workers=2)
        yield f"{length} s", one(doing, vms_stand_still=[(begin, begin + length)])


@ground
def switch_alone_flaky() -> Hunt:
    flaky = {"rates": {"drop": 0.35, "lost_reply": 0.15}}
    return _seeds(10, RUN, SWITCH, **flaky, **_dead_laptop(12.0))


@ground
def second_worker_flaky() -> Hunt:
    """Worker 0 is dead; the others go by the label, over a bad line."""
    rest = {"rates": {"drop": 0.3, "lost_reply": 0.2}, "worker_dies": [(0, 14.0, None)], **_dead_laptop(12.0)}
    return _seeds(10, replace(RUN, workers=2), SWITCH, **rest)


@ground
def switch_alone_failing() -> Hunt:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=SWITCH, delete_effects=effects, **_dead_laptop(12.0))


# -- the sweep -------------------------------------------------------------------------------------------------------------


@ground
def sweeps_beside_runs() -> Hunt:
    yield "a run", one(Doing("run", lasts_s=100.0, sweep_every_s=20.0))


@ground
def sweeps_alone_flaky() -> Hunt:
    flaky = {"rates": {"e503": 0.1, "lost_reply": 0.1}}
    return _seeds(20, replace(RUN, sweep_every_s=600.0), SWEEPER, **flaky, **_dead_laptop(12.0))


@ground
def sweeps_alone_failing() -> Hunt:
    effects = [cloud_fault("operation_fails", "nodes.delete")] * 10
    return _seeds(3, replace(RUN, sweep_every_s=60.0), SWEEPER, delete_effects=effects, **_dead_laptop(12.0))


@ground
def sweeps_among_neighbours() -> Hunt:
    yield "neighbours", one(replace(RUN, sweep_every_s=10.0, neighbours=True))


@ground
def sweeps_partly_blind() -> Hunt:
    """A sweep that could not see a zone says so: it is never done."""

    def played() -> Result:
        def shape(world: World) -> None:
            RUN(world)
            program = collect_garbage(PROJECT, ZONES, world.capabilities, deadline_s=30.0)
            process = world.laptop.run("sweep", program, role="timer")
            assert process is not None

            def ended(_: Any) -> None:
                if process.result is not None and process.result.done:
                    world.violations.append(_untrue(world))

            process.on_exit = ended

        return World(3, shape, Plan(unreachable=1.0), layers=NOBODY).run()

    yield "zones unreachable all the time", played


def _untrue(world: World) -> Violation:
    return Violation("I7", world.faults.since(), "a sweep says that it saw everything, though every list was partial")


# -- not enough capacity ---------------------------------------------------------------------------------------------------


def _failing(kind: str, count: int, seconds: float = 1.0) -> list[Any]:
    return [cloud_fault(kind, "queuedResources.delete", seconds=seconds)] * count


@ground
def loser_whose_delete_fails() -> Hunt:
    """Both come at the same moment, and the first deletes of the one that lost come to nothing."""
    for kind in ("operation_fails", "operation_forgets"):
        doing = replace(RACE, lasts_s=400.0)
        yield kind, one(doing, layers=NOBODY, request_delete_effects=_failing(kind, 2))


@ground
def loser_when_the_winner_stays() -> Hunt:
    """The command ends long before the one that lost is gone."""
    for kind in ("keep", "detached"):
        doing = replace(RACE, kind=kind, lasts_s=2.0, hold_s=120.0)
        yield kind, one(doing, layers=SWITCH, request_delete_effects=_failing("stuck", 2, 60.0))


@ground
def killed_in_a_race() -> Hunt:
    """The deletes of the first one fail for a while: that is no reason to leave the others alone."""
    full = [(zone, 0.0, 90.0) for zone in RACE_ZONES]
    for at in (2.0, 4.0):
        rest = {"request_delete_effects": _failing("stuck", 1, 100.0), "crashes": [(None, at, "cli")], "full": full}
        yield f"killed at {at} s", one(RACE, layers=GUARDIAN, **rest)


@ground
def forbidden_to_look() -> Hunt:
    yield "no permission at all", one(RACE, layers=NOBODY, forbidden={"laptop-api": [(0.0, FOREVER)]})


@ground
def queue_closed() -> Hunt:
    """The request FAILED before anybody could see it."""
    hidden = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    yield "seen late", one(QUEUED, layers=NOBODY, closed=ZONES[:1], create_effects=hidden)


@ground
def waiting_in_a_queue() -> Hunt:
    full = [(ZONES[0], 0.0, 30.0)]
    yield "until there is capacity", one(QUEUED, layers=NOBODY, full=full)
    yield "Ctrl-C", one(QUEUED, layers=NOBODY, full=full, signals=[10.0])
    deaf = {"signals": [10.0], "request_delete_effects": _failing("operation_fails", 1)}
    yield "Ctrl-C, and the delete fails", one(QUEUED, layers=NOBODY, full=full, **deaf)


@ground
def taken_away() -> Hunt:
    """With notice and without. Whoever may start over does."""
    for notice_s in (0.0, 1.0, 5.0):
        for queued in (0, 1):
            doing = replace(RUN, lasts_s=20.0, wish=Wish(ZONES[:1], queued, spot=True, restarts=2))
            for second in (27.5 + 1.5 * queued, 40.0):
                rest = {"preemptions": [(12.0, notice_s), (second, notice_s)], "delete_s": 6.0}
                yield f"{queued} queued, at {second} s, notice {notice_s} s", _succeeds(doing, **rest)


@ground
def extended_and_taken_away() -> Hunt:
    wish = Wish(ZONES[:1], spot=True, restarts=2)
    doing = replace(RUN, lasts_s=60.0, life_s=30.0, extend_at=12.0, wish=wish)
    yield "extended, preempted", one(doing, preemptions=[(26.0, 0.0)])


@ground
def early_out_of_its_queue() -> Hunt:
    """It might have waited for two minutes. Then its laptop dies, and only the sweep is left."""
    doing = replace(RUN, lasts_s=60.0, sweep_every_s=20.0, wish=Wish(ZONES[:1], 1, 120.0))
    yield "a run", one(doing, layers=SWEEPER, **_dead_laptop(40.0))


@ground
def up_dies_with_everything() -> Hunt:
    for at in (0.5, 2.0, 4.0):
        yield f"power cut at {at} s", one(Doing("up", hold_s=60.0), layers=SWITCH, provision_s=5.0, **_dead_laptop(at))


@ground
def dies_before_it_is_held() -> Hunt:
    doing = Doing("up", hold_s=60.0, sweep_every_s=20.0, wish=Wish(ZONES[:1], 1, 120.0))
    for step in range(165, 215, 4):
        rest = {"crashes": [("up", step, "machine")]}
        yield f"machine dies at step {step}", one(doing, layers=SWEEPER, **rest)


def _succeeds(doing: Doing, **plan: Any) -> Callable[[], Result]:
    def played() -> Result:
        world = World(1, doing, Plan(**plan), layers=SWITCH)
        result = world.run()
        owner = world.truth.cases[0].owner
        if not result.violations and (owner is None or owner.result.exit_code != 0):
            result.violations.append(
                Violation("goal", world.faults.since(), "a run that may start over did not succeed")
            )
        return result

    return played
