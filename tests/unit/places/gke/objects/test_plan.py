"""The plan of a job on a cluster, and what it says: price, deadlines, and what remains if everything here dies."""

import pytest

from orchestrator import catalog
from orchestrator.places.gke.objects.plan import plan_of, price
from orchestrator.places.gke.objects.program import PodProgram
from orchestrator.places.gke.plan_lines import cluster_plan_lines, program_line
from tests.unit.places.gke.objects.jobs import CAPACITIES, job


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
    what, where, usd, deadlines, nodes = cluster_plan_lines(job(slices=2, cluster=cluster("us-east5-a")))
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
