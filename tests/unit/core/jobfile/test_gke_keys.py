"""Jobs with `on: gke`: their section, and what of a job file means nothing on a cluster."""

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.jobfile.cluster import ClusterTarget, ClusterWish, problems, target_of
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.errors import JobSpecError
from tests.unit.core.jobfile.refused import refused

CLUSTER = "projects/my-project/locations/us-east5/clusters/tpus"
JOB = "on: gke\ncommand: ls\n"


def mistakes(text: str) -> list[str]:
    return refused(keys.load, text, path="j.yaml")


def test_a_job_on_a_cluster_says_where_and_as_what_it_runs() -> None:
    text = (
        JOB + f"tpu: {{accelerator: tpu-7x-16, slices: 2, provisioning: reserved, wait: 6h}}\n"
        f"gke: {{cluster: {CLUSTER}, namespace: team-a, queue: tpu, priority: high, image: 'us-docker.pkg.dev/p/r/i:1',\n"
        "  service_account: trainer, reservation: projects/my-project/reservations/r1}\n"
    )
    spec = keys.load(text, path="j.yaml")
    assert (spec.tpu.accelerator, spec.tpu.slices, spec.tpu.wait) == ("tpu7x-16", 2, 6 * 3600)
    assert spec.tpu.effective_provisioning is Provisioning.RESERVED
    assert spec.gke.wish == ClusterWish(
        cluster=CLUSTER, namespace="team-a", queue="tpu", priority="high", image="us-docker.pkg.dev/p/r/i:1",
        service_account="trainer", reservation="projects/my-project/reservations/r1",
    )  # fmt: skip
    assert spec.warnings() == []


@pytest.mark.parametrize(("text", "line"), [
    ("tpu: {zone: us-east5}", "tpu.zone: has no use on a cluster: its nodes are where they are; remove it"),
    ("tpu: {runtime: v2-alpha-tpuv6e}", "tpu.runtime: is the image of a VM; a pod runs `gke.image`; remove it"),
    ("tpu: {max_price_per_hour: 3}",
     "tpu.max_price_per_hour: cannot be kept: the price is that of the cluster's nodes"),
    ("tpu: {order: cheapest}", "tpu.order: orders several candidates; a cluster is one"),
    ("tpu: {race: true, provisioning: flex-start}", "tpu.race: is between requests to the Cloud TPU API"),
    ("tpu: {unlisted: true}", "tpu.unlisted: has no use on a cluster"),
    ("tpu: [{accelerator: v6e-8}, {accelerator: v5p-8}]", "tpu: a cluster gets one request; keep one alternative"),
    ("tpu: [{accelerator: v6e-8, zone: us-east5}]", "tpu[0].zone: has no use on a cluster"),
    ("tpu: {provisioning: queued}", "tpu.provisioning: is of the Cloud TPU API; the queue of a cluster is `gke.queue`"),
    ("tpu: {queue: true}", "tpu.queue: only counts with `provisioning: flex-start`"),
    ("tpu: {accelerator: v4-8, provisioning: flex-start}", "tpu.provisioning: GKE has no flex-start for v4-8"),
    ("tpu: {accelerator: v2-8}", "tpu.accelerator: GKE has no v2-8; nearest: "),
    ("tpu: {accelerator: v5p-8576}", "tpu.accelerator: GKE has no v5p-8576; nearest: v5p-8448, v5p-8704"),
    ("tpu: {accelerator: h100}", "tpu.accelerator: `h100` is no type of GKE; they look like v6e-16, v5p-8 or tpu7x"),
    ("tpu: {accelerator: tpu7x-9}", "tpu.accelerator: `tpu7x-9` is no type of GKE; nearest: tpu7x-8"),
    ("tpu: {slices: 0}", "tpu.slices: must be at least 1, not `0`"),
    ("tpu: {slices: 257}", "tpu.slices: must be at most 256, not `257`"),
    ("access: {via: iap}",
     "access: is about reaching VMs; pods are followed through the API of the cluster; remove it"),
    ("ports: 6006", "ports: is about VMs; `kubectl port-forward` forwards a port of a pod; remove it"),
    ("keep_on_failure: 30m", "keep_on_failure: keeps the VMs of a job that failed"),
    ("limits: {max_cost: 5}", "limits.max_cost: cannot be kept: a cluster bills nodes, which outlive the job"),
    ("on_preemption: restart", "on_preemption: restarts jobs on slices; a job on a cluster runs once"),
    (f"gke: {{context: c, cluster: {CLUSTER}}}",
     "gke.cluster: and `context` both name the cluster; remove one of them"),
    ("gke: {cluster: tpus}", "gke.cluster: `tpus` is not the name of a cluster: projects/P/locations/L/clusters/C"),
    ("gke: {context: ' '}", "gke.context: is not the name of a context"),
    ("gke: {namespace: Team}", "gke.namespace: `Team` is not a namespace: a-z, 0-9 and `-`, at most 63"),
    ("gke: {queue: a_b}", "gke.queue: `a_b` is not a name in a cluster"),
    ("gke: {image: 'a b'}", "gke.image: `a b` is not a container image, such as "),
    ("gke: {service_account: vm@p.iam.gserviceaccount.com}",
     "gke.service_account: is an account of Google Cloud; name the service account of the namespace"),
    ("gke: {reservation: r1}",
     "gke.reservation: only counts with `tpu.provisioning: reserved`; write that, or remove this"),
    ("gke: {machine_type: ct5p-hightpu-4t}",
     "gke.machine_type: `ct5p-hightpu-4t` does not make a v5litepod-8; write ct5lp-hightpu-8t or ct5lp-hightpu-4t"),
    ("gke: {imge: x}", "gke.imge: unknown key; did you mean `image`?"),
])  # fmt: skip
def test_what_means_nothing_on_a_cluster_is_refused_by_name(text: str, line: str) -> None:
    (found,) = mistakes(f"{JOB}{text}\n")
    assert found.startswith(f"j.yaml:3: {line}")


