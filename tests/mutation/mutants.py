"""Bugs of the past, each as a patch of the production code: ours, and those by which other tools leaked their machines.

`apply` re-introduces one in this very process. A mutant is only worth its place while some test kills it: `killers` are
tests (or a stretch of simulated worlds) of which at least one has to fail then. The stories are from public issues and from
our own simulator; where a mutant is masked by another layer in the full stack, its killer looks at its layer alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

ENGINE, SWITCH = "tests/unit/engine", "tests/unit/vm/test_switch.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    story: str
    apply: Callable[[], None]
    killers: tuple[str, ...]  # pytest ids, or `worlds FIRST COUNT`


MUTANTS: dict[str, Mutant] = {}


def mutant(story: str, *killers: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def enter(apply: Callable[[], None]) -> Callable[[], None]:
        name = apply.__name__
        MUTANTS[name] = Mutant(name, story, apply, killers)
        return apply

    return enter


# -- deleting, and calling it gone -------------------------------------------------------------------------------------


@mutant("an accepted delete is taken for the end (dstack)", f"{ENGINE}/test_release.py", "worlds 0 200")
def fire_and_forget() -> None:
    from orchestrator.core.absence import Verdict
    from orchestrator.engine import release

    one_pass = release._Teardown.one_pass

    async def hasty(self: Any, can: Any) -> Any:
        verdict = await one_pass(self, can)
        return Verdict(gone=True) if self._deleted_at is not None else verdict

    release._Teardown.one_pass = hasty  # type: ignore[method-assign]


@mutant("404 is gone, though a create may still land (dstack, terraform)", f"{ENGINE}/test_release.py", "worlds 0 400")
def trust_404() -> None:
    from orchestrator.core import absence

    absence.settled = lambda *_, **__: None  # type: ignore[assignment]


@mutant(
    "a terminal create operation proves absence at once (our simulator, seed 1573)", "tests/unit/core/test_absence.py"
)
def settled_is_visible() -> None:
    from orchestrator.core import absence

    before = absence.settled
    absence.settled = lambda lease, creates, now, can, **_: before(lease, creates, now, can, seen=True)  # type: ignore[assignment]


@mutant("sends are not counted: one finished create settles two (our crash sweep)", "tests/unit/core/test_absence.py")
def one_send_is_enough() -> None:
    from orchestrator.core import absence

    before = absence.settled
    absence.settled = lambda lease, *rest, **how: before(replace(lease, sends=min(lease.sends, 1)), *rest, **how)  # type: ignore[assignment]


@mutant("teardown is given up after a while and called done (dstack: 15 minutes)", f"{ENGINE}/test_release.py")
def give_up_and_call_it_gone() -> None:
    from orchestrator.core import absence

    judge = absence.judge

    def weary(lease: Any, evidence: Any, now: float, can: Any) -> Any:
        verdict = judge(lease, evidence, now, can)
        late = lease.down_at is not None and now - lease.down_at > 30
        return replace(verdict, gone=True, missing=()) if late else verdict

    absence.judge = weary


@mutant(
    "the first error of the API ends the teardown",
    f"{ENGINE}/test_release.py::test_a_403_after_the_delete_is_never_gone",
)
def give_up_at_the_first_error() -> None:
    from orchestrator.engine import release

    async def unprotected(question: Any) -> Any:
        return await question

    release._ask = unprotected


@mutant("a list with unreachable zones counts as whole", "tests/unit/core/test_absence.py", f"{ENGINE}/test_release.py")
def partial_list() -> None:
    from orchestrator.core.slices import Listing

    Listing.complete = property(lambda self: True)  # type: ignore[assignment, method-assign]


@mutant("403 is absence", "tests/contract/test_cloud_replies.py::test_nothing_else_does")
def forbidden_is_gone() -> None:
    from orchestrator.cloud import translate

    before = translate.http_error

    def blind(status: int, text: str, **how: Any) -> Any:
        error = before(status, text, **how)
        return translate.NotFound(error.message) if status == 403 else error

    translate.http_error = blind


@mutant("a delete is sent once, whatever its operation says", f"{ENGINE}/test_release.py")
def delete_once() -> None:
    from orchestrator.engine import release

    async def once(self: Any, view: Any, now: float) -> bool:
        return self._deleted_at is None

    release._Teardown._should_delete = once  # type: ignore[method-assign]


@mutant("a slice of our name is ours, whoever's label it carries", f"{ENGINE}/test_release.py")
def adopt_foreign() -> None:
    from orchestrator.core import absence
    from orchestrator.engine import acquire

    absence.ours = acquire.ours = lambda view, lease: view.name.node == lease.name.node  # type: ignore[assignment]


@mutant("Retry-After is ignored while deleting (our fault matrix, row 37)", f"{ENGINE}/test_release.py")
def impatient() -> None:
    from orchestrator.engine import release

    release.LONGEST_WAIT_S = 0.0


# -- creating ----------------------------------------------------------------------------------------------------------


@mutant("the name is written down after the create (terraform, azapi)", f"{ENGINE}/test_crashes.py")
def no_write_ahead() -> None:
    from orchestrator.engine import tenure
    from orchestrator.engine.cloud_effects import Create

    before = tenure.acquire

    async def eager(lease: Any, request: Any, can: Any) -> Any:
        await Create(request)
        return await before(lease, request, can)

    tenure.acquire = eager


@mutant(
    "the guardian is armed after the create",
    f"{ENGINE}/test_run.py::test_a_job_that_succeeds_ends_with_a_proven_release",
)
def guardian_after_create() -> None:
    from orchestrator.engine import acquire
    from orchestrator.engine.effects import Arm, Now

    create = acquire._create

    async def late(*arguments: Any, **how: Any) -> None:
        await create(*arguments, **how)
        await Arm()

    acquire._create = late
    acquire.Arm = Now  # type: ignore[assignment, misc]


@mutant(
    "the next zone is asked before the failed create is proven gone (two zones billing)",
    f"{ENGINE}/test_run.py",
    f"{ENGINE}/test_crashes.py",
)
def fall_back_without_teardown() -> None:
    from orchestrator.engine import tenure

    let_go = tenure.let_go

    async def careless(held: Any, can: Any, reason: str) -> None:
        if reason != "no capacity":
            await let_go(held, can, reason)

    tenure.let_go = careless


@mutant("a create is sent again under another name", f"{ENGINE}/test_run.py")
def retry_under_another_name() -> None:
    from orchestrator.engine import acquire

    create = acquire.Create
    sent: list[Any] = []

    def renamed(request: Any) -> Any:
        again = any(request is before for before in sent)
        sent.append(request)
        name = replace(request.name, node=f"{request.name.node}-{len(sent)}")
        return create(replace(request, name=name) if again else request)

    acquire.Create = renamed  # type: ignore[assignment, misc]


@mutant(
    "the switch is not in the create call (SkyPilot: autodown set after the launch)",
    "tests/unit/engine/test_prepare.py",
)
def arm_after_create() -> None:
    from orchestrator.engine import prepare

    prepare.startup_script = lambda config: ""


@mutant(
    "commits are not flushed to the disk",
    "tests/unit/ledger/test_ledger.py::test_commits_survive_a_power_cut_by_their_settings",
)
def no_fsync() -> None:
    from orchestrator.ledger import ledger

    connect = ledger.sqlite3.connect

    class Lazy:
        def __init__(self, *arguments: Any, **how: Any) -> None:
            self.real = connect(*arguments, **how)

        def execute(self, text: str, *rest: Any) -> Any:
            return self.real.execute(
                "pragma synchronous=normal" if text.startswith("pragma synchronous=") else text, *rest
            )

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    ledger.sqlite3 = type("sqlite3", (), {**vars(ledger.sqlite3), "connect": staticmethod(Lazy)})


# -- claims ------------------------------------------------------------------------------------------------------------


@mutant("labels are written by the laptop's clock (our simulator, seed 76)", f"{ENGINE}/test_claim.py")
def laptop_clock() -> None:
    from orchestrator.engine import acquire, claim

    async def trusting(*_: Any, **__: Any) -> float:
        return 0.0

    claim.clock_skew = acquire.clock_skew = trusting


@mutant("an attached run never renews its label", f"{ENGINE}/test_claim.py", "worlds 0 400")
def no_renewal() -> None:
    from orchestrator.engine.claim import Upkeep

    async def nothing(self: Any, now: float) -> None:
        return None

    Upkeep._renew = nothing  # type: ignore[method-assign]


@mutant("--keep tells the ledger, not the label", f"{ENGINE}/test_claim.py")
def keep_forgets_the_label() -> None:
    from orchestrator.engine import claim

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    claim._write = nothing


@mutant("an accepted update of labels is taken for done (our simulator, seed 437)", f"{ENGINE}/test_claim.py")
def label_fire_and_forget() -> None:
    from orchestrator.engine import claim

    async def hasty(before: Any, wanted: Any, can: Any) -> None:
        found, skew_s = await claim._listed(wanted)
        said = await claim._said(before, wanted, found, skew_s, can)
        await claim.Relabel(wanted.name, {**found.labels, **said})

    claim._write = hasty


@mutant("a detached run is left before the switch knows", f"{ENGINE}/test_claim.py")
def detach_without_acknowledgement() -> None:
    from orchestrator.core.lease import Detached
    from orchestrator.engine import claim, run

    async def hasty(lease: Any, can: Any) -> Any:
        return await claim.move(lease, Detached(lease.id, await claim.Now()), can)

    run.hand_over = claim.hand_over = hasty


@mutant("a detached run starts on a slice that cannot delete itself", f"{ENGINE}/test_claim.py")
def detach_unarmed() -> None:
    from orchestrator.engine import run

    async def trusting(*_: Any, **__: Any) -> None:
        return None

    run.await_armed = trusting


@mutant("a detached run dies with the laptop's process (recovery takes it for dead wood)", f"{ENGINE}/test_attach.py")
def detached_is_dead_wood() -> None:
    from orchestrator.core import lease
    from orchestrator.engine import recover

    before = lease.dead_wood
    recover.dead_wood = lambda one, **how: before(replace(one, detached_at=None), **how)  # type: ignore[assignment]


# -- the guardian ------------------------------------------------------------------------------------------------------


@mutant("there is no guardian", f"{ENGINE}/test_guardian_watch.py", "worlds 0 400")
def no_guardian() -> None:
    from orchestrator.engine import guardian_world, watch

    async def asleep() -> None:
        return None

    watch.watch_over = asleep
    for module in (guardian_world,):
        if hasattr(module, "watch_over"):
            module.watch_over = asleep


# -- the switch --------------------------------------------------------------------------------------------------------


@mutant("the switch counts through an outage, and kills when the API is back", SWITCH, "worlds 0 400")
def count_outage() -> None:
    from orchestrator.vm.switch import Countdown

    def watch(self: Any, now: float) -> None:
        self.left_s -= 0.0 if self.seen_at is None else now - self.seen_at
        self.seen_at = now

    Countdown.watch = watch  # type: ignore[method-assign]


@mutant("a failed look starts the countdown again (our first simulation: lives twice as long)", SWITCH)
def stretch() -> None:
    from orchestrator.vm.switch import Switch

    ask = Switch.ask

    def forgiving(self: Any) -> Any:
        yield from ask(self)
        if self.status not in (200, 403, 404):
            self.expiry.restart()
            self.silence.restart()

    Switch.ask = forgiving  # type: ignore[method-assign]


@mutant("90 seconds without a look count as an outage", SWITCH)
def gap_90() -> None:
    from orchestrator.vm.switch import Countdown

    before = Countdown.__init__
    Countdown.__init__ = lambda self, total_s, max_gap_s, grace_s: before(self, total_s, max_gap_s / 2, grace_s)  # type: ignore[method-assign]


@mutant("an accepted delete satisfies the switch", SWITCH)
def switch_is_satisfied() -> None:
    from orchestrator.vm.switch import Switch

    delete = Switch.delete

    def once(self: Any, reason: str) -> Any:
        if getattr(self, "satisfied", False):
            return
        yield from delete(self, reason)
        self.satisfied = self.may_delete

    Switch.delete = once  # type: ignore[method-assign]


@mutant("the switch deletes by what it saw a while ago, without a fresh look", SWITCH)
def stale_look() -> None:
    from orchestrator.vm.switch import Switch

    ask = Switch.ask

    def lazy(self: Any) -> Any:
        if self.read and self.local_reason() is not None:
            return
        yield from ask(self)

    Switch.ask = lazy  # type: ignore[method-assign]


# -- the sweep ---------------------------------------------------------------------------------------------------------


@mutant("the sweep goes by age, not by claims (boskos' janitors)", f"{ENGINE}/test_sweep.py")
def sweep_by_age() -> None:
    from orchestrator.core import claims

    def aged(view: Any, pace: Any) -> Any:
        return None if view.created_at is None else claims.Stamp(view.created_at + 3600, view.created_at + 3600)

    claims.read = aged


@mutant("the sweep asks once (a cron job that finds the API busy eleven times in a row)", f"{ENGINE}/test_sweep.py")
def one_shot_sweep() -> None:
    from orchestrator.engine import sweep

    async def never(self: Any, pause_s: float) -> bool:
        return False

    sweep._Sweep.wait = never  # type: ignore[method-assign]


@mutant("the label alone makes a slice ours (cloud-nuke)", f"{ENGINE}/test_sweep.py", "tests/unit/core/test_names.py")
def sweep_by_label_only() -> None:
    from orchestrator.core import names

    names.is_ours = lambda node, labels: labels.get("tpujob") == "1"


@mutant("the name alone makes a slice ours", f"{ENGINE}/test_sweep.py", "tests/unit/core/test_names.py")
def sweep_by_prefix_only() -> None:
    from orchestrator.core import names

    names.is_ours = lambda node, labels: node.startswith("tpujob-")


@mutant("the sweep judges by this machine's clock", f"{ENGINE}/test_sweep.py::test_only_the_servers_clock_counts")
def sweep_by_own_clock() -> None:
    from orchestrator.core import claims

    ended = claims.ended
    claims.ended = lambda stamp, server_now, pace: ended(stamp, 1_000_000_000.0, pace)


@mutant("a claim is not read again before the delete", f"{ENGINE}/test_sweep.py")
def sweep_without_a_second_look() -> None:
    from orchestrator.engine import sweep

    async def may(self: Any, view: Any, before: Any) -> bool:
        return True

    sweep._Sweep._may_go = may  # type: ignore[method-assign]
