"""The sentences in which tpujob reports: times, money, the end of a run, and the banner of §75.

Pure: values in, lines out. Figures have units; emulated things say that they are; a price has its date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator import catalog
from orchestrator.clouds.google import gcloud_text
from orchestrator.core.lease.attempt import LOCAL
from orchestrator.core.lease.lease import Lease, LeaseState
from orchestrator.core.text.durations import format_duration, format_usd, format_usd_per_hour
from orchestrator.report.layout import clock, day_clock

if TYPE_CHECKING:
    from orchestrator.engine.jobs.progress import Outcome
    from orchestrator.engine.leases.release import Released

SPAN_WORDS = {
    "wait": "waiting for the VM",
    "connect": "connecting",
    "ship": "shipping",
    "setup": "setup",
    "main": "job",
    "collect": "collecting",
    "release": "releasing",
}


def outcome_lines(
    outcome: Outcome, *, emulated: bool, result: str, inside: Mapping[str, float], usd: float | None
) -> list[str]:
    """The four lines that end a run: result, spans, cost, released.

    `inside` are the payload's own spans, in seconds; `usd` is what the whole run cost (`report.costs`), None if unknown.
    """
    total_s = outcome.ended_at - outcome.started_at
    spans = [
        f"{words} {format_duration(outcome.spans[key])}{_inside(inside) if key == 'main' else ''}"
        for key, words in SPAN_WORDS.items()
        if outcome.spans.get(key, 0.0) >= 0.05
    ]
    if outcome.losses:
        reasons = ", ".join(f"{loss.reason} at {clock(loss.at)}" for loss in outcome.losses)
        result += f" · in attempt {len(outcome.losses) + 1}, after {reasons}"
    done = [f"result   {result}", f"spans    {format_duration(total_s)}: {', '.join(spans) or 'nothing took long'}"]
    if outcome.run.cloud == LOCAL:
        return [*done, "cost     none: it ran on this machine"]
    return [*done, f"cost     {_cost(outcome, emulated, usd)}", f"released {released_words(outcome)}"]


def _inside(spans: Mapping[str, float]) -> str:
    shown = [f"{name} {format_duration(seconds)}" for name, seconds in spans.items() if seconds >= 0.05]
    return f" ({', '.join(shown)})" if shown else ""


def _cost(outcome: Outcome, emulated: bool, usd: float | None) -> str:
    lease = outcome.lease
    if lease is None and not usd:
        return "nothing was created"
    goes_on = ""
    if lease is not None and outcome.kept_until is not None:
        goes_on = f"; {format_usd_per_hour(lease.usd_per_hour)} goes on while {lease.handle} is kept"
    if usd is None:
        why = "the ledger could not say" if lease and lease.usd_per_hour else "the price table has no price for it"
        return f"unknown: {why}{goes_on}"
    about = f"about {format_usd(usd)}" if usd >= 0.01 else format_usd(usd)
    if emulated:
        return f"$0.00 (emulated; on Google Cloud {about}, {catalog.PRICES_AS_OF}{goes_on})"
    return f"{about} ({catalog.PRICES_AS_OF}){goes_on}"


def released_words(outcome: Outcome) -> str:
    """Return what became of the slice of the run, in one line."""
    released = outcome.released
    if outcome.kept_until is not None and outcome.lease is not None:
        if outcome.collected is not None and outcome.collected.waiting:
            return f"no: {outcome.lease.name.node} keeps the results until {day_clock(outcome.kept_until)}"
        return f"no: {outcome.lease.handle} is kept until {day_clock(outcome.kept_until)}; `tpujob down` releases it"
    if released is None:
        return fate(outcome.lease) if outcome.lease is not None else "nothing was created"
    if not released.gone:
        return f"NOT VERIFIED: {released.lease.name.node} (see above)"
    return f"{released.lease.name.node} absent (checked {clock(released.checked_at)})"


def fate(lease: Lease) -> str:
    """What became of a slice that another process answers for, as the ledger has it."""
    node = lease.name.node
    if lease.state is LeaseState.FORGOTTEN:
        return f"not proven: {node} was forgotten, {lease.reason}"
    if lease.gone_at is not None:
        return f"{node} absent (checked {clock(lease.gone_at)})"
    if lease.state is LeaseState.DOWN:
        return f"not by this command: {node} is being deleted, not proven absent yet"
    return f"no: {lease.handle} lives until {day_clock(lease.ends_at)}; `tpujob down {lease.handle}` releases it"


def left_behind(outcome: Outcome) -> str:
    """What is not at home: how much of it and why, until when it can be had, what that costs, and what to type."""
    collected, lease, run = outcome.collected, outcome.lease, outcome.run
    assert collected is not None and lease is not None
    first, *others = collected.waiting
    more = f" (and {len(others):,} more)" if others else ""
    lines = [
        f"!! RESULTS NOT AT HOME: {run.id} ended, and not all that it made was brought to {run.directory}",
        f"   missing     {first}{more}; {len(collected.files):,} file{'s'[: len(collected.files) != 1]} came",
    ]
    if outcome.kept_until is None:
        return "\n".join([*lines, "   lost        its slice is not kept"])
    price = format_usd_per_hour(lease.usd_per_hour)
    bill = f"{price} on Google Cloud; emulated, nobody pays for it" if lease.cloud == "emulated" else price
    lines.append(f"   kept        {lease.name.node} until {day_clock(outcome.kept_until)}, for {bill}")
    then = " and releases it" if lease.run == run.id else ""
    lines.append(f"   do now      `tpujob collect {run.id}` brings the rest home{then}")
    lines.append(f"   give up     `tpujob down {lease.name.node}`")
    return "\n".join(lines)


def banner(released: Released, guardian: str | None = None, *, switch_by: float | None = None) -> str:
    """What cannot be verified gone: what it may cost, what was seen, who tries on, and what to type now."""
    lease, verdict = released.lease, released.verdict
    name = lease.name
    emulated = lease.cloud == "emulated"
    price = format_usd_per_hour(lease.usd_per_hour)
    where = f"{lease.accelerator_type}, {name.zone}, project {name.project}"
    head = f"!! NOT VERIFIED GONE: {name.node} ({where}) may be billing {price}"
    if emulated:
        head = f"!! NOT VERIFIED GONE: {name.node} ({where}; emulated, nobody pays for it)"
    seen = f"{verdict.last_seen} at {clock(released.checked_at)}" if released.checked_at else verdict.last_seen
    lines = [head, f"   last seen   {seen}; missing for the proof: {'; '.join(verdict.missing)}"]
    if released.answer:
        lines.append(f"   delete      {released.answer}")
    if verdict.quiet_until is not None:
        lines.append(
            f"   watching    no slice is visible; a late create could still land until {clock(verdict.quiet_until)}"
        )
    lines.append(
        f"   still trying  {guardian or 'the guardian process, if one runs'}; every tpujob command goes on with this first"
    )
    if switch_by is not None:
        lines.append(f"   its switch  deletes it by {day_clock(switch_by)} if its VM lives and may")
    if not emulated:
        lines.append(f"   do now      {gcloud_text.delete_node(name)}")
        lines.append(f"   check       {gcloud_text.list_nodes(name, run=lease.id)}")
    lines.append(f"   give up     `tpujob forget {lease.handle}` says how to look, and how to take it over")
    lines.append("   exit status 75 (teardown unverified)")
    return "\n".join(lines)
