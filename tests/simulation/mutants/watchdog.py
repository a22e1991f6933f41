"""The watchdog on the workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.engine.provision import acquire
from orchestrator.vm import watchdog
from tests.simulation.model.faults import cloud_fault
from tests.simulation.model.world import WATCHDOG_ONLY
from tests.simulation.mutants.registry import RUN, Plays, mutant, one, power_cut, scenario, seeds
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


@mutant("the watchdog is not part of the create call (SkyPilot#5946)", "watchdog_only")
def watchdog_not_in_create() -> Iterator[None]:
    with patch.object(acquire, "with_claim", lambda script, labels, user: ""):
        yield


@mutant("the watchdog counts a pause of its VM as silence", "vm_pauses")
def counts_through_pause() -> Iterator[None]:
    def watched(self: Any, now: float) -> None:
        self.left_s -= 0.0 if self.seen_at is None else now - self.seen_at
        self.seen_at = now

    with patch.object(watchdog.Countdown, "watch", watched):
        yield


@mutant("a failed poll restarts the countdown of the watchdog", "watchdog_only_flaky_api")
def failed_poll_restarts_countdown() -> Iterator[None]:
    real = watchdog.Watchdog.read_node

    def ask(self: Any) -> Iterator[Any]:
        yield from real(self)
        if self.status == 0:
            self.silence.restart()

    with patch.object(watchdog.Watchdog, "read_node", ask):
        yield


@mutant("a short gap between polls counts as an outage", "second_worker_flaky_api")
def short_gap_is_outage() -> Iterator[None]:
    real = watchdog.Countdown.__init__

    def init(self: Any, total_s: float, max_gap_s: float, grace_s: float) -> None:
        real(self, total_s, max_gap_s * 0.3, grace_s)

    with patch.object(watchdog.Countdown, "__init__", init):
        yield


@mutant("the watchdog counts an accepted delete as done", "watchdog_only_failing_deletes")
def watchdog_deletes_once() -> Iterator[None]:
    real = watchdog.Watchdog.delete

    def delete(self: Any, reason: str) -> Iterator[Any]:
        if not getattr(self, "accepted", False):
            yield from real(self, reason)
            self.accepted = self.reported_delete is not None and self.reported_delete.endswith("(200)")

    with patch.object(watchdog.Watchdog, "delete", delete):
        yield


@mutant("the watchdog uses its start-up configuration and reads no labels", "long_runs")
def watchdog_ignores_labels() -> Iterator[None]:
    real = watchdog.Watchdog.read_labels

    def take(self: Any, labels: dict[str, Any]) -> None:
        real(
            self,
            {**labels, "tpujob-claimed-until": str(self.config["claimed_until"]), "tpujob-mode": self.config["mode"]},
        )

    with patch.object(watchdog.Watchdog, "read_labels", take):
        yield


@mutant("an old heartbeat counts for ever", "watchdog_only")
def old_heartbeat_counts() -> Iterator[None]:
    real = watchdog.Watchdog.observe

    def look(self: Any) -> Iterator[Any]:
        yield from real(self)
        if self.last_heartbeat is not None:
            self.silence.restart()

    with patch.object(watchdog.Watchdog, "observe", look):
        yield
