"""Messages: the lines that end a run, and the alerts for results that are not collected and slices not proven absent.

Pure: values in, lines out. Figures have units, emulated cost is marked as such, and a price has its date.
"""

from collections.abc import Mapping, Sequence

from orchestrator import catalog
from orchestrator import traits as place_traits
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.lease import Lease, LeaseState, SliceName
from orchestrator.report.rows import worker_ends
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.worker_ends import WorkerReport
from orchestrator.run.progress import Outcome
from orchestrator.text.units import clock, day_clock, format_duration, format_usd, format_usd_per_hour

MOST_MISSING = 20  # that an alert lists
SPAN_LABELS = {"connect": "connecting", "ship": "shipping", "setup": "setup",
    "main": "job", "collect": "collecting", "release": "releasing"}  # fmt: skip


def outcome_lines(
    outcome: Outcome,
    *,
    result: str,
    inside: Mapping[str, float],
    usd: float | None,
    workers: Sequence[WorkerReport] = (),
) -> list[str]:
    """Return the lines that end a run: result, workers, spans, cost, released.

    `inside`: the payload's own spans, in seconds. `usd`: the cost of the whole run (`report.costs`), None if unknown.
    `workers`: how a job that failed ended on each of them; those that ended alike have one line.
    """
    total_s = outcome.took_s if outcome.took_s is not None else outcome.ended_at - outcome.started_at
    traits = place_traits.traits_of(outcome.run.cloud)
    labels = {"wait": f"waiting for the {traits.awaited}", **SPAN_LABELS}
    spans = [
        f"{label} {format_duration(outcome.spans[key])}{_inside(inside) if key == 'main' else ''}"
        for key, label in labels.items()
        if outcome.spans.get(key, 0.0) >= 0.05
    ]
    if outcome.losses:
        reasons = ", ".join(f"{loss.reason} at {clock(loss.at)}" for loss in outcome.losses)
        result += f" · in attempt {len(outcome.losses) + 1}, after {reasons}"
    done = [f"result   {result}", *(f"workers  {line}" for line in worker_ends.lines(workers))]
    done.append(f"spans    {format_duration(total_s)}: {', '.join(spans) or 'nothing took long'}")
    if not traits.billed:
        return [*done, f"cost     {format_cost(usd, outcome.run.cloud)}"]
    return [*done, f"cost     {_cost(outcome, usd)}", f"released {release_outcome(outcome)}"]


def _inside(spans: Mapping[str, float]) -> str:
    shown = [f"{name} {format_duration(seconds)}" for name, seconds in spans.items() if seconds >= 0.05]
    return f" ({', '.join(shown)})" if shown else ""


def _cost(outcome: Outcome, usd: float | None) -> str:
    lease = outcome.lease
    if lease is None and not usd:
        return "nothing was created"
    goes_on = ""
    if lease is not None and outcome.kept_until is not None:
        goes_on = f"; {format_usd_per_hour(lease.usd_per_hour)} goes on while {lease.handle} is kept"
    if usd is None:
        known = lease is not None and lease.usd_per_hour
        why = "the ledger cannot be read" if known else place_traits.traits_of(outcome.run.cloud).unpriced
        return f"unknown: {why}{goes_on}"
    return f"{format_cost(usd, outcome.run.cloud)} ({catalog.PRICES_AS_OF}){goes_on}"


def release_outcome(outcome: Outcome) -> str:
    """Return what became of the slice of the run, in one line."""
    released = outcome.released
    if outcome.kept_until is not None and outcome.lease is not None:
        if outcome.collected is not None and outcome.collected.uncollected:
            return f"no: {outcome.lease.name.node} keeps the results until {day_clock(outcome.kept_until)}"
        handle = outcome.lease.handle
        until = f"{day_clock(outcome.kept_until)}{_or_unused(outcome.lease)}"
        return f"no: {handle} is kept until {until}; `tpujob down {handle}` releases it"
    if outcome.passed_on and outcome.lease is not None:
        return f"no: {outcome.lease.name.node} goes to the next run"
    if released is None:
        return lease_outcome(outcome.lease) if outcome.lease is not None else "nothing was created"
    if not released.gone:
        return f"NOT VERIFIED: {released.lease.name.node} (see above)"
    return f"{released.lease.name.node} absent (checked {clock(released.checked_at)})"


def lease_outcome(lease: Lease) -> str:
    """Return what the ledger has about the end of a slice that another process releases."""
    node = lease.name.node
    if lease.state is LeaseState.FORGOTTEN:
        return f"not proven: {node} was forgotten, {lease.reason}"
    if lease.gone_at is not None:
        return f"{node} absent (checked {clock(lease.gone_at)})"
    if lease.state is LeaseState.DOWN:
        return f"not by this command: {node} is being deleted, not proven absent yet"
    by = f"{day_clock(lease.ends_at)}{_or_unused(lease)}"
    return f"no: {lease.handle} ends by {by}; `tpujob down {lease.handle}` releases it"


def _or_unused(lease: Lease) -> str:
    """Return what ends a held slice before its time."""
    return "" if lease.idle_s is None else f", or once it is unused for {format_duration(lease.idle_s)}"


