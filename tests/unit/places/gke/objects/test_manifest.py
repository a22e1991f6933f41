"""The objects of a job on a cluster, and their YAML: what the schema of JobSet accepts, and what no schema sees."""

import base64
import itertools
import re
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.capacity.provisioning import Provisioning
from orchestrator.catalog import gke, jobset
from orchestrator.errors import UserError
from orchestrator.places.gke.objects import manifest
from orchestrator.places.gke.objects.manifest import (
    IN,
    LIFE,
    MAX_BYTES,
    RUN,
    ClusterJob,
    PodProgram,
    deadlines,
    documents,
)
from orchestrator.places.gke.objects.nodes import Capacity
from orchestrator.places.gke.preparation import to_yaml
from tests.fakes.cluster_jobs import CAPACITIES, NAME, job

VALIDATOR = jsonschema.Draft202012Validator(jobset.schema())
KINDS = tuple(itertools.product(CAPACITIES.values(), (None, "tpu"), (1, 2)))


def jobset_of(made: ClusterJob) -> dict[str, Any]:
    return documents(made)[0]


def job_of(jobset: dict[str, Any]) -> dict[str, Any]:
    return dict(jobset["spec"]["replicatedJobs"][0]["template"]["spec"])


def pod_of(jobset: dict[str, Any]) -> dict[str, Any]:
    return dict(job_of(jobset)["template"]["spec"])


def container_of(jobset: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(jobset)["containers"]
    return dict(container)


def environment_of(jobset: dict[str, Any]) -> dict[str, Any]:
    found = container_of(jobset)["env"]
    assert len({each["name"] for each in found}) == len(found)
    return {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in found}


def check(made: ClusterJob, requests: dict[str, Any] | None = None) -> None:
    """Raise AssertionError or ValidationError for a JobSet that no control plane would take, or not with that many chips.

    That its labels are valid ones says the server, in `tests/cluster/test_commands.py`.
    """
    jobset = jobset_of(made)
    VALIDATOR.validate(jobset)
    hosts, replicas = job_of(jobset)["parallelism"], jobset["spec"]["replicatedJobs"][0]["replicas"]
    assert job_of(jobset)["completions"] == hosts
    assert len(f"{jobset['metadata']['name']}-slice-{replicas - 1}-{hosts - 1}-xxxxx") <= 63
    resources = container_of(jobset)["resources"]
    assert resources["limits"] == {"google.com/tpu": made.slice.chips_per_host}
    assert resources["requests"] == (requests or resources["limits"])
    assert hosts * replicas * made.slice.chips_per_host == made.slices * made.slice.kind.chips


IN_EVERY_TIER = gke.types()[::3]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in IN_EVERY_TIER)) for name in gke.types()
])  # fmt: skip
def test_every_kind_of_job_is_a_valid_jobset_on_every_type(name: str) -> None:
    for form, (capacity, queue, slices) in itertools.product(gke.slices(name), KINDS):
        if form.flex_start or not capacity.ends_nodes:
            check(job(name, machine_type=form.machine_type, capacity=capacity, queue=queue, slices=slices))


def test_the_schema_refuses_an_unknown_field() -> None:
    jobset = jobset_of(job())
    job_of(jobset)["template"]["spec"]["nodeSelectors"] = {}
    assert [error.validator for error in VALIDATOR.iter_errors(jobset)] == ["additionalProperties"]


@pytest.mark.parametrize(("name", "machine_type", "hosts", "chips", "topology"), [
    ("v6e-8", None, 1, 8, "2x4"), ("v6e-8", "ct6e-standard-4t", 2, 4, "2x4"), ("v6e-16", None, 4, 4, "4x4"),
])  # fmt: skip
def test_a_slice_is_one_job_of_a_pod_for_each_host_and_selects_its_own_nodes(
    name: str, machine_type: str | None, hosts: int, chips: int, topology: str
) -> None:
    jobset, cloud = jobset_of(job(name, machine_type=machine_type)), "cloud.google.com/gke-"
    assert [each["name"] for each in jobset["spec"]["replicatedJobs"]] == ["slice"]
    assert (job_of(jobset)["parallelism"], job_of(jobset)["completionMode"]) == (hosts, "Indexed")
    exclusive = jobset["metadata"]["annotations"].get("alpha.jobset.sigs.k8s.io/exclusive-topology")
    assert exclusive == (f"{cloud}nodepool" if hosts > 1 else None), "a single host may share its pool with other jobs"
    assert container_of(jobset)["resources"]["limits"] == {"google.com/tpu": chips}
    selector = {"tpu-accelerator": "tpu-v6e-slice", "tpu-topology": topology, "accelerator-count": str(chips)}
    assert pod_of(jobset)["nodeSelector"] == {cloud + key: value for key, value in selector.items()}


