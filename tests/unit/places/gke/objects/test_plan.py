"""The plan of a job on a cluster: price, deadlines, nodes, and what remains if everything here dies."""

from dataclasses import replace
from typing import Any

import pytest

import tpujob
from orchestrator import catalog
from orchestrator.places.gke.objects.manifest import Deadlines, PodProgram, deadlines
from orchestrator.places.gke.objects.nodes import NodeView, in_words
from orchestrator.places.gke.plan import cluster_plan_lines, plan_of, price, program_line
from tests.fakes.api import StubReply, stub_api
from tests.fakes.cluster_jobs import CAPACITIES, job
from tests.unit.api.jobs.test_exporting import World, world


def cluster(location: str) -> str:
    return f"projects/my-project/locations/{location}/clusters/tpus"


def test_a_cluster_has_one_candidate_with_all_slices() -> None:
    plan = plan_of(job("v6e-16", slices=2, queue="tpu", wait_s=7200.0))
    (one,) = plan.candidates
    assert plan.wait_s == 7200.0
    assert (one.accelerator_type, one.zone, one.workers, one.cores) == ("v6e-16", "team-a", 8, 32)
    assert (one.queued, one.life_s) == (True, 4500.0)


NO_PRICE = "the price table has none for "


@pytest.mark.parametrize(("accelerator", "kind", "place", "slices", "zones", "why"), [
    ("v6e-16", "on-demand", "us-east5-a", 2, ["us-east5-a"], "in us-east5-a"),
    ("v6e-16", "spot", "us-east5-a", 1, ["us-east5-a"], "in us-east5-a"),
    ("v6e-16", "on-demand", "us-east5", 1, ["us-east5-a", "us-east5-b"], ", the dearest zone"),
    ("v6e-16", "on-demand", None, 1, catalog.zones_with("v6e-16"), ", the dearest zone"),
    ("v6e-16", "on-demand", "mars-north1", 1, [], f"{NO_PRICE}v6e-16 in mars-north1"),
    ("v6e-16", "flex-start", None, 1, [], f"{NO_PRICE}flex-start"),
    ("tpu7x-16", "on-demand", None, 1, [], f"{NO_PRICE}tpu7x-16"),
    ("tpu7x-16", "spot", None, 1, [], f"{NO_PRICE}tpu7x-16 (spot)"),
])  # fmt: skip
def test_the_price_is_that_of_the_dearest_zone_where_the_cluster_may_be_and_one_that_is_unknown_is_no_bound(
    accelerator: str, kind: str, place: str | None, slices: int, zones: list[str], why: str
) -> None:
    made = job(accelerator, capacity=CAPACITIES[kind], slices=slices, cluster=None if place is None else cluster(place))
    found = [catalog.usd_per_hour(accelerator, zone, spot=kind == "spot") for zone in zones]
    usd, where = price(made)
    assert usd == (slices * max(each for each in found if each is not None) if found else None)
    assert where.endswith(why)
    if usd is None:
        assert plan_of(made).worst_case_usd is None and f"price unknown: {why}" in cluster_plan_lines(made)


def test_a_plan_says_what_is_asked_for_and_what_ends_it() -> None:
    made = job(slices=2, cluster=cluster("us-east5-a"))
    what, where, usd, deadlines, nodes, results = cluster_plan_lines(made)
    assert "1.0 MB a pod" in results and "gs://b/r1/" in cluster_plan_lines(made, "gs://b/r1")[5]
    assert what == "2 × v6e-16 · on-demand · 8 pods, 4 a slice on ct6e-standard-4t · topology 4x4 · 32 chips"
    assert where.startswith("cluster tpus in us-east5-a, namespace team-a, without Kueue: its pods wait for nodes; im")
    assert usd.startswith("its nodes cost about $86.40/h in us-east5-a, at most $108.00 in 1 h 15 m (price table ")
    assert deadlines == "the job runs for 1 h at most, and the cluster itself ends the job 1 h 15 m after its creation"
    assert nodes.startswith("nodes are billed, not pods: ") and nodes.endswith("tpujob does not")


def test_a_plan_with_a_queue_says_that_a_job_may_wait_on_without_this_machine() -> None:
    lines = cluster_plan_lines(job(queue="tpu", wait_s=7200.0, context="c"))
    assert lines[1].startswith("context c, namespace team-a, queue tpu of Kueue; image ")
    assert lines[3].startswith("waits for admission for 2 h; ")
    assert lines[3].endswith("a job that was not admitted waits on, and runs later")


@pytest.mark.parametrize(("accelerator", "kind", "slices", "line", "words"), [
    ("v6e-16", "flex-start", 1, 4, "the cloud deletes its nodes after 7 days"),
    ("v6e-16", "flex-start together", 1, 0, "v6e-16 · flex-start, all at once · 4 pods on "),
    ("v6e-16", "flex-start together", 1, 4, "the cloud deletes its nodes when their time is over (maxRunDurationSeconds)"),
    ("v6e-8", "on-demand", 2, -1, "Google documents multislice for slices of several hosts"),
])  # fmt: skip
def test_a_plan_says_what_deletes_the_nodes_and_notes_slices_of_one_host(
    accelerator: str, kind: str, slices: int, line: int, words: str
) -> None:
    made = job(accelerator, capacity=CAPACITIES[kind], slices=slices)
    assert cluster_plan_lines(made)[line].startswith(words)


