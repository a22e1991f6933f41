"""What is left to do in a sweep, what is being done, and what came of it: shared by the threads of its lanes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from orchestrator import places
from orchestrator.client.events import VariantResult
from orchestrator.client.sweeps.progress import counts_of
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.errors import ArtifactError, Canceled, Interrupted, TeardownUnproven

if TYPE_CHECKING:
    from orchestrator.client.events import RunResult
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.sweep import Variant

# After these codes another variant may fare better: the job's own, damaged artifacts, no capacity, a lost slice, time.
GO_ON = {*range(1, 64), 65, 69, 71, 124}


@dataclass
class Board:
    """Every method may be called from any thread. `done`: what earlier sweeps did, by number."""

    variants: tuple[Variant, ...]
    done: Mapping[int, VariantResult]
    lanes: int = 0  # that may take another variant
    stopped: bool = False
    canceled: bool = False  # by the user, before every variant had its run
    code: int = 0  # of what stopped it
    _results: dict[int, VariantResult] = field(default_factory=dict)
    _waiting: list[Variant] = field(default_factory=list)
    _running: dict[int, Variant] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._waiting = [variant for variant in self.variants if variant.number not in self.done]

    def take(self, like: JobSpec | None = None) -> Variant | None:
        """Return the next variant, which now counts as running; rather one that the slice of `like` can run.

        One job at a time runs on this machine (`on: local`), and wherever else two would slow each other down.
        """
        with self._lock:
            alone = {each.spec.on for each in self._running.values() if places.traits_on(each.spec.on).alone}
            free = [each for each in self._waiting if each.spec.on not in alone]
            if self.stopped or not free:
                return None
            found = next((each for each in free if like is not None and may_follow(each.spec, like)), free[0])
            self._waiting.remove(found)
            self._running[found.number] = found
            return found

    def next_or_leave(self) -> Variant | None:
        """Return the next variant for a lane that has none; without one the lane ends, and takes back no other's."""
        with self._lock:
            found = self.take()
            self.lanes -= found is None
            return found

    def give_back(self, variant: Variant) -> None:
        """The variant was not run; another lane may."""
        with self._lock:
            del self._running[variant.number]
            self._waiting.insert(0, variant)

    def give_up_lane(self, variant: Variant) -> bool:
        """Give the variant back unless this is the last lane; return whether another one takes it."""
        with self._lock:
            if self.lanes < 2 or self.stopped:
                return False
            self.lanes -= 1
            self.give_back(variant)
            return True

    def end_lane(self) -> None:
        """A lane ends while variants may wait; without another lane, the sweep stops."""
        with self._lock:
            self.lanes -= 1
            if self.lanes == 0 and self._waiting:
                self.stop(ArtifactError.exit_code)

    def ended(self, variant: Variant, result: RunResult | None, code: int) -> None:
        """The variant has ended with this code of the command. What cannot get better with another one stops the sweep."""
        made = replace(result_of(variant), exit_code=code)
        if result is not None:
            made = replace(made, state=result.state, run=result.run, result=result)
        elif code < Interrupted.BASE:  # it could not be run; one that was interrupted before it began is still queued
            made = replace(made, state="error")
        with self._lock:
            del self._running[variant.number]
            self._results[variant.number] = made
            if code != 0 and code not in GO_ON:
                self.stop(code)

    def stop(self, code: int) -> None:
        """Begin no other variant. The first reason counts, but a slice that is not proven absent outranks it."""
        with self._lock:
            self.stopped = True
            self.code = (
                TeardownUnproven.exit_code if TeardownUnproven.exit_code in (code, self.code) else self.code or code
            )

    def cancel(self) -> bool:
        """Begin no other variant: the user ended the sweep. Return whether that is new, and ends something."""
        with self._lock:
            ends = bool(self._waiting) or any(each.state == AttemptState.CANCELED for each in self._results.values())
            if self.canceled or not ends:
                return False
            self.canceled = True
            self.stop(Canceled.exit_code)
            return True

    @property
    def counts(self) -> str:
        """Return how far it is; see `progress.counts_of`."""
        with self._lock:
            running = dict.fromkeys(islice(self._running, self.running), str(AttemptState.RUNNING))
            return counts_of([running.get(each.number, each.state) for each in self.results()])

    @property
    def running(self) -> int:
        """Return how many jobs run: where one ends, the next one is taken already."""
        with self._lock:
            return min(len(self._running), self.lanes)

    def results(self) -> tuple[VariantResult, ...]:
        """Return what became of each variant, in their order."""
        with self._lock:
            found = {**self.done, **self._results}
            return tuple(found.get(variant.number) or result_of(variant) for variant in self.variants)

    @property
    def exit_code(self) -> int:
        """Return the code of the sweep: of what stopped it, else of the first variant that failed, else 0."""
        return self.code or next((each.exit_code for each in self.results() if each.exit_code), 0)


def may_follow(spec: JobSpec, before: JobSpec) -> bool:
    """Return whether the slice of `before` can run `spec`, as far as the job files say."""
    return spec.on == before.on and places.traits_on(spec.on).held and spec.tpu == before.tpu


def result_of(variant: Variant) -> VariantResult:
    """Return the result of a variant that was not run."""
    return VariantResult(variant.number, variant.label, variant.name, variant.params)