def test_the_built_in_training_is_of_one_slice() -> None:
    (found,) = mistakes("on: gke\ntrain:\ntpu: {slices: 2}\n")
    assert found.startswith("j.yaml:3: tpu.slices: the built-in training is of one slice")
    own = "on: gke\ntrain: {entry: 'a:b'}\ntpu: {slices: 2}\n"
    assert keys.load(own, path="j.yaml").tpu.slices == 2


@pytest.mark.parametrize(("text", "line"), [
    ("gke: {queue: tpu}", "gke: only counts with `on: gke`; write that, or remove this"),
    ("tpu: {slices: 2}", "tpu.slices: several slices at once are for a cluster: write `on: gke`, or remove this"),
    ("tpu: {accelerator: tpu7x-8}",
     "tpu.accelerator: `tpu7x-8` is not in the Cloud TPU API, as far as Google says: Compute Engine and GKE have it"),
])  # fmt: skip
def test_what_only_a_cluster_has_is_refused_on_a_slice(text: str, line: str) -> None:
    (found,) = mistakes(f"command: ls\n{text}\n")
    assert found.startswith(f"j.yaml:2: {line}")


def test_a_job_of_a_cluster_may_be_tried_here() -> None:
    spec = keys.load("on: local\ncommand: ls\ntpu: {accelerator: tpu7x-8}\ngke: {queue: tpu}\n", path="j.yaml")
    assert spec.warnings() == [
        "j.yaml:3: tpu: has no effect with `on: local`",
        "j.yaml:4: gke: has no effect with `on: local`",
    ]


def test_flex_start_may_be_asked_for_together() -> None:
    spec = keys.load(JOB + "tpu: {accelerator: v6e-16, provisioning: flex-start, queue: true}\n", path="j.yaml")
    assert spec.tpu.queue and spec.tpu.effective_provisioning is Provisioning.FLEX_START


def test_the_wish_of_the_job_outranks_that_of_the_settings_key_by_key_and_the_cluster_as_one() -> None:
    settings = ClusterWish(context="shared", queue="tpu", image="i:1")
    assert ClusterWish(queue="mine").over(settings) == ClusterWish(context="shared", queue="mine", image="i:1")
    assert ClusterWish(cluster=CLUSTER).over(settings) == ClusterWish(cluster=CLUSTER, queue="tpu", image="i:1")


def test_what_neither_the_job_nor_the_settings_name_is_named() -> None:
    assert [key for key, _ in problems(ClusterWish(priority="high"), reserved=True)] == [
        "image",
        "reservation",
        "priority",
    ]
    assert [key for key, _ in problems(ClusterWish(image="i:1"), reserved=False, together=True)] == ["queue"]
    whole = ClusterWish(image="i:1", queue="q", priority="high", reservation="r")
    assert not list(problems(whole, reserved=False, together=True))
    assert list(problems(whole, reserved=True)) == []
    assert target_of(whole, reserved=True) == ClusterTarget(
        "default", "i:1", queue="q", priority="high", reservation="r"
    )
    assert target_of(whole, reserved=False).reservation is None


def test_the_location_of_a_cluster_is_in_its_name() -> None:
    assert ClusterTarget("default", "i:1", cluster=CLUSTER).location == "us-east5"
    assert ClusterTarget("default", "i:1", context="c").location is None


def test_a_job_on_a_cluster_may_be_shorter_than_one_that_waits_for_a_vm() -> None:
    text = "on: {on}\n{gke}command: x\nlimits: {{max_duration: 2m}}\n"
    assert keys.load(text.format(on="gke", gke="gke: {image: i}\n"), path="job.yaml").limits.max_duration_s == 120
    with pytest.raises(JobSpecError, match="`2m` is not between 6m and 7d"):
        keys.load(text.format(on="tpu", gke=""), path="job.yaml")
