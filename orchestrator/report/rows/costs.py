"""What slices and runs cost in dollars, by the dated price table. Every command takes its sums from here, so they agree.

A slice counts from its create call (a queued one from its capacity on) to its proven absence, and until then to now: what is
not proven absent may still be billed. `now` is always the ledger's time of the slice's cloud, in unix seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import traits
from orchestrator.promise.lease.lease import HeldFor, Lease, Mode
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Share:
    """The time of one slice that counts for one attempt, in unix seconds of the ledger."""

    attempt: str
    lease: Lease
    since: float
    until: float


def of_lease(lease: Lease, now: float) -> float | None:
    """Return the dollars of one slice so far; 0 before its create call left, None when its price is unknown."""
    since = _counts_from(lease)
    return 0.0 if since is None else between(lease.usd_per_hour, since, lease.gone_at or now)


def _counts_from(lease: Lease) -> float | None:
    """Return since when a slice counts; one without a known price also while it waits: its cost is unknown, and not zero."""
    return lease.sent_at if lease.usd_per_hour is None else lease.billed_from


def at_most(lease: Lease) -> float | None:
    """Return the dollars of one slice from its create call (else its intent) to the end of its claim; None: price unknown."""
    since = lease.billed_from or lease.sent_at or lease.created_at
    return between(lease.usd_per_hour, since, lease.ends_at)


def of_run(ledger: Ledger, run: RunRecord, now: float) -> float | None:
    """Return the dollars of all attempts of a run, with every zone that was tried and every loser of a race.

    None: a price is unknown, the run is not in the ledger, or it ran on this machine, which has no price.
    """
    amounts = of_attempts(ledger, run, now)
    return total(amounts.values()) if amounts and traits.traits_of(run.cloud).billed else None


def of_attempts(ledger: Ledger, run: RunRecord, now: float) -> dict[str, float | None]:
    """Return the dollars of each attempt by its id, in their order; their sum is `of_run`."""
    found = shares(ledger, run, now)  # before the attempts: another one may begin meanwhile
    amounts: dict[str, list[float | None]] = {attempt.id: [] for attempt in ledger.attempts_of(run.id)}
    for share in found:
        amounts[share.attempt].append(between(share.lease.usd_per_hour, share.since, share.until))
    return {attempt: total(parts) for attempt, parts in amounts.items()}


def shares(ledger: Ledger, run: RunRecord, now: float) -> list[Share]:
    """Return what the run pays for: each slice that existed, with the attempt that it counts for.

    A slice that the run asked for counts for the attempt during which it was asked for. Of a slice of `tpujob up`, only the
    time of the attempts on it counts; of one that the run keeps (`--keep`, `keep_on_failure`), the time to the end of the
    run. A slice that is held for results that are not collected counts to its end. Of a slice that goes from run to run,
    each has the time until the next one takes it over.
    """
    attempts = ledger.attempts_of(run.id)
    if not attempts:
        return []
    began = [began_at(ledger, run, attempt) for attempt in attempts]
    ended = attempts[-1].ended_at
    found: list[Share] = []
    own = ledger.leases_of(run.id)
    for lease in own:
        since, _ = _passed(ledger, lease, run)
        if since is None or came_to_nothing(ledger, lease):
            continue
        number = max((index for index, at in enumerate(began) if at <= lease.created_at), default=0)
        on_request = lease.held_for in (HeldFor.USER, HeldFor.FAILURE)
        until = ended if on_request and ended is not None else now
        until = min(until, lease.gone_at or until)
        # A cluster starts a job again on the same lease: each attempt on it counts from its beginning.
        users = [number, *(n for n, each in enumerate(attempts) if each.lease_id == lease.id and n > number)]
        edges = [since, *(min(max(began[n], since), until) for n in users[1:]), until]
        found += [Share(attempts[n].id, lease, *edges[at : at + 2]) for at, n in enumerate(users)]
    known = {lease.id for lease in own}
    for attempt, at in zip(attempts, began, strict=True):
        if attempt.lease_id is not None and attempt.lease_id not in known:
            lease = ledger.lease(attempt.lease_id)
            since, passed_at = _passed(ledger, lease, run)
            ended_at = min(attempt.ended_at or now, lease.gone_at or now)
            if passed_at is None:
                since, passed_at = at, ended_at
            elif lease.mode is Mode.HOLD:  # since it failed, the slice waited for the run that took it over
                passed_at = min(passed_at, ended_at)
            if since is not None:
                found.append(Share(attempt.id, lease, since, passed_at))
    return found


def _passed(ledger: Ledger, lease: Lease, run: RunRecord) -> tuple[float | None, float | None]:
    """Return since when the slice counts for this run, and when the next run took it over; None: it has not."""
    events = ledger.events(lease.id)
    passes = [(data["run"], at) for at, kind, data in events if kind in ("passed", "held") and data.get("run")]
    runs = [None, *(to for to, _ in passes)]
    number = runs.index(run.id) if run.id in runs else 0
    since = passes[number - 1][1] if number else _counts_from(lease)
    return since, passes[number][1] if number < len(passes) else None


def total(amounts: Iterable[float | None]) -> float | None:
    """Return the sum; None when one amount is unknown, because a sum without it would be too small."""
    known = list(amounts)
    return sum((amount for amount in known if amount is not None), 0.0) if None not in known else None


def between(usd_per_hour: float | None, since: float, until: float) -> float | None:
    """Return the dollars from `since` to `until`, never below 0; None without a known price."""
    return None if usd_per_hour is None else usd_per_hour * max(until - since, 0.0) / 3600


def began_at(ledger: Ledger, run: RunRecord, attempt: Attempt) -> float:
    """Return when the attempt began, in unix seconds of the ledger."""
    return next((at for at, kind, _ in ledger.events(attempt.id) if kind == "began"), run.created_at)


def saved_at(events: Iterable[tuple[float, str, Mapping[str, Any]]], lost_at: float | None) -> float | None:
    """Return when the work was saved from which an attempt with these events went on; None: it began anew, or did not follow.

    `lost_at`: when the attempt before it ended. Older ledgers have the seconds between the two.
    """
    told = next((data for _, kind, data in events if kind == "continued"), {})
    if lost_at is not None and told.get("saved_s") is not None:
        return lost_at - float(told["saved_s"])
    found: float | None = told.get("saved_at")
    return found


def came_to_nothing(ledger: Ledger, lease: Lease) -> bool:
    """Return True if every create was refused or failed, so that no slice ever existed.

    The create of a slice that is deleted before it is READY settles during the deletion. A create that settles before that
    has failed.
    """
    if lease.ready_at is not None:
        return False
    kinds = [kind for _, kind, _ in ledger.events(lease.id)]
    before = kinds[: kinds.index("down")] if "down" in kinds else kinds
    return lease.sends <= 0 or "settled" in before
