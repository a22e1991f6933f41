"""From a seed to a world: its workload, and the families of faults that are active.

Each family is one function that adds its faults to the plan at high rates. A world draws a few families, so that deep
combinations are common. The order of the families is part of every seed: add new ones at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from orchestrator.promise.lease.access import NO_WISH, AccessWish
from tests.simulation.model.faults import FOREVER, FaultPlan, cloud_fault
from tests.simulation.model.world import SPEED, ZONES, World
from tests.simulation.scenarios import commands
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.scarcity import scarce

SCARCE = 0.4  # of all worlds
STEPPED = 0.3  # of all worlds: the wall clock of the laptop is set during the world
KEPT = 0.7  # of all worlds with a job that fails: its slice is held
SWEPT = 0.2  # of all worlds with a job whose slice is not held
LEFT = 0.15  # of all worlds with a job: the disk is full, or collecting takes long
REACHED = 0.25  # of all worlds: policies, and OS Login
LAPTOP_S = 25.0  # rough length of a world without faults


@dataclass(frozen=True, slots=True)
class Workload:
    """What users do. Times are seconds after the start."""

    kind: str
    lasts_s: float = 20.0
    rc: int = 0
    workers: int = 1
    timer_s: float | None = None
    gc_every_s: float | None = None
    down_at: float | None = None
    hold_s: float = 60.0
    life_s: float = 1200.0
    boot_s: float = 2.0
    second_at: float | None = None
    extend_at: float | None = None
    collect_s: float = 1.0  # how long collecting takes
    no_room_until: float = 0.0  # until then the laptop has no disk space for results
    collect_at: float | None = None  # when `tpujob collect` is typed
    keeps_failed: bool = False  # is the slice of a failing job held (`keep_on_failure`)?
    again_at: float | None = None  # when that job is run again
    fails_again: bool = False
    foreign_slices: bool = False  # are there slices in the project that tpujob did not create?
    wish: AccessWish = NO_WISH  # how the workers are to be reached
    candidates: Candidates | None = None  # None: plain nodes, one candidate more than stockouts

    def __call__(self, world: World) -> None:
        world.wish = self.wish
        world.workers, world.boot_s, world.collect_s = self.workers, self.boot_s, self.collect_s
        world.no_room_until = world.timeline.now + self.no_room_until
        world.start_machines(timer_s=self.timer_s, gc_every_s=self.gc_every_s)
        if self.foreign_slices:
            commands.place_foreign_slices(world)
        candidates = self.candidates or Candidates(ZONES[: 1 + len(world.plan.stockouts)])
        if not set(candidates.zones) <= set(ZONES):
            world.zones = candidates.zones
        match self.kind:
            case "run" | "failing":
                keep: dict[str, Any] = {
                    "keep_on_failure_s": self.hold_s if self.keeps_failed else None,
                    "life_s": self.life_s,
                }
                commands.type_run(world, lasts_s=self.lasts_s, rc=self.rc, candidates=candidates, **keep)
                if self.again_at is not None:
                    rc = self.rc if self.fails_again else 0
                    again = {"lasts_s": self.lasts_s, "rc": rc, "candidates": candidates, **keep}
                    world.at(self.again_at, lambda: commands.type_again(world, **again))
            case "keep":
                commands.type_run(
                    world, lasts_s=self.lasts_s, candidates=candidates, life_s=self.life_s, keep_s=self.hold_s
                )
            case "detached":
                commands.type_run(
                    world, lasts_s=self.lasts_s, rc=self.rc, candidates=candidates, life_s=self.life_s, detach=True
                )
            case "up":
                commands.type_up(world, hold_s=self.hold_s, candidates=candidates, life_s=self.life_s)
            case "sweep":
                commands.type_sweep(world, lasts_s=self.lasts_s, rc=self.rc, candidates=candidates, life_s=self.life_s)
            case "two":
                commands.type_run(world, lasts_s=self.lasts_s, candidates=candidates, life_s=self.life_s)
                world.at(self.second_at or 3.0, self._second, world, Candidates(candidates.zones[:1]))
        if self.extend_at is not None:
            world.at(self.extend_at, commands.type_extend, world, 60.0)
        if self.down_at is not None:
            world.at(self.down_at, commands.type_down, world)
        if self.collect_at is not None:
            world.at(self.collect_at, commands.type_collect, world)

    def _second(self, world: World, candidates: Candidates) -> None:
        commands.type_run(world, lasts_s=self.lasts_s / 2, candidates=candidates, life_s=self.life_s, name="second")


Family = Callable[[Random, FaultPlan, Workload], None]
FAMILIES: dict[str, Family] = {}


def family(made: Family) -> Family:
    FAMILIES[made.__name__] = made
    return made


def _moment(rng: Random, workload: Workload) -> float:
    """Return a time in the world; its busy start and end are more likely."""
    if workload.candidates is not None and rng.random() < 0.5:
        return rng.uniform(0.0, workload.candidates.in_queue_s)
    span = 10.0 + (
        workload.lasts_s
        if rng.random() < 0.7
        else 2 * workload.lasts_s + workload.hold_s * (workload.kind in ("up", "keep"))
    )
    return rng.uniform(0.0, span)


@family
def api_outage(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    for _ in range(rng.choice((1, 1, 2))):
        begin = _moment(rng, workload)
        plan.cut.setdefault("api", []).append((begin, begin + rng.choice((2.0, 10.0, 50.0, 200.0))))


@family
def failing_label_updates(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    """Label updates conflict with another change, or fail."""
    kind = rng.choice(("stuck", "operation_fails", "operation_forgets"))
    plan.patch_effects.append(cloud_fault(kind, "nodes.patch", seconds=rng.choice((1.0, 5.0))))


@family
def clock_offset(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.clock_offset_s = rng.choice((-86400.0, -3600.0, -60.0, 60.0, 3600.0, 86400.0))


@family
def clock_drifts(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.clock_drift, plan.vm_drift = rng.uniform(-0.01, 0.01), rng.uniform(-0.01, 0.01)


@family
def crash(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    what = rng.choice(("cli", "cli", "cli+guardian", "cli+guardian", "machine", "machine", "guardian"))
    name = "up" if workload.kind == "up" else "run"
    if rng.random() < 0.6:
        steps = 40.0 if workload.candidates is None else 40.0 * (1 + workload.candidates.queued)
        plan.crashes.append((name, 1 + int(rng.expovariate(1 / steps)), what))
    else:
        plan.crashes.append((None, _moment(rng, workload), what))
    if rng.random() < 0.4:
        plan.reboot_after_s = rng.choice((3.0, 30.0, 120.0, 600.0))
    if rng.random() < 0.5:
        plan.command_after_s = rng.uniform(0.5, 60.0)


@family
def crash_again(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    """A second process dies during the teardown."""
    at = _moment(rng, workload)
    plan.crashes.append((None, at, "cli"))
    plan.crashes.append((None, at + rng.expovariate(1 / 2.0), rng.choice(("guardian", "machine"))))
    plan.reboot_after_s = rng.choice((None, 5.0, 60.0))
    plan.command_after_s = rng.choice((None, 1.0, 20.0))


@family
def deleted_externally(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.user_deletes_at = _moment(rng, workload)


@family
def disk_full(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    """The disk gets room in the end: until then nothing settles, and the world would last for hours."""
    begin = _moment(rng, workload)
    plan.disk_full = (begin, begin + rng.choice((20.0, 120.0, 900.0)))


@family
def failing_deletes(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    for _ in range(rng.choice((1, 2, 3))):
        kind = rng.choice(("operation_fails", "operation_forgets", "stuck"))
        plan.delete_effects.append(cloud_fault(kind, "nodes.delete", seconds=rng.choice((0.5, 2.0, 20.0))))


@family
def flaky_calls(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    kinds = rng.sample(("drop", "lost_reply", "e503", "e503_effect", "e429", "slow"), rng.randint(1, 3))
    plan.rates |= {kind: rng.choice((0.1, 0.3, 0.5)) / len(kinds) for kind in kinds}
    plan.rates_until = rng.choice((20.0, 120.0, 600.0))


@family
def forgotten_operations(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.operations_gone = rng.choice((0.5, 1.0))
    plan.rates_until = min(plan.rates_until, 300.0)


@family
def hanging_calls(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.rates |= {rng.choice(("hang", "hang_effect")): rng.choice((0.1, 0.3))}
    plan.rates_until = rng.choice((30.0, 200.0))


@family
def late_create(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    """The first creates are accepted; their node is created late, or becomes visible late."""
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.choice(("late", "hidden", "stuck"))
        longest = {"late": 8.0, "hidden": 9.0, "stuck": 50.0}[kind]
        plan.create_effects.append(cloud_fault(kind, "nodes.create", seconds=rng.uniform(0.5, longest)))


@family
def ledger_lost(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.ledger_lost_at = _moment(rng, workload)


@family
def laptop_asleep(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    begin = _moment(rng, workload)
    plan.asleep.append((begin, begin + rng.choice((5.0, 20.0, 60.0, 600.0))))


@family
def lost_replies(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.lost_creates, plan.lost_patches = rng.choice((0, 1, 1, 2)), rng.choice((0, 1, 1, 2))


@family
def no_guardian(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.guardian = rng.choice(("off", "off", "fails"))


@family
def no_watchdog(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.script_runs = False


@family
def failed_create(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    kind = rng.choice(("create_fails_leaving_node", "operation_fails", "stockout"))
    state = {"state": rng.choice(("CREATING", "TERMINATED"))} if kind == "create_fails_leaving_node" else {}
    plan.create_effects.append(cloud_fault(kind, "nodes.create", **state))


@family
def partial_lists(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.unreachable = rng.choice((0.3, 0.7, 1.0))
    plan.rates_until = min(plan.rates_until, rng.choice((30.0, 120.0)))


@family
def partition(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    for edge in rng.sample(("laptop-api", "laptop-vm", "vm-api"), rng.choice((1, 1, 2))):
        begin = _moment(rng, workload)
        plan.cut.setdefault(edge, []).append((begin, begin + rng.choice((3.0, 15.0, 40.0, 120.0, 400.0, FOREVER))))


@family
def preempted(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.preempt_at = _moment(rng, workload)


@family
def revoked(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    for edge in rng.sample(("laptop-api", "vm-api"), rng.choice((1, 1, 1, 2))):
        begin = rng.choice((0.0, _moment(rng, workload), _moment(rng, workload)))
        plan.forbidden.setdefault(edge, []).append((begin, begin + rng.choice((60.0, 300.0, FOREVER))))


@family
def signals(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    at = _moment(rng, workload)
    plan.signals += [at + n * rng.uniform(0.0, 1.0) for n in range(rng.choice((1, 1, 2, 3, 4)))]


@family
def slow_cloud(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.provision_s, plan.delete_s = rng.choice((0.5, 20.0, 50.0)), rng.choice((0.2, 5.0, 15.0))


@family
def stockout(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.stockouts = ZONES[: rng.choice((1, 1, 2))]


@family
def stopped(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    begin = _moment(rng, workload)
    plan.stopped.append((begin, begin + rng.choice((5.0, 20.0, 60.0, 300.0))))


@family
def watchdog_killed(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    for _ in range(rng.choice((1, 2))):
        worker = rng.randrange(workload.workers)
        plan.watchdog_dies.append((worker, _moment(rng, workload), rng.choice((0.2, 0.2, 5.0, None))))


@family
def deletes_while_creating(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.while_creating = cloud_fault(rng.choice(("delete_dropped", "refuse_delete")), "nodes.delete")


@family
def vms_paused(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    begin = _moment(rng, workload)
    plan.vms_paused.append((begin, begin + rng.choice((3.0, 10.0, 40.0, 120.0))))


@family
def worker_lost(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    plan.worker_dies.append((rng.randrange(workload.workers), _moment(rng, workload), rng.choice((5.0, 30.0, None))))


def set_clock(rng: Random, plan: FaultPlan, workload: Workload) -> None:
    """During the command, during its teardown, or before the next command."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        by_s = rng.choice((1.0, -1.0)) * rng.choice((10.0, 120.0, 7200.0, 86400.0, 366 * 86400.0))
        when = _moment(rng, workload) if rng.random() < 0.8 else _moment(rng, workload) + rng.uniform(0.0, 60.0)
        plan.clock_steps.append((when, by_s))


