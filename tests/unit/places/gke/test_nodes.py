"""The nodes that ran a job: watched until they are gone, for a bounded time, and never more than that."""

from collections.abc import Sequence

from orchestrator.errors import AuthError, CloudError, CloudUnavailable
from orchestrator.places.gke.nodes import WATCH_S, report_nodes
from orchestrator.places.gke.objects.nodes import NodeView
from tests.unit.engine.virtual import VirtualWorld

NODES = ("gke-a", "gke-b")


class Nodes:
    """The nodes of a cluster at a time: each as long as it is there, by seconds from the beginning."""

    def __init__(self, world: VirtualWorld, **until_s: float) -> None:
        self.world, self.until = world, {name.replace("_", "-"): world.time + s for name, s in until_s.items()}
        self.busy: set[str] = set()
        self.errors: list[CloudError] = []

    def nodes(self, project: str, names: Sequence[str]) -> tuple[NodeView, ...]:
        if self.errors:
            raise self.errors.pop()
        there = [name for name in names if self.world.time < self.until[name]]
        return tuple(NodeView(name, "pool", busy=name in self.busy) for name in there)


def told(world: VirtualWorld, cloud: Nodes) -> list[str]:
    world.cloud = cloud  # type: ignore[assignment]
    began = world.time
    world.drive(report_nodes("a-cluster", NODES))
    assert world.time - began <= WATCH_S + 60
    return [text.removeprefix("nodes ") for text in world.told if "still exist" not in text]


def test_nodes_are_watched_until_they_are_gone(world: VirtualWorld) -> None:
    lines = told(world, Nodes(world, gke_a=95, gke_b=200))
    assert lines[0].startswith("2 nodes of pool pool (gke-a, gke-b): billed until the cluster deletes them")
    assert lines[1] == "all 2 nodes are gone after 3 m 25 s"


def test_nodes_that_stay_are_named_at_the_end_of_the_watch(world: VirtualWorld) -> None:
    lines = told(world, Nodes(world, gke_a=95, gke_b=1e9))
    assert lines[-1].startswith("warning nodes STILL THERE, and billed: 1 node of pool pool (gke-b); a minimum size")


def test_a_node_that_other_jobs_use_is_not_waited_for(world: VirtualWorld) -> None:
    cloud = Nodes(world, gke_a=95, gke_b=1e9)
    cloud.busy.add("gke-b")
    assert told(world, cloud)[-1] == "the node is gone after 1 m 45 s; 1 node of pool pool (gke-b), 1 in use by others"


def test_a_user_who_may_not_read_nodes_is_told_so(world: VirtualWorld) -> None:
    cloud = Nodes(world, gke_a=0, gke_b=0)
    cloud.errors = [AuthError("nodes is forbidden")]
    assert told(world, cloud) == ["you may not read nodes, so that they are gone is not known: nodes is forbidden"]


def test_an_api_server_that_is_away_for_a_moment_is_asked_again(world: VirtualWorld) -> None:
    cloud = Nodes(world, gke_a=0, gke_b=0)
    cloud.errors = [CloudUnavailable("503")]
    assert told(world, cloud)[0].startswith("all 2 nodes are gone after")


def test_without_nodes_nothing_is_asked(world: VirtualWorld) -> None:
    world.drive(report_nodes("a-cluster", ()))
    assert world.effects == []