def held_after_failure(lease: Lease, ended_at: float) -> list[str]:
    """Return what to do with a slice that is held because its job failed, and what it costs at most from the end on."""
    until, handle = lease.ends_at, lease.handle
    usd = None if lease.usd_per_hour is None else lease.usd_per_hour * (until - ended_at) / 3600
    price = "its price is unknown" if usd is None else f"{format_usd(usd)} more at most"
    if usd is not None and place_traits.is_emulated(lease.cloud):
        price = f"emulated, not billed; on Google Cloud {price}"
    for_s = format_duration(round(until - ended_at))
    return [
        f"{lease.name.node} for {for_s}, until {day_clock(until)}, because the job failed: {price}",
        f"look: `tpujob ssh {handle}` · again on it: the same `tpujob run` · give up: `tpujob down {handle}`",
    ]


def left_on_slice(outcome: Outcome, left: Sequence[str]) -> list[str]:
    """Return what of the job's files beside its artifacts is not here, until when it is there, and what to type."""
    lease, run = outcome.lease, outcome.run
    if lease is None or outcome.kept_until is None:
        lost = lease is not None and not place_traits.traits_of(lease.cloud).results_stay
        return [*left, *(["lost: its slice is not kept"] if lost else [])]
    give_up = f" · give up: `tpujob down {lease.name.node}`" if lease.run == run.id else ""
    return [
        *left,
        f"on {lease.name.node} until {day_clock(outcome.kept_until)}, for {_bill(lease)}",
        f"`tpujob collect {run.id} --work ['PATTERN'] [--to DIR]` fetches it{give_up}",
    ]


def uncollected_alert(outcome: Outcome) -> str:
    """Return an alert: which results are not collected, until when they can be, what that costs, and what to type."""
    collected, lease, run = outcome.collected, outcome.lease, outcome.run
    assert collected is not None and lease is not None
    first, more = collected.waiting[:MOST_MISSING], len(collected.waiting) - MOST_MISSING
    lines = [
        f"!! RESULTS NOT COLLECTED: {run.id} ended, and not all of its results are in {run.directory}",
        *(f"   missing     {each}" for each in first),
        *([f"   missing     {more:,} more, which `tpujob show {run.id} --json` lists"] if more > 0 else []),
        f"   came        {len(collected.files):,} file{'s'[: len(collected.files) != 1]}",
    ]
    if outcome.detached:  # the cluster keeps the logs of its pods
        return "\n".join(
            [*lines, f"   do now      `tpujob attach {run.id}` collects the rest, until {lease.name.node} is deleted"]
        )
    if outcome.kept_until is None:
        return "\n".join([*lines, "   lost        its slice is not kept"])
    lines.append(f"   kept        {lease.name.node} until {day_clock(outcome.kept_until)}, for {_bill(lease)}")
    then = " and releases it" if lease.run == run.id and not collected.left else ""
    lines.append(f"   do now      `tpujob collect {run.id}` collects the rest{then}")
    lines.append(f"   give up     `tpujob down {lease.name.node}`")
    return "\n".join(lines)


def _bill(lease: Lease) -> str:
    price = format_usd_per_hour(lease.usd_per_hour)
    return f"{price} on Google Cloud; emulated, not billed" if place_traits.is_emulated(lease.cloud) else price


def unproven_head(cloud: str, name: SliceName, accelerator_type: str, usd_per_hour: float | None) -> str:
    """Return the first line of an alert for a slice that is not proven absent."""
    by_hand = place_traits.by_hand(cloud)
    where = ", ".join(filter(None, (accelerator_type, by_hand.where(name))))  # of leavings the type may be unknown
    bill = f") {by_hand.MAY} {format_usd_per_hour(usd_per_hour)}"
    return f"!! NOT VERIFIED GONE: {name.node} ({where}{'; emulated, not billed)' if place_traits.is_emulated(cloud) else bill}"


def unproven_alert(released: Released, guardian: str | None = None, *, watchdog_by: float | None = None) -> str:
    """Return an alert for a slice that is not proven absent: its cost, what was seen, what continues, and what to type.

    `guardian` describes the guardian process; `watchdog_by`: when its VM deletes the slice at the latest, unix seconds.
    """
    lease, verdict = released.lease, released.verdict
    by_hand, traits, emulated = (
        place_traits.by_hand(lease.cloud),
        place_traits.traits_of(lease.cloud),
        place_traits.is_emulated(lease.cloud),
    )
    head = unproven_head(lease.cloud, lease.name, lease.accelerator_type, lease.usd_per_hour)
    seen = f"{verdict.last_seen} at {clock(released.checked_at)}" if released.checked_at else verdict.last_seen
    lines = [head, f"   last seen   {seen}; missing for the proof: {'; '.join(verdict.missing)}"]
    if released.answer:
        lines.append(f"   delete      {released.answer}")
    if verdict.quiet_until is not None:
        lines.append(
            f"   watching    no slice is visible; a late create could still land until {clock(verdict.quiet_until)}"
        )
    vain = ", in vain while the credentials are refused" if released.refused else ""
    lines.append(
        f"   still trying  {guardian or 'the guardian process, if one runs'}{vain}; every tpujob command continues this first"
    )
    if not traits.watched:
        lines.append(f"   by itself   the {traits.noun} ends its {traits.awaited} by {day_clock(lease.deadline)}")
    elif watchdog_by is not None:
        lines.append(f"   watchdog    deletes it by {day_clock(watchdog_by)} if its VM is up and may")
    if not emulated:
        lines.append(f"   do now      {by_hand.delete_command(lease.name, lease.id)}")
        lines.append(f"   check       {by_hand.look_commands(lease.name, lease.id)[-1]}")
    lines.append(f"   give up     `tpujob forget {lease.handle}` lists how to verify it, and records that you did")
    lines.append("   exit status 75 (teardown unverified)")
    return "\n".join(lines)