def test_a_pod_is_told_its_place_and_one_of_several_slices_of_the_others() -> None:
    found = environment_of(jobset_of(job("v6e-16", slices=3)))
    jobset = "metadata.annotations['jobset.sigs.k8s.io/{}']".format
    assert 20000 <= int(found.pop("TPUJOB_COORDINATOR_PORT")) < 30000
    assert found == {
        "TPUJOB_SLICE": jobset("job-index"), "TPUJOB_SLICES": "3", "TPUJOB_HOSTS_PER_SLICE": "4",
        "TPUJOB_POD": "metadata.name", "TPUJOB_POD_IP": "status.podIP", "TPUJOB_COORDINATOR_NAME": jobset("coordinator"),
        "MEGASCALE_NUM_SLICES": jobset("global-replicas"), "MEGASCALE_SLICE_ID": jobset("job-global-index"),
        "MEGASCALE_COORDINATOR_ADDRESS": jobset("coordinator"),
    }  # fmt: skip
    assert not [name for name in environment_of(jobset_of(job())) if name.startswith("MEGASCALE_")]


def test_the_control_plane_ends_the_job_by_itself() -> None:
    jobset = jobset_of(job())
    pod, of_job, spec = pod_of(jobset), job_of(jobset), jobset["spec"]
    assert (pod["activeDeadlineSeconds"], of_job["activeDeadlineSeconds"]) == (3600 + 120, 3600 + 900)
    assert (spec["ttlSecondsAfterFinished"], jobset["metadata"]["annotations"][LIFE]) == (3600, "4500")
    assert (spec["failurePolicy"], of_job["backoffLimit"], pod["restartPolicy"]) == ({"maxRestarts": 0}, 0, "Never")
    assert job_of(jobset_of(job(wait_s=7200.0)))["activeDeadlineSeconds"] == 3600 + 7200


def test_kueue_admits_a_job_that_begins_suspended_and_keeps_its_time() -> None:
    jobset = jobset_of(job(queue="tpu", priority="high", wait_s=7200.0))
    labels = jobset["metadata"]["labels"]
    assert jobset["spec"]["suspend"] is True
    assert labels["kueue.x-k8s.io/queue-name"] == "tpu"
    assert labels["kueue.x-k8s.io/priority-class"] == "high"
    assert labels["kueue.x-k8s.io/max-exec-time-seconds"] == str(job_of(jobset)["activeDeadlineSeconds"]) == "4500"
    assert jobset["metadata"]["annotations"]["tpujob-life-seconds"] == str(4500 + 7200)
    without = jobset_of(job())
    assert "suspend" not in without["spec"]
    assert not [key for key in without["metadata"]["labels"] if "kueue" in key]


def reserved(name: str) -> Capacity:
    return Capacity(Provisioning.RESERVED, reservation=name)


@pytest.mark.parametrize(("capacity", "selector", "tolerated"), [
    (CAPACITIES["on-demand"], {}, []), (CAPACITIES["spot"], {"gke-spot": "true"}, ["gke-spot"]),
    (CAPACITIES["flex-start"], {"gke-flex-start": "true"}, ["gke-flex-start"]),
    (CAPACITIES["flex-start together"], {"gke-queued": "true"}, ["gke-queued"]),
    (CAPACITIES["reserved"], {"reservation-project": "my-project", "reservation-name": "r1",
        "reservation-blocks": "b1", "reservation-subblocks": "s1"}, []),
    (reserved("r1"), {"reservation-name": "r1"}, []),
    (reserved("r1/reservationBlocks/b1"), {"reservation-name": "r1", "reservation-blocks": "b1"}, []),
    (reserved("projects/my-p/reservations/r1"), {"reservation-project": "my-p", "reservation-name": "r1"}, []),
])  # fmt: skip
def test_nodes_are_selected_by_their_capacity(
    capacity: Capacity, selector: dict[str, str], tolerated: list[str]
) -> None:
    pod, cloud = pod_of(jobset_of(job(capacity=capacity))), "cloud.google.com/"
    own = {key: value for key, value in pod["nodeSelector"].items() if key not in gke.LABELS}
    assert own == {cloud + key: value for key, value in selector.items()}
    assert [each["key"] for each in pod["tolerations"]] == ["google.com/tpu", *(cloud + key for key in tolerated)]


