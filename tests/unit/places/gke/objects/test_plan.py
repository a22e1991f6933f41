"""The plan of a job on a cluster: price, deadlines, nodes, and what remains if everything here dies."""

from dataclasses import replace
from pathlib import Path
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
    (one,) = plan_of(job("v6e-16", slices=2, queue="tpu", wait_s=7200.0)).candidates
    assert (one.accelerator_type, one.zone, one.workers, one.cores) == ("v6e-16", "team-a", 8, 32)
    assert (one.queued, one.life_s) == (True, 4500.0)
    assert plan_of(job(queue="tpu", wait_s=7200.0)).wait_s == 7200.0


def test_the_price_is_that_of_the_zone_of_the_cluster() -> None:
    expected = catalog.usd_per_hour("v6e-16", "us-east5-a", spot=False)
    assert expected is not None
    assert price(job(slices=2, cluster=cluster("us-east5-a"))) == (2 * expected, "in us-east5-a")


def test_without_the_zone_it_is_the_price_of_the_dearest_one() -> None:
    everywhere = [catalog.usd_per_hour("v6e-16", zone, spot=False) for zone in catalog.zones_with("v6e-16")]
    usd, why = price(job(context="c"))
    assert usd == max(each for each in everywhere if each is not None)
    assert why.endswith(", the dearest zone")
    in_region, why = price(job(cluster=cluster("us-east5")))
    assert in_region == catalog.usd_per_hour("v6e-16", "us-east5-a", spot=False) and "in us-east5-" in why


def test_spot_has_the_price_of_spot() -> None:
    made = job(capacity=CAPACITIES["spot"], cluster=cluster("us-east5-a"))
    assert price(made)[0] == catalog.usd_per_hour("v6e-16", "us-east5-a", spot=True)


@pytest.mark.parametrize(("accelerator", "kind", "why"), [
    ("tpu7x-16", "on-demand", "the price table has none for tpu7x-16"),
    ("tpu7x-16", "spot", "the price table has none for tpu7x-16 (spot)"),
    ("v6e-16", "flex-start", "the price table has none for flex-start"),
])  # fmt: skip
def test_an_unknown_price_is_not_a_bound(accelerator: str, kind: str, why: str) -> None:
    made = job(accelerator, capacity=CAPACITIES[kind])
    assert price(made) == (None, why)
    assert plan_of(made).worst_case_usd is None
    assert f"price unknown: {why}" in cluster_plan_lines(made)


def test_a_type_that_the_place_of_the_cluster_lacks_has_no_price() -> None:
    assert price(job(cluster=cluster("mars-north1"))) == (None, "the price table has none for v6e-16 in mars-north1")


def test_a_plan_says_what_is_asked_for_and_what_ends_it() -> None:
    made = job(slices=2, cluster=cluster("us-east5-a"))
    what, where, usd, deadlines, nodes, results = cluster_plan_lines(made)
    assert "1.0 MB a pod" in results and "gs://b/r1/" in cluster_plan_lines(made, "gs://b/r1")[5]
    assert what == "2 × v6e-16 · on-demand · 8 pods, 4 a slice on ct6e-standard-4t · topology 4x4 · 32 chips"
    assert where.startswith(
        "cluster tpus in us-east5-a, namespace team-a, without Kueue: its pods wait for nodes; image "
    )
    assert usd.startswith("its nodes cost about $86.40/h in us-east5-a, at most $108.00 in 1 h 15 m (price table ")
    assert deadlines == "the job runs for 1 h at most, and the cluster itself ends the job 1 h 15 m after its creation"
    assert nodes.startswith("nodes are billed, not pods: ") and nodes.endswith("tpujob does not")


def test_a_plan_with_a_queue_says_that_a_job_may_wait_on_without_this_machine() -> None:
    lines = cluster_plan_lines(job(queue="tpu", wait_s=7200.0, context="c"))
    assert lines[1].startswith("context c, namespace team-a, queue tpu of Kueue; image ")
    assert lines[3].startswith("waits for admission for 2 h; ")
    assert lines[3].endswith("a job that was not admitted waits on, and runs later")


def test_a_plan_says_what_deletes_the_nodes() -> None:
    assert cluster_plan_lines(job(capacity=CAPACITIES["flex-start"]))[4].startswith(
        "the cloud deletes its nodes after 7 days"
    )
    together = cluster_plan_lines(job(capacity=CAPACITIES["flex-start together"]))
    assert together[0].startswith("v6e-16 · flex-start, all at once · 4 pods on ")
    assert together[4] == "the cloud deletes its nodes when their time is over (maxRunDurationSeconds)"


