"""A cluster as one process reaches it: production code of `places.gke.api`, each of whose calls leaves, arrives, is answered.

Between any two of these events the caller may die. A question takes several calls; it is asked again after each answer, with
the answers so far (as `multi_call` does). Its clock says then what it said before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CloudError, CloudUnavailable
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import KubeApi, Rows
from tests.simulation.model.faults import TIMEOUT_S, TRAVEL_S, CallOutcome
from tests.simulation.model.multi_call import CallNeeded, Replayed

if TYPE_CHECKING:
    from tests.simulation.model.cluster import Cluster
    from tests.simulation.model.process import Process, Token


class ReplayClock:
    """Stands for the module `time` in `places.gke.api.client`. `read`: the clock of the question that is asked now."""

    read: Callable[[], float] = staticmethod(lambda: 0.0)

    def monotonic(self) -> float:
        return self.read()


CLOCK = ReplayClock()


class ClusterClient:
    """What a process has of the cluster."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self.cluster, self.process = cluster, process
        self.capabilities = process.world.capabilities

    def send(self, verb: str, effect: Any, token: Token) -> None:
        self.process.world.count_call(self.process)
        Question(self.cluster, self.process, effect, token).advance()


class Question(Replayed, KubeApi):
    """One effect on the cloud: a `KubeApi` whose calls travel."""

    def __init__(self, cluster: Cluster, process: Process, effect: Any, token: Token) -> None:
        super().__init__(process, token)
        self.server = "k8s.test"
        self.cluster, self.effect = cluster, effect
        self.cloud = ClusterCloud(lambda project: self)  # of the world on which the effect is performed
        self._times: list[float] = []
        self._read = 0

    def _question(self) -> Any:
        self._read = 0
        CLOCK.read = self._time  # type: ignore[method-assign]
        return self.effect.perform(self)

    def _time(self) -> float:
        if self._read == len(self._times):
            self._times.append(self.cluster.now())
        self._read += 1
        return self._times[self._read - 1]

    # -- KubeApi -------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any]:
        found = self._ask("get", {"path": path})
        assert isinstance(found, dict)
        return found

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found = self._ask("post", {"path": path, "body": body})
        assert isinstance(found, dict)
        return found

    def delete(self, path: str, uid: str, *, foreground: bool = True) -> None:
        self._ask("delete", {"path": path, "uid": uid, "foreground": foreground})

    def list(self, path: str, *, labels: str = "", fields: str = "", contents: bool = True) -> Rows:
        found = self._ask("list", {"path": path, "labels": labels, "contents": contents})
        assert isinstance(found, Rows)
        return found

    # -- one call ------------------------------------------------------------------------------------------------------

    def _send(self, question: CallNeeded) -> None:
        process, world = self.process, self.cluster.world
        kind = question.request["path"].rpartition("/")[2] if question.call == "post" else ""
        outcome = world.faults.outcome_of_call(f"cluster.{question.call}", "client", process.machine.edge, process)
        if question.call == "post":
            self._spoil(kind, outcome)
        if not outcome.reaches:
            assert outcome.error is not None
            world.faults.note_failed_call(process, outcome)
            world.timeline.after(outcome.there_s + outcome.back_s, self._heard, outcome.error)
            return
        if outcome.error is not None:
            lasted = CallOutcome(0.0, min(outcome.there_s + outcome.back_s, TIMEOUT_S))
            world.faults.note_failed_call(process, lasted)
            world.timeline.after(lasted.back_s, self._heard, outcome.error)
        self.cluster.under_way += question.call == "post"
        world.timeline.after(outcome.there_s, self._arrive, question, outcome)
        world.passes_crash_point(process)

    def _spoil(self, kind: str, outcome: CallOutcome) -> None:
        plan = self.cluster.plan
        if not outcome.reaches or outcome.error is not None:
            return
        if plan.late_posts:
            outcome.there_s, outcome.error = plan.late_posts.pop(0), CloudUnavailable("timed out")
            outcome.back_s = TIMEOUT_S
        elif plan.lost_posts.get(kind, 0):
            plan.lost_posts[kind] -= 1
            outcome.error = CloudUnavailable("connection reset")
        else:
            outcome.back_s += plan.slow_posts

    def _arrive(self, question: CallNeeded, outcome: CallOutcome) -> None:
        process, world = self.process, self.cluster.world
        self.cluster.under_way -= question.call == "post"
        self.cluster.arrives_late = outcome.there_s > TRAVEL_S
        answer: dict[str, Any] | Rows | CloudError
        try:
            answer = self._answer(question)
        except CloudError as refusal:
            answer = refusal
        if outcome.error is not None:
            world.stop_when_done()
            return
        if not (process.alive and world.passes_crash_point(process)):
            world.timeline.after(outcome.back_s, self._heard, answer)

    def _answer(self, question: CallNeeded) -> dict[str, Any] | Rows:
        asked, cluster = question.request, self.cluster
        match question.call:
            case "get":
                return cluster.get(asked["path"])
            case "list":
                rows = cluster.list(asked["path"], asked["labels"])
                if asked["contents"]:
                    return rows
                return Rows(tuple({"metadata": row["metadata"]} for row in rows.items), rows.server_now)
            case "post":
                return cluster.post(asked["path"], asked["body"])
        process = self.process
        cluster.delete(
            asked["path"], asked["uid"], foreground=asked["foreground"], caller=process.role, process=process
        )
        return {}