def test_nodes_that_are_asked_for_together_have_a_time_limit_of_seven_days_at_most() -> None:
    key, together = "provreq.kueue.x-k8s.io/maxRunDurationSeconds", CAPACITIES["flex-start together"]
    assert jobset_of(job(capacity=together))["metadata"]["annotations"][key] == "4500"
    assert jobset_of(job(capacity=together, wait_s=7 * 86400.0))["metadata"]["annotations"][key] == "604800"
    assert key not in jobset_of(job(capacity=CAPACITIES["flex-start"]))["metadata"]["annotations"]


def test_every_object_and_every_pod_has_the_labels_by_which_it_is_found() -> None:
    jobset, secret, config_map = documents(job(program=PodProgram({}, b"agent", secrets={"TOKEN": "x"})))
    of_lease = {"tpujob": "1", "tpujob-lease-id": "0123456789", "tpujob-owner": "0a1b2c"}
    wanted = {**of_lease, "tpujob-name": "mnist", "tpujob-run": "abcdefghjk"}
    for each in (jobset, secret, config_map):
        assert (each["metadata"]["name"], each["metadata"]["namespace"]) == (NAME, "team-a")
        assert each["metadata"]["labels"].items() >= wanted.items()
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    assert template["metadata"]["labels"] == template["spec"]["template"]["metadata"]["labels"] == wanted


def test_the_pods_run_the_program_of_the_config_map() -> None:
    jobset = jobset_of(job())
    container = container_of(jobset)
    assert container["command"] == ["python3", "-IS", "/tpujob/in/agent.zip", "pod", "/tpujob/in", "/tpujob/run"]
    assert container["image"] == "us-docker.pkg.dev/p/r/train:1"
    assert container["name"] == "job" and "envFrom" not in container
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod_of(jobset)["volumes"]}
    assert volumes[mounts["/tpujob/in"]]["configMap"] == {"name": NAME}
    assert volumes[mounts["/tpujob/run"]]["emptyDir"] == {}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}


def test_the_target_is_in_the_pods() -> None:
    pod = pod_of(jobset_of(job(service_account="trainer", privileged=True, host_network=True)))
    assert pod["containers"][0]["securityContext"] == {"privileged": True}
    named = ("serviceAccountName", "hostNetwork", "dnsPolicy")
    assert [pod[key] for key in named] == ["trainer", True, "ClusterFirstWithHostNet"]
    usual = pod_of(jobset_of(job()))
    assert not usual.keys() & set(named) and "securityContext" not in usual["containers"][0]


OF_SETTINGS = {"priorityClassName": "low", "tolerations": [{"key": "team"}], "nodeSelector": {"disk": "ssd"}}
FRAGMENT: dict[str, Any] = {
    "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
    "priorityClassName": None,
    "nodeSelector": {"pool": "a"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]}}},
    "securityContext": {"fsGroup": 1000},
    "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
    "volumes": [
        {"name": "shm", "emptyDir": {"sizeLimit": "16Gi"}},
        {"name": "data", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "b"}}},
    ],
    "containers": [{
        "name": "job", "resources": {"requests": {"cpu": 4, "memory": "64Gi"}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "ports": [{"containerPort": 8080, "$patch": "delete"}, {"containerPort": 8471, "name": "ici"}],
        "volumeMounts": [{"mountPath": "/data", "name": "data"}, {"mountPath": "/dev/shm", "readOnly": False}],
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    }],
}  # fmt: skip