def left_behind(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """Results without disk space in time, or slow ones; possibly collected later."""
    if workload.kind == "up" or rng.random() >= LEFT:
        return workload
    plan.families = (*plan.families, "left_results")
    ends_s = LAPTOP_S + workload.lasts_s
    return replace(
        workload,
        collect_s=rng.choice((1.0, 1.0, 20.0, 90.0)),
        no_room_until=rng.choice((0.0, ends_s + 30.0, ends_s + 60.0, 1e6)),
        collect_at=ends_s + rng.uniform(0.0, 150.0) if rng.random() < 0.7 else None,
    )


def kept_after_failure(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """The slice of a failing job is held; possibly the job is run again on it, or after it."""
    if workload.kind != "failing" or rng.random() >= KEPT:
        return workload
    plan.families = (*plan.families, "kept_failed")
    ends_s = LAPTOP_S + workload.lasts_s
    again_at = ends_s + rng.uniform(0.0, 1.2 * workload.hold_s) if rng.random() < 0.7 else None
    return replace(workload, rc=workload.rc or 7, keeps_failed=True, again_at=again_at, fails_again=rng.random() < 0.3)


def swept(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """The job is the first of two of a sweep, which have one slice. Results that are left keep it from the second one."""
    special = workload.keeps_failed or workload.extend_at is not None or "left_results" in plan.families
    if workload.kind not in ("run", "failing") or special or rng.random() >= SWEPT:
        return workload
    plan.families = (*plan.families, "sweep")
    return replace(workload, kind="sweep")


def reached(rng: Random, plan: FaultPlan, workload: Workload, *, always: bool = False) -> Workload:
    """Policies refuse what is asked for, or the user wishes for OS Login, which is an API with faults of its own."""
    if not always and rng.random() >= REACHED:
        return workload
    plan.families = (*plan.families, "access")
    plan.forbid_external_ips, plan.require_os_login = rng.random() < 0.5, rng.random() < 0.5
    plan.policy_says = rng.choice(("call", "call", "operation", "in spite"))
    wish = rng.choice((NO_WISH, NO_WISH, AccessWish(os_login="on"), AccessWish(os_login="on", via="iap")))
    for _ in range(rng.choice((0, 0, 1, 2))):
        begin = _moment(rng, workload)
        window = (begin, begin + rng.choice((1.0, 5.0, 30.0, 90.0, 1e6)))
        rng.choice((plan.cut, plan.cut, plan.forbidden)).setdefault("os-login", []).append(window)
    if rng.random() < 0.3:
        kinds = rng.sample(("lost_reply", "drop", "hang_effect", "hang", "slow"), 2)
        plan.login_rates |= {kind: rng.choice((0.1, 0.3, 0.45)) for kind in kinds}
    if rng.random() < 0.15:
        plan.login_full.append((0.0, rng.choice((2.0, 1e6))))
    return replace(workload, wish=wish)


CRASHES = ("crash", "crash_again", "signals")


def workload_of(rng: Random) -> Workload:
    kind = rng.choice(("run", "run", "run", "failing", "keep", "up", "detached", "two"))
    lasts_s = rng.choice((4.0, 10.0, 20.0, 20.0, 60.0, 200.0)) if rng.random() < 0.9 else 330.0
    return Workload(
        kind=kind,
        lasts_s=lasts_s,
        rc=rng.choice((1, 7)) if kind == "failing" else 0,
        workers=rng.choice((1, 1, 1, 2, 3)),
        timer_s=10.0 if rng.random() < 0.3 else None,
        gc_every_s=60.0 if rng.random() < 0.25 else None,
        down_at=rng.uniform(1.0, 80.0) if rng.random() < (0.6 if kind in ("up", "keep", "detached") else 0.1) else None,
        hold_s=rng.choice((60.0, 90.0, 200.0)),
        life_s=1200.0 if rng.random() < 0.8 else rng.choice((30.0, 90.0, 200.0)),
        second_at=rng.uniform(0.5, 15.0),
        foreign_slices=rng.random() < 0.2,
        extend_at=rng.uniform(5.0, 60.0) if rng.random() < 0.1 else None,
        boot_s=rng.choice((0.5, 2.0, 2.0, 8.0)),
    )


def world_of(
    seed: int,
    *,
    without: frozenset[str] = frozenset(),
    plain: bool = False,
    access: bool = False,
    trace: bool = False,
    speed: float = SPEED,
) -> World:
    """Return the world of a seed. `plain`: without scarcity, queues and results that stay behind. `access`: with policies."""
    rng, more = Random(seed), Random(seed ^ 0xCA9AC17)
    workload, plan = workload_of(rng), FaultPlan()
    if not plain and more.random() < SCARCE:
        workload = scarce(more, plan, workload)
    if not plain and "left_results" not in without:
        workload = left_behind(Random(seed ^ 0x1EF7), plan, workload)
    if not plain and "kept_failed" not in without:
        workload = kept_after_failure(Random(seed ^ 0xFA11), plan, workload)
    if not plain and "sweep" not in without:
        workload = swept(Random(seed ^ 0x5EE9), plan, workload)
    if not plain and "access" not in without:
        workload = reached(Random(seed ^ 0xACCE55), plan, workload, always=access)
    count = rng.choice((0, 1, 2, 2, 3, 3, 4, 5))
    chosen = rng.sample(list(FAMILIES), count)
    if count and not set(chosen) & set(CRASHES) and rng.random() < 0.6:
        chosen.append("crash")
    chosen = [name for name in chosen if name not in without]
    plan.families = (*chosen, *plan.families)
    for name in chosen:
        FAMILIES[name](rng, plan, workload)
    steps = Random(seed ^ 0x57E9)
    if steps.random() < STEPPED and "clock_steps" not in without:
        plan.families = (*plan.families, "clock_steps")
        set_clock(steps, plan, workload)
    if plan.while_creating is not None and any(f.kind == "operation_fails" for f in plan.create_effects):
        # Assumption A6: a create whose operation has ended creates nothing later.
        plan.while_creating = cloud_fault("refuse_delete", "nodes.delete")
    if plan.policy_says == "in spite" and plan.while_creating is not None:
        plan.while_creating = cloud_fault("refuse_delete", "nodes.delete")  # A6: a refused create creates nothing later
    if plan.policy_says == "operation" or any(f.kind == "create_fails_leaving_node" for f in plan.create_effects):
        plan.while_creating = None  # nothing is promised for a node that stays in CREATING and can never be deleted
    return World(seed, workload, plan, trace=trace, speed=speed)
