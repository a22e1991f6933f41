"""What the ledger has of a run, as messages: started, preempted, restarted, ended, results waiting.

Each event of the ledger makes the same messages whichever process reads it, under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import errors, traits
from orchestrator.errors import SliceLost, UnknownLease, UnknownRun
from orchestrator.notify.messages import Message
from orchestrator.notify.outbox import KINDS
from orchestrator.promise.lease.lease import HeldFor, Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, end_text
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.ledger.rows import LedgerEvent
from orchestrator.promise.recover import KILLED
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.whole_run import whole_run
from orchestrator.text.units import day_clock, format_duration, format_usd_per_hour

if TYPE_CHECKING:
    from orchestrator.promise.effects.base import MoneyNear


@dataclass(frozen=True, slots=True)
class Told:
    """A message, and the run whose receiver gets it; None: a slice of `tpujob up`, of which the settings say who is told."""

    message: Message
    run: RunRecord | None


def messages_of(ledger: Ledger, event: LedgerEvent) -> Iterator[Told]:
    """Yield the messages of an event of the ledger; nothing for most."""
    try:
        if event.kind == "held":
            yield from _held(ledger, event)
        elif event.kind in KINDS:
            yield from _of_attempt(ledger, event)
    except (UnknownLease, UnknownRun):
        return  # of a ledger that a newer tpujob writes


def _of_attempt(ledger: Ledger, event: LedgerEvent) -> Iterator[Told]:
    attempt = ledger.attempt(event.subject)
    run, last = ledger.run(attempt.run_id)
    story = _Story(ledger, run, attempt)
    number = int(attempt.id.rpartition("-")[2])
    match event.kind:
        case "moved" if event.data.get("state") == AttemptState.RUNNING:
            again = f" (attempt {number})" if number > 1 else ""
            yield story.tell("started", event.at, f"runs{again}{story.where}")
        case "began" if number > 1:
            continued = next((data["text"] for _, kind, data in ledger.events(attempt.id) if kind == "continued"), "")
            yield story.tell("restarted", event.at, f"gets another TPU: attempt {number} {continued}".rstrip())
        case "attempt_ended":
            detail = str(event.data.get("detail") or "")
            if _is_loss(event.data.get("error")) and detail != KILLED:
                cause = event.data.get("cause") or ""
                why = ": ".join(filter(None, (cause, detail)))
                yield story.tell("preempted", event.at, f"lost its TPU: {why}", cause=cause or None)
            if attempt.id == last.id and not (run.spec.queued and _goes_on(event.data)):
                yield story.ended(event.at)


def _is_loss(error: object) -> bool:
    kind = getattr(errors, str(error or ""), None)
    return isinstance(kind, type) and issubclass(kind, SliceLost)


def _goes_on(ended: Mapping[str, Any]) -> bool:
    """Return whether a queue begins the job again after this end of an attempt, as far as its ledger knows."""
    kind = getattr(errors, str(ended.get("error") or ""), None)
    if not isinstance(kind, type) or issubclass(kind, errors.BadRequest | errors.Canceled):
        return False
    if issubclass(kind, SliceLost):
        return bool(ended.get("cause")) or ended.get("detail") == KILLED
    return issubclass(kind, errors.CloudError | errors.Interrupted)


def _held(ledger: Ledger, event: LedgerEvent) -> Iterator[Told]:
    lease = ledger.lease(event.subject)
    if event.data.get("held_for") != HeldFor.RESULTS or lease.run is None:
        return
    run, attempt = ledger.run(lease.run)
    until = day_clock(event.data.get("until"))
    story = _Story(ledger, run, attempt)
    text = f"left results on its TPU, which stays until {until}: `tpujob collect {run.id}` collects them"
    yield story.tell("results-waiting", event.at, text, subject=lease.id)


def cost_near(ledger: Ledger, near: MoneyNear) -> Told:
    """Return the message of a job that its budget will soon end. Raises UnknownRun."""
    run, attempt = ledger.run(near.run)
    spent = "" if near.usd_so_far is None else f", after {format_cost(near.usd_so_far, run.cloud)}"
    text = f"will be stopped by limits.max_cost in {format_duration(near.left_s)}{spent}"
    now = Clocks(ledger).now(run.cloud)
    return _Story(ledger, run, attempt).tell("cost-near", now, text, subject=run.id, cost_usd=near.usd_so_far)


def unproven(lease: Lease, run: RunRecord | None, at: float, why: str) -> Told:
    """Return the message of a slice that is not proven gone."""
    may = "is emulated and not billed" if traits.is_emulated(lease.cloud) else "may still be billed"
    price = f" at {format_usd_per_hour(lease.usd_per_hour)}" if lease.usd_per_hour else ""
    where = f"{lease.name.node} ({lease.accelerator_type}, {lease.name.zone})"
    text = (
        f"NOT VERIFIED GONE: {where} {may}{price}: {why}; `tpujob status` says more, every tpujob command tries again"
    )
    fields = {"name": lease.handle, **_of_lease(lease), "detail": why}
    return Told(Message(f"{lease.name.node}/teardown-unproven", "teardown-unproven", at, text, lease.run, fields), run)


def left_by_gc(node: str, alert: str, at: float) -> Told:
    """Return the message of a slice that gc could not prove gone. `alert`: its first line says it."""
    text = alert.partition("\n")[0].lstrip("! ")
    return Told(Message(f"{node}/teardown-unproven", "teardown-unproven", at, text, None, {"node": node}), None)


@dataclass(frozen=True, slots=True)
class _Story:
    """A run, told of one of its attempts."""

    ledger: Ledger
    run: RunRecord
    attempt: Attempt

    @property
    def lease(self) -> Lease | None:
        return self.ledger.lease(self.attempt.lease_id) if self.attempt.lease_id else None

    @property
    def where(self) -> str:
        lease = self.lease
        if lease is None:
            return " on this machine"
        price = "" if not lease.usd_per_hour else f", {format_cost(lease.usd_per_hour, lease.cloud)} an hour"
        return f" on {lease.accelerator_type} in {lease.name.zone}, {lease.provisioning}{price}"

    def tell(self, event: str, at: float, text: str, *, subject: str = "", **more: Any) -> Told:
        run, attempt, lease = self.run, self.attempt, self.lease
        variant = f" [{run.spec.sweep.variant}]" if run.spec.sweep.variant else ""
        fields: Mapping[str, Any] = {
            "name": run.name,
            "attempt": attempt.id,
            "cloud": run.cloud,
            "emulated": traits.is_emulated(run.cloud),
            "sweep": run.spec.sweep.name,
            "variant": run.spec.sweep.variant,
            **({} if lease is None else _of_lease(lease)),
            **more,
        }
        words = f"{run.name}{variant} ({run.id}) {text}"
        return Told(Message(f"{subject or attempt.id}/{event}", event, at, words, run.id, fields), run)

    def ended(self, at: float) -> Told:
        run, attempt = self.run, self.attempt
        now = max(Clocks(self.ledger).now(run.cloud), at)
        whole = whole_run(self.ledger, run, now)
        took = format_duration((attempt.ended_at or at) - run.created_at)
        cost = "" if whole.cost_usd is None else f", {format_cost(whole.cost_usd, run.cloud)}"
        how = end_text(str(attempt.state), attempt.detail)
        code = "" if not attempt.exit_code else f", exit code {attempt.exit_code}"
        return self.tell(
            "ended",
            at,
            f"{how} (after {took}{cost}{code})",
            state=str(attempt.state),
            exit_code=attempt.exit_code,
            detail=attempt.detail,
            cost_usd=whole.cost_usd,
            job_s=whole.job_s,
            restarts=whole.restarts,
        )


def _of_lease(lease: Lease) -> dict[str, Any]:
    return {
        "node": lease.name.node,
        "zone": lease.name.zone,
        "accelerator_type": lease.accelerator_type,
        "provisioning": lease.provisioning,
        "usd_per_hour": lease.usd_per_hour,
    }