def test_a_fragment_of_the_settings_and_then_that_of_the_job_are_merged_into_the_pod() -> None:
    plain, made = jobset_of(job()), job(pod=(OF_SETTINGS, FRAGMENT), program=PodProgram({}, b"a", secrets={"T": "x"}))
    check(made, {"google.com/tpu": 4, "cpu": 4, "memory": "64Gi"})
    jobset, before = jobset_of(made), pod_of(plain)
    metadata, pod, container = job_of(jobset)["template"]["metadata"], pod_of(jobset), container_of(jobset)
    labels = job_of(plain)["template"]["metadata"]["labels"]
    assert metadata == {"annotations": {"gke-gcsfuse/volumes": "true"}, "labels": labels}
    assert "priorityClassName" not in pod  # the job takes back what the settings say
    assert pod["nodeSelector"] == {**before["nodeSelector"], "disk": "ssd", "pool": "a"}
    assert pod["tolerations"] == [*before["tolerations"], {"key": "team"}]
    assert pod["volumes"][2]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert [each["name"] for each in pod["volumes"]] == ["in", "run", "shm", "data"]
    assert [each["containerPort"] for each in container["ports"]] == [8471, 8431]
    assert [each["mountPath"] for each in container["volumeMounts"]] == [IN, RUN, "/dev/shm", "/data"]
    assert container["command"] == container_of(plain)["command"]
    assert container["envFrom"] == [{"secretRef": {"name": NAME}}]
    assert [each["name"] for each in container["env"]][-2:] == ["A", "B"]


def test_a_fragment_that_makes_no_whole_pod_is_refused() -> None:
    with pytest.raises(UserError, match=r"gke.pod: containers\[0\].volumeMounts\[3\] lacks `name`; add it"):
        documents(job(pod=({"containers": [{"name": "job", "volumeMounts": [{"mountPath": "/data"}]}]},)))


def test_what_does_not_fit_into_a_config_map_or_a_secret_is_refused_with_the_way() -> None:
    request = {"schema": 1}
    room = manifest.room_for_code(request, b"agent")
    (_, config_map) = documents(job(program=PodProgram(request, b"agent", b"x" * room)))
    sizes = [len(text.encode()) for text in config_map["data"].values()]
    sizes += [len(base64.b64decode(content)) for content in config_map["binaryData"].values()]
    assert sum(sizes) == MAX_BYTES
    with pytest.raises(UserError, match="a ConfigMap holds") as caught:
        documents(job(program=PodProgram(request, b"agent", b"x" * (room + 1))))
    assert "bucket:" in (caught.value.hint or "")
    with pytest.raises(UserError, match="a Secret holds"):
        documents(job(program=PodProgram({}, b"agent", secrets={"A": "x" * (MAX_BYTES + 1)})))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=4))
def test_any_text_is_read_again_as_it_is(value: dict[str, object]) -> None:
    assert list(yaml.safe_load_all(to_yaml([value]))) == [value]


def test_text_that_a_reader_could_take_for_a_number_or_a_truth_value_is_in_quotes() -> None:
    numbers = ["1234567e12", "0x1234abcd", "0b10101010", "0123456789", "1_000", "12:30", "1.5"]
    ids = ["", *numbers, "on", "y", "No", "null", "~"]
    text = to_yaml([{"labels": ids}])
    assert re.findall(r'^- (".*")$', text, re.M) == [f'"{each}"' for each in ids]


def test_scripts_are_readable_and_a_line_is_never_folded() -> None:
    text = to_yaml([{"script": "set -e\necho 1\n", "long": "x" * 500 + " " + "y" * 500}])
    assert "script: |\n  set -e\n  echo 1\n" in text
    assert max(len(line) for line in text.splitlines()) > 1000


def test_a_job_that_may_be_restarted_is_so_unless_it_fails_by_itself_or_its_time_is_over() -> None:
    limits = deadlines(3600.0, wait_s=0.0, linger_s=None, queued=True, starts=4, grace_s=30.0)
    jobset = jobset_of(job(queue="tpu", limits=limits, grace=30.0))
    VALIDATOR.validate(jobset)
    policy, of_pods = jobset["spec"]["failurePolicy"], job_of(jobset)["podFailurePolicy"]["rules"]
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (3, "BlockingRecreate")
    assert [rule["onJobFailureReasons"] for rule in policy["rules"]] == [["PodFailurePolicy", "DeadlineExceeded"]]
    assert [rule["action"] for rule in of_pods] == ["Count", "FailJob"]
    assert of_pods[1]["onExitCodes"]["values"] == [71, 143]
    assert pod_of(jobset)["terminationGracePeriodSeconds"] == 80
    one = limits.job_s
    assert one == 3600.0 + 900.0 + 20.0 and jobset["metadata"]["labels"][manifest.MAX_EXEC_TIME] == str(int(4 * one))
    assert jobset["metadata"]["annotations"][LIFE] == str(int(4 * (one + 3600.0)))
