"""`plan` of a job on a cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpujob
from tests.unit.client.jobs.test_exporting import World, world
from tests.unit.places.stub_api import StubReply, stub_api

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
