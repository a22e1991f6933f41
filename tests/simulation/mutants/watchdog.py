"""The watchdog on the workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.engine.provision import acquire
from orchestrator.vm import watchdog
from tests.simulation.model.faults import cloud_fault
from tests.simulation.model.world import WATCHDOG_ONLY
from tests.simulation.mutants.registry import RUN, Plays, mutant, one, power_cut, replaces, scenario, seeds
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def watchdog_only() -> Plays:
    for at in (1.0, 6.0, 8.0, 12.0):
        yield f"power cut at {at} s", one(RUN, layers=WATCHDOG_ONLY, **power_cut(at))
        again = {"watchdog_dies": [(0, at + 2.0, 0.5)], **power_cut(at)}
        yield f"power cut at {at} s, the watchdog restarts", one(RUN, layers=WATCHDOG_ONLY, **again)


@scenario
def vm_pauses() -> Plays:
    for begin, length in ((15.0, 40.0), (20.0, 100.0)):
        workload = Workload("run", lasts_s=200.0, workers=2)
        yield f"{length} s", one(workload, vms_paused=[(begin, begin + length)])


@scenario
def watchdog_only_flaky_api() -> Plays:
    flaky = {"rates": {"drop": 0.35, "lost_reply": 0.15}}
    return seeds(10, RUN, WATCHDOG_ONLY, **flaky, **power_cut(12.0))


@scenario
def second_worker_flaky_api() -> Plays:
    """Worker 0 is dead; the others judge by the label, over a flaky API."""
    rest = {"rates": {"drop": 0.3, "lost_reply": 0.2}, "worker_dies": [(0, 14.0, None)], **power_cut(12.0)}
    return seeds(10, replace(RUN, workers=2), WATCHDOG_ONLY, **rest)


@scenario
def watchdog_only_failing_deletes() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=WATCHDOG_ONLY, delete_effects=effects, **power_cut(12.0))


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("watchdog_only")
def watchdog_not_in_create() -> Any:
    """The watchdog is not part of the create call (SkyPilot#5946)."""
    return patch.object(acquire, "with_claim", lambda script, labels, user: "")


@replaces(watchdog.Countdown, "watch", "vm_pauses")
def counts_through_pause(_: Any, self: Any, now: float) -> None:
    """The watchdog counts a pause of its VM as silence."""
    self.left_s -= 0.0 if self.seen_at is None else now - self.seen_at
    self.seen_at = now


@replaces(watchdog.Watchdog, "read_node", "watchdog_only_flaky_api")
def failed_poll_restarts_countdown(real: Any, self: Any) -> Iterator[Any]:
    """A failed poll restarts the countdown of the watchdog."""
    yield from real(self)
    if self.status == 0:
        self.silence.restart()


@replaces(watchdog.Countdown, "__init__", "second_worker_flaky_api")
def short_gap_is_outage(real: Any, self: Any, total_s: float, max_gap_s: float, grace_s: float) -> None:
    """A short gap between polls counts as an outage."""
    real(self, total_s, max_gap_s * 0.3, grace_s)


@replaces(watchdog.Watchdog, "delete", "watchdog_only_failing_deletes")
def watchdog_deletes_once(real: Any, self: Any, reason: str) -> Iterator[Any]:
    """The watchdog counts an accepted delete as done."""
    if not getattr(self, "accepted", False):
        yield from real(self, reason)
        self.accepted = self.reported_delete is not None and self.reported_delete.endswith("(200)")


@replaces(watchdog.Watchdog, "read_labels", "long_runs")
def watchdog_ignores_labels(real: Any, self: Any, labels: dict[str, Any]) -> None:
    """The watchdog uses its start-up configuration and reads no labels."""
    real(
        self,
        {**labels, "tpujob-claimed-until": str(self.config["claimed_until"]), "tpujob-mode": self.config["mode"]},
    )


@replaces(watchdog.Watchdog, "observe", "watchdog_only")
def old_heartbeat_counts(real: Any, self: Any) -> Iterator[Any]:
    """An old heartbeat counts for ever."""
    yield from real(self)
    if self.last_heartbeat is not None:
        self.silence.restart()