def test_slices_of_one_host_are_noted() -> None:
    assert cluster_plan_lines(job("v6e-8", slices=2))[-1].startswith(
        "Google documents multislice for slices of several hosts"
    )


def test_how_much_of_the_config_map_is_used() -> None:
    assert program_line(PodProgram({}, b"x" * 30_000)) == "the ConfigMap holds 30 KB of at most 1.0 MB"
    assert program_line(PodProgram({"code_object": "gs://b/c"}, b"")).endswith("; the code goes to gs://b/c")


FIXTURES = (world,)
JOB = tpujob.Job(
    name="hello",
    command="ls",
    on="gke",
    env={"TOKEN": "${env:NOT_SET_HERE}"},
    tpu=tpujob.Tpu(accelerator="v6e-16", slices=2),
    gke=tpujob.Gke(image="i:1", queue="tpu", namespace="team-a"),
    limits=tpujob.Limits(max_duration="1h"),
)


def test_a_plan_has_one_candidate_and_the_objects_of_a_run(world: World) -> None:
    plan = tpujob.Client().plan(JOB)
    assert [each.accelerator_type for each in plan.candidates] == ["v6e-16"]
    assert plan.worst_case_usd is not None and plan.worst_case_usd > 0
    assert [each["url"] for each in plan.requests] == [
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets",
        "/api/v1/namespaces/team-a/configmaps",
    ]
    assert plan.requests[0]["body"]["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert str(plan).startswith("2 × v6e-16 · on-demand · 8 pods, 4 a slice on ct6e-standard-4t")


def test_a_plan_as_json_has_the_keys_of_any_plan_and_those_of_a_cluster(world: World) -> None:
    shape = tpujob.Client().plan(JOB).shape
    assert set(shape) > set(tpujob.Client().plan(tpujob.Job(command="ls", on="local")).shape) | {"cluster"}
    assert (shape["cloud"], shape["workers"], shape["cluster"]["queue"]) == ("gke", 8, "tpu")


def test_a_sweep_on_a_cluster_is_planned(world: World) -> None:
    job = tpujob.Job(
        on="gke",
        command="echo ${params.a}",
        matrix={"a": [1, 2]},
        tpu=tpujob.Tpu(accelerator="v6e-16"),
        gke=tpujob.Gke(image="i:1"),
    )
    plan = tpujob.Client().plan_sweep(job)
    one = tpujob.Client().plan(tpujob.Job(command="ls", on="gke", tpu=job.tpu, gke=job.gke))
    assert one.worst_case_usd is not None
    assert plan.worst_case_usd == 2 * one.worst_case_usd
    assert any(note.startswith("v6e-16 · on-demand · 4 pods") for note in plan.notes)
    assert ", 1 at a time, at most" in plan.notes[-1] and plan.table.head[3] == "NAMESPACE"


def test_a_sweep_without_an_image_is_refused_before_it_begins(world: World, tmp_path: Path) -> None:
    job = tpujob.Job(on="gke", command="echo ${params.a}", matrix={"a": [1, 2]})
    with pytest.raises(tpujob.JobSpecError, match=r"gke\.image: is missing"):
        tpujob.Client().plan_sweep(job)


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


@pytest.mark.parametrize(("wait_s", "queued", "found"), [
    (0.0, False, Deadlines(wait_s=900, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=8100)),
    (60.0, False, Deadlines(wait_s=60, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=8100)),
    (21600.0, False, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=28800, kept_s=3600, life_s=28800)),
    (0.0, True, Deadlines(wait_s=3600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=11700)),
    (21600.0, True, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=29700)),
])  # fmt: skip
def test_a_queue_does_not_count_towards_the_deadline_of_the_job(wait_s: float, queued: bool, found: Deadlines) -> None:
    assert deadlines(7200.0, wait_s=wait_s, linger_s=None, queued=queued) == found


def test_what_is_left_is_kept_for_as_long_as_the_job_says() -> None:
    assert deadlines(7200.0, wait_s=0.0, linger_s=600.0, queued=False).kept_s == 600.0


def test_nodes_are_named_by_their_pool() -> None:
    found = [NodeView("a", "v5e"), NodeView("b", "v5e", busy=True), NodeView("c")]
    assert in_words(found) == "2 nodes of pool v5e (a, b), 1 in use by others; 1 node (c)"


def test_of_many_nodes_three_are_named() -> None:
    assert in_words([NodeView(f"n{i}", "p") for i in range(16)]) == "16 nodes of pool p (n0, n1, n2, …)"
