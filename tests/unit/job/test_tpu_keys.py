"""The sections that say where a job runs, `tpu:` and those of `on: gke`, and the line that each mistake gets."""

from pathlib import Path

import jsonschema
import pytest

from orchestrator import settings
from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.location_rules import accelerator_problem, places_near
from orchestrator.capacity.plan import make
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.job.cluster import ClusterTarget, ClusterWish, problems, target_of
from orchestrator.job.source import yaml_source
from orchestrator.job.tpu_keys import TpuSection
from tests import ROOT
from tests.unit.job.refused import refused

COMMAND = "command: ls\n"
ZONES = places_near("mars", "v5litepod-8")
ALTERNATIVES = """\
tpu:
  zone: us-central1
  spot: true
  any_of:
    - accelerator: v5litepod-16
    - accelerator: v5litepod-8
      provisioning: queued
      zone: [us-west4-a, us-central1-a]
    - {accelerator: v6e-8, zone: any, spot: false}
"""


def tpu(text: str) -> TpuSection:
    return job_spec.load(COMMAND + text, path="job.yaml").tpu


def mistakes_of(text: str) -> list[str]:
    return refused(job_spec.load, COMMAND + text, path="job.yaml")


def alternatives(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    return [(each.accelerator, each.zone, str(each.effective_provisioning)) for each in tpu(text).alternatives]


def test_a_section_without_any_of_is_its_own_only_alternative() -> None:
    assert alternatives("tpu: {accelerator: v6e-8, spot: true}\n") == [("v6e-8", (), "spot")]
    assert alternatives("") == [("v5litepod-8", (), "on-demand")]


def test_common_names_of_types_are_accepted() -> None:
    text = "tpu: {any_of: [{accelerator: v5e-16}, {accelerator: tpu-v6e-8}]}\n"
    assert [kind for kind, _, _ in alternatives(text)] == ["v5litepod-16", "v6e-8"]
    assert tpu("tpu: {accelerator: tpu-v5e-8}\n").runtime_version == "v2-alpha-tpuv5-lite"
    [line] = mistakes_of("tpu: {accelerator: tpu-v5e-7}\n")
    assert "`tpu-v5e-7` is not a known accelerator type; nearest: v5litepod-8, v5litepod-" in line


def test_alternatives_inherit_keys_beside_them_and_override_them() -> None:
    assert alternatives(ALTERNATIVES) == [
        ("v5litepod-16", ("us-central1",), "spot"),
        ("v5litepod-8", ("us-west4-a", "us-central1-a"), "queued"),
        ("v6e-8", ("any",), "on-demand"),
    ]


def test_a_list_is_short_for_any_of() -> None:
    listed = "tpu:\n  - {accelerator: v4-8, spot: true}\n  - {}\n"
    assert alternatives(listed) == [("v4-8", (), "spot"), ("v5litepod-8", (), "on-demand")]


def test_the_order_is_set_beside_the_alternatives() -> None:
    chosen = tpu("tpu: {queue: true, order: cheapest, max_price_per_hour: 12, wait: 6h, race: true}\n")
    assert (chosen.order, chosen.max_price_per_hour, chosen.wait, chosen.race) == ("cheapest", 12.0, 21600.0, True)
    plain = tpu("")
    assert (plain.order, plain.max_price_per_hour, plain.wait, plain.race) == ("as-listed", None, 0.0, False)
    assert tpu("tpu: {wait: 0}\n").wait == 0.0


def test_what_happens_after_a_preemption_is_the_jobs_own() -> None:
    spec = job_spec.load(COMMAND + "on_preemption: restart\nmax_restarts: 5\nallow_egress: true\n", path="job.yaml")
    assert (spec.on_preemption, spec.max_restarts, spec.allow_egress) == ("restart", 5, True)
    plain = job_spec.load(COMMAND, path="job.yaml")
    assert (plain.on_preemption, plain.max_restarts, plain.allow_egress) == ("stop", 3, False)


@pytest.mark.parametrize(
    "text", [ALTERNATIVES, "tpu: [{accelerator: v4-8}, {}]\n", "tpu: {wait: 0, zone: any}\n", "tpu:\n"]
)
def test_the_schema_of_editors_takes_every_form(text: str) -> None:
    tpu(text)
    data = yaml_source.read(COMMAND + text).data
    jsonschema.validate(data, job_spec.schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(("text", "line"), [
    ("tpu: []\n", "2: tpu: is empty; list what the job can live with, or leave it out"),
    ("tpu:\n  any_of: []\n", "3: tpu.any_of: is empty; list what the job can live with, or leave it out"),
    ("tpu: [" + "{}, " * 51 + "]\n", "2: tpu: has 51 alternatives; write at most 50"),
    ("tpu:\n  any_of:\n    - {}\n    - acclerator: v4-8\n",
     "5: tpu.any_of[1].acclerator: unknown key; did you mean `accelerator`?"),
    ("tpu:\n  - {}\n  - acclerator: v4-8\n", "4: tpu[1].acclerator: unknown key; did you mean `accelerator`?"),
    ("tpu:\n  - preemptible: true\n", "3: tpu[0].preemptible: unknown key; did you mean `spot`?"),
    ("tpu:\n  - order: fastest\n", "3: tpu[0].order: does not belong here; did you mean `tpu.order`?"),
    ("tpu:\n  - {}\n  - accelerator: v4-9\n", f"4: tpu[1].accelerator: {accelerator_problem('v4-9')}"),
    ("tpu:\n  zone: us-central2-z\n  any_of:\n    - accelerator: v4-8\n",
     "3: tpu.zone: `us-central2-z` is not a zone with TPUs; nearest: us-central2-b, us-central2, us-central1-f"),
    ("tpu:\n  any_of:\n    - zone: [us-central1-a, mars]\n",
     f"4: tpu.any_of[0].zone[1]: `mars` is not a zone or a known region; {ZONES}"),
    ("tpu: {provisioning: preemptible}\n",
     "2: tpu.provisioning: must be `on-demand` or `spot` or `reserved` or `flex-start` or `queued`, not the text "
     "`preemptible`"),
    ("tpu:\n  spot: true\n  provisioning: queued\n",
     "3: tpu.spot: and `provisioning: queued` contradict each other; remove one of them"),
    ("tpu:\n  provisioning: flex-start\n  queue: false\n",
     "4: tpu.queue: cannot be false with `provisioning: flex-start`, which is always queued; remove it"),
    ("tpu: {race: true}\n", "2: tpu.race: only queued candidates can race; add `queue: true`, or remove this"),
    ("tpu: {wait: 6}\n", "2: tpu.wait: `6` is not a duration: write numbers with units, such as 6m or 6h (0s to 7d)"),
    ("tpu: {wait: 8d}\n", "2: tpu.wait: `8d` is longer than 7d; write for example 6h"),
    ("tpu: {max_price_per_hour: cheap}\n",
     "2: tpu.max_price_per_hour: `cheap` is not an amount of dollars; write for example 12"),
    ("max_restarts: 2\n", "2: max_restarts: only counts with `on_preemption: restart`; add that, or remove this"),
    ("on_preemption: resume\n", "2: on_preemption: must be `stop` or `restart`, not the text `resume`"),
    ("restarts: 2\n", "2: restarts: unknown key; did you mean `max_restarts`?"),
    ("tpu:\n  - {}\n  - {accelerator: v9-8, zone: mars-north1-a, unlisted: true}\n",
     "4: tpu[1].runtime: v9-8 is not in the catalog, so it has no default runtime; name one here"),
])  # fmt: skip
def test_every_mistake_is_one_line_at_its_written_place(text: str, line: str) -> None:
    assert mistakes_of(text) == [f"job.yaml:{line}"]


def test_more_cores_than_an_alternative_has_are_refused() -> None:
    text = "train: {cores: 8}\ntpu: [{accelerator: v5litepod-8}, {accelerator: v5litepod-4}]\n"
    assert refused(job_spec.load, text, path="job.yaml") == [
        "job.yaml:1: train.cores: v5litepod-4 has 4 cores, not 8; write at most 4, or `all`"
    ]


def test_a_runtime_of_another_generation_is_allowed_with_a_warning() -> None:
    text = "command: ls\ntpu:\n  runtime: v2-alpha-tpuv5\n  any_of:\n  - accelerator: v5p-8\n  - accelerator: v5e-8\n"
    text += "  - {accelerator: v4-8, runtime: tpu-ubuntu2204-base}\n  - {accelerator: v6e-8, runtime: newer-than-the-table}\n"
    assert job_spec.load(text, path="job.yaml").warnings() == [
        "job.yaml:3: tpu.runtime: `v2-alpha-tpuv5` is for v5p, and v5litepod-8 is v5e; "
        "write v2-alpha-tpuv5-lite, or leave it out"
    ]
    listed = "command: ls\ntpu: [{accelerator: v5e-8, runtime: tpu-ubuntu2204-base}]\n"
    assert job_spec.load(listed, path="job.yaml").warnings() == [
        "job.yaml:2: tpu[0].runtime: `tpu-ubuntu2204-base` is for v2, v3, v4, and v5litepod-8 is v5e; "
        "write v2-alpha-tpuv5-lite, or leave it out"
    ]


def test_a_local_job_warns_of_keys_without_effect() -> None:
    spec = job_spec.load("on: local\ncommand: ls\non_preemption: restart\nallow_egress: true\n", path="job.yaml")
    assert spec.warnings() == [
        "job.yaml:4: allow_egress: has no effect with `on: local`",
        "job.yaml:3: on_preemption: has no effect with `on: local`",
    ]


def test_the_examples_of_the_page_load_as_described(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "job-file.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    choosing, quota = (next(block for block in blocks if word in block) for word in ("any_of:", "quota:"))
    spec = job_spec.load(COMMAND + choosing, path="job.yaml")
    assert [str(each.effective_provisioning) for each in spec.tpu.alternatives] == ["spot", "spot", "queued"]
    assert make([CapacityRequest(each.accelerator, each.zone) for each in spec.tpu.alternatives]).candidates
    (tmp_path / "settings.yaml").write_text(quota)
    granted = settings.read_settings(tmp_path / "settings.yaml", {})["quota"]
    assert [grant.label for grant in granted] == ["5 on-demand v3-8", "100 spot v2-8", "32 spot v4 chips"]


CLUSTER = "projects/my-project/locations/us-east5/clusters/tpus"
JOB = "on: gke\ncommand: ls\n"


def mistakes(text: str) -> list[str]:
    return refused(job_spec.load, text, path="j.yaml")


def test_a_job_on_a_cluster_says_where_and_as_what_it_runs() -> None:
    text = (
        JOB + f"tpu: {{accelerator: tpu-7x-16, slices: 2, provisioning: reserved, wait: 6h}}\n"
        f"gke: {{cluster: {CLUSTER}, namespace: team-a, queue: tpu, priority: high, image: 'us-docker.pkg.dev/p/r/i:1',\n"
        "  service_account: trainer, reservation: projects/my-project/reservations/r1/reservationBlocks/b1,\n"
        "  host_network: true, pod: {priorityClassName: urgent}}\n"
    )
    spec = job_spec.load(text, path="j.yaml")
    assert (spec.tpu.accelerator, spec.tpu.slices, spec.tpu.wait) == ("tpu7x-16", 2, 6 * 3600)
    assert spec.tpu.effective_provisioning is Provisioning.RESERVED
    assert spec.gke.wish == ClusterWish(
        cluster=CLUSTER, namespace="team-a", queue="tpu", priority="high", image="us-docker.pkg.dev/p/r/i:1",
        service_account="trainer", reservation="projects/my-project/reservations/r1/reservationBlocks/b1", host_network=True,
        pod=({"priorityClassName": "urgent"},),
    )  # fmt: skip
    assert spec.warnings() == []


POD = [  # what `gke.pod` may not say, and what is said of it
    ("nodeSelectr: {}", ".nodeSelectr: is no field of a pod; did you mean `nodeSelector`?"),
    ("securityContext: {x: 1}", ".securityContext.x: is no field of a pod; known here: appArmorProfile, fsGroup"),
    ("nodeSelector: {a: 1}", ".nodeSelector.a: is not text; put a number or a truth value in quotes"),
    ("hostPID: 'yes'", ".hostPID: is not `true` or `false`"),
    ("priority: true", ".priority: is not a whole number"),
    ("tolerations: {key: a}", ".tolerations: is not a list"),
    ("volumes: [data]", ".volumes[0]: is not a mapping"),
    ("volumes: [{emptyDir: {}}]", ".volumes[0]: lacks `name`, by which it is merged; add it"),
    ("tolerations: [{$patch: delete}]", ".tolerations[0].$patch: is no field of a pod"),
    ("activeDeadlineSeconds: null", ".activeDeadlineSeconds: ends the job when no machine of yours is left"),
    ("nodeSelector: null", ".nodeSelector: has what tpujob writes into it; name what you want to remove"),
    ("containers: [{name: job, volumeMounts: null}]", ".containers[0].volumeMounts: has what tpujob writes into it"),
    ("containers: [{name: job, command: [sh]}]", ".containers[0].command: is tpujob's program, which runs the job"),
    (
        "containers: [{name: job, resources: {limits: {google.com/tpu: 1}}}]",
        ".containers[0].resources.limits.google.com/tpu: follows from `tpu.accelerator`: a pod has all chips of its host",
    ),
    ("containers: [{name: log}]", ".containers[0]: a container beside `job` does not end with the job"),
    ("containers: [{name: job, $patch: delete}]", ".containers[0]: is the container of the job; remove `$patch`"),
    (
        "initContainers: [{name: a, resources: {requests: {google.com/tpu: 1}}}]",
        ".initContainers[0].resources.requests.google.com/tpu: follows from `tpu.accelerator`: a pod has all chips",
    ),
    ("resources: {limits: {google.com/tpu: 1}}", ".resources.limits.google.com/tpu: follows from `tpu.accelerator`"),
    *(
        (
            f"containers: [{{name: job, volumeMounts: [{{mountPath: {path}, $patch: delete}}]}}]",
            ".containers[0].volumeMounts[0]: holds what the pod runs, below /tpujob",
        )
        for path in ("/tpujob/in", "/tpujob/", "//tpujob", "/tpujob/../tpujob/x", "a/../tpujob")
    ),
    ("volumes: [{name: run, $patch: delete}]", ".volumes[0]: holds what the pod runs, below /tpujob"),
    (
        "containers: [{name: job, env: [{name: TPUJOB_X, value: a}]}]",
        ".containers[0].env[0]: is set by tpujob on every worker; choose another name",
    ),
    (
        "containers: [{name: job, env: [{name: TPUJOB_X, $patch: delete}]}]",
        ".containers[0].env[0]: is set by tpujob on every worker; choose another name",
    ),
    (
        "containers: [{name: job, env: [{name: API_TOKEN, value: abcdefgh12345678}]}]",
        ".containers[0].env[0]: looks like a secret, and files are shared; export it and write `env: {API_TOKEN: ",
    ),
    (
        "initContainers: [{name: a, env: [{name: API_TOKEN, value: abcdefgh12345678}]}]",
        ".initContainers[0].env[0]: looks like a secret, and files are shared",
    ),
    (
        "initContainers: [{name: a, args: ['${env:HOME}']}]",
        ".initContainers[0].args[0]: `${env:…}` is read only in `env:`",
    ),
    (
        "containers: [{name: job, env: [{name: A, value: '${env:HOME}'}]}]",
        ".containers[0].env[0].value: `${env:…}` is read "
        "only in `env:`; set a variable there, which the pod gets from a Secret",
    ),
    (
        "nodeSelector: {cloud.google.com/gke-accelerator-count: '8'}",
        ".nodeSelector.cloud.google.com/gke-accelerator-count: follows from `tpu.accelerator` and `gke.machine_type`",
    ),
    (
        "nodeSelector: {cloud.google.com/gke-spot: 'true'}",
        ".nodeSelector.cloud.google.com/gke-spot: follows from `tpu.provisioning`",
    ),
    ("metadata: {labels: {tpujob-run: x}}", ".metadata.labels.tpujob-run: is a label of tpujob; choose another name"),
    ("hostNetwork: true", ".hostNetwork: is `gke.host_network`; write it there"),
]


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
    ("on_preemption: restart", "on_preemption: on a cluster goes on from what the pods saved to the bucket of the job"),
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
    *((f"gke: {{pod: {{{text}}}}}", f"gke.pod{line}") for text, line in POD),
])  # fmt: skip
def test_what_means_nothing_on_a_cluster_is_refused_by_name(text: str, line: str) -> None:
    (found,) = mistakes(f"{JOB}{text}\n")
    assert found.startswith(f"j.yaml:3: {line}")


def test_the_built_in_training_is_of_one_slice_and_needs_a_bucket_for_its_checkpoints() -> None:
    of_checkpoints, of_slices = mistakes("on: gke\ntrain:\ntpu: {slices: 2}\n")
    assert of_checkpoints.startswith("j.yaml:2: train: writes checkpoints, which no log of a pod holds")
    assert of_slices.startswith("j.yaml:3: tpu.slices: the built-in training is of one slice")
    own = "on: gke\ntrain: {entry: 'a:b'}\ntpu: {slices: 2}\n"
    assert job_spec.load(own, path="j.yaml").tpu.slices == 2


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
    spec = job_spec.load("on: local\ncommand: ls\ntpu: {accelerator: tpu7x-8}\ngke: {queue: tpu}\n", path="j.yaml")
    assert spec.warnings() == [
        "j.yaml:3: tpu: has no effect with `on: local`",
        "j.yaml:4: gke: has no effect with `on: local`",
    ]


def test_flex_start_may_be_asked_for_together() -> None:
    spec = job_spec.load(JOB + "tpu: {accelerator: v6e-16, provisioning: flex-start, queue: true}\n", path="j.yaml")
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
    assert target_of(whole, reserved=True) == ClusterTarget(image="i:1", queue="q", priority="high", reservation="r")
    assert target_of(whole, reserved=False).reservation is None


def test_the_location_of_a_cluster_is_in_its_name() -> None:
    assert ClusterTarget(namespace="default", image="i:1", cluster=CLUSTER).location == "us-east5"
    assert ClusterTarget(namespace="default", image="i:1", context="c").location is None


def test_a_job_on_a_cluster_may_be_shorter_than_one_that_waits_for_a_vm() -> None:
    text = "on: {on}\n{gke}command: x\nlimits: {{max_duration: 2m}}\n"
    assert job_spec.load(text.format(on="gke", gke="gke: {image: i}\n"), path="job.yaml").limits.max_duration_s == 120
    with pytest.raises(JobSpecError, match="`2m` is not between 6m and 7d"):
        job_spec.load(text.format(on="tpu", gke=""), path="job.yaml")