def test_how_much_of_the_config_map_is_used() -> None:
    assert program_line(PodProgram({}, b"x" * 30_000)) == "the ConfigMap holds 30 KB of at most 1.0 MB"
    assert program_line(PodProgram({"code_object": "gs://b/c"}, b"")).endswith("; the code goes to gs://b/c")


FIXTURES = (world,)
GKE, TPU = tpujob.Gke(image="i:1", queue="tpu", namespace="team-a"), tpujob.Tpu(accelerator="v6e-16", slices=2)
HOUR, ENV = tpujob.Limits(max_duration="1h"), {"TOKEN": "${env:NOT_SET_HERE}"}
JOB = tpujob.Job(name="hello", command="ls", on="gke", env=ENV, tpu=TPU, gke=GKE, limits=HOUR)


def test_a_plan_has_one_candidate_the_objects_of_a_run_and_the_keys_of_any_plan(world: World) -> None:
    plan = tpujob.Client().plan(JOB)
    assert plan.worst_case_usd is not None and plan.worst_case_usd > 0
    jobsets, config_maps = (each["url"] for each in plan.requests)
    assert jobsets == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets"
    assert config_maps == "/api/v1/namespaces/team-a/configmaps"
    assert str(plan).startswith("2 × v6e-16 · on-demand · 8 pods, 4 a slice on ct6e-standard-4t")
    shape = plan.shape
    assert set(shape) > set(tpujob.Client().plan(tpujob.Job(command="ls", on="local")).shape) | {"cluster"}
    assert (shape["cloud"], shape["workers"], shape["cluster"]["queue"]) == ("gke", 8, "tpu")


def test_a_sweep_on_a_cluster_is_planned_and_refused_without_an_image(world: World) -> None:
    sweep = replace(JOB, command="echo ${params.a}", env={}, matrix={"a": [1, 2]})
    plan, one = tpujob.Client().plan_sweep(sweep), tpujob.Client().plan(JOB)
    assert one.worst_case_usd is not None and plan.worst_case_usd == 2 * one.worst_case_usd
    assert any(note.startswith("2 × v6e-16 · on-demand · 8 pods") for note in plan.notes)
    assert ", 1 at a time, at most" in plan.notes[-1] and plan.table.head[3] == "NAMESPACE"
    with pytest.raises(tpujob.JobSpecError, match=r"gke\.image: is missing"):
        tpujob.Client().plan_sweep(replace(sweep, gke=tpujob.Gke()))


OBJECTS = {"items": [{"name": "d", "size": "3"}]}


@pytest.mark.parametrize("key", [{"bucket": "gs://my-bucket/runs"}, {"data": {"./data": "gs://my-bucket/d"}}], ids=str)
@pytest.mark.parametrize("location", ["us-central1", "us-central1-a"])
def test_a_bucket_in_another_region_than_the_cluster_is_refused_before_anything_is_submitted(
    world: World, monkeypatch: pytest.MonkeyPatch, location: str, key: dict[str, Any]
) -> None:
    gke = tpujob.Gke(image="i:1", cluster=f"projects/my-project/locations/{location}/clusters/c")
    job = tpujob.Job(name="hello", command="ls", on="gke", gke=gke, **key)
    with stub_api() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.answers(StubReply(200, {"location": "EUROPE-WEST4", **OBJECTS}))
        for ask in (tpujob.Client().plan, tpujob.Client().run):
            with pytest.raises(tpujob.UserError, match="is in europe-west4, not in us-central1: copying") as caught:
                ask(job)
            assert "allow_egress" in str(caught.value.hint)
        assert tpujob.Client().plan(replace(job, allow_egress=True)).requests
        storage.answers(StubReply(200, {"location": "US", **OBJECTS}))
        assert tpujob.Client().plan(job).requests


def test_nodes_that_only_kueue_asks_for_need_a_queue(world: World) -> None:
    tpu = tpujob.Tpu(accelerator="v6e-16", provisioning="flex-start", queue=True)
    with pytest.raises(tpujob.JobSpecError, match=r"gke\.queue: is missing: .*Kueue asks for the nodes"):
        tpujob.Client().plan(replace(JOB, tpu=tpu, gke=tpujob.Gke(image="i:1")))
    assert tpujob.Client().plan(replace(JOB, tpu=tpu)).requests


@pytest.mark.parametrize(("wait_s", "linger_s", "queued", "found"), [
    (0.0, None, False, Deadlines(wait_s=900, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=8100)),
    (60.0, 600.0, False, Deadlines(wait_s=60, run_s=7200, pod_s=7320, job_s=8100, kept_s=600, life_s=8100)),
    (21600.0, None, False, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=28800, kept_s=3600, life_s=28800)),
    (0.0, None, True, Deadlines(wait_s=3600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=11700)),
    (21600.0, None, True, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=29700)),
])  # fmt: skip
def test_a_queue_counts_for_no_deadline(wait_s: float, linger_s: float | None, queued: bool, found: Deadlines) -> None:
    assert deadlines(7200.0, wait_s=wait_s, linger_s=linger_s, queued=queued) == found


def test_nodes_are_named_by_their_pool_and_of_many_three() -> None:
    found = [NodeView("a", "v5e"), NodeView("b", "v5e", busy=True), NodeView("c")]
    assert in_words(found) == "2 nodes of pool v5e (a, b), 1 in use by others; 1 node (c)"
    assert in_words([NodeView(f"n{i}", "p") for i in range(16)]) == "16 nodes of pool p (n0, n1, n2, …)"
