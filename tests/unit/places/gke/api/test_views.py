"""What the control plane says of a JobSet, as a slice: its state, why it waits, in whose words, and what ended it."""

from typing import Any

import pytest

from orchestrator.errors import BadRequest, Preempted, QuotaError, SliceLost
from orchestrator.places.gke.api import fields, views, words
from orchestrator.places.gke.objects.nodes import NodeView
from orchestrator.places.gke.objects.pod_api import PodPhase
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from tests.unit.places.gke.api.store import NODE, NOW, THEN, condition, ended, homeless, jobset, pod, running, waiting

THEN_S = NOW - 300.0
LATER = "2026-09-21T14:13:40Z"  # 20 s after THEN
SOON = "2026-09-21T14:18:00Z"  # 20 s before NOW
LATE = pod(1, {"running": {"startedAt": LATER}}, phase="Running")
NAME = SliceName("kind@https://127.0.0.1:1", "team", NODE, queued=True)


def view(found: dict[str, Any], *pods: dict[str, Any], **fields: Any) -> SliceView:
    return views.slice_view(views.Seen(found, pods, server_now=NOW, **fields), NAME)


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    (replicated,) = found["spec"]["replicatedJobs"]
    spec: dict[str, Any] = replicated["template"]["spec"]["template"]["spec"]
    return spec


def with_condition(message: str, kind: str = "QuotaReserved", status: str = "False", **more: str) -> dict[str, Any]:
    return {"status": {"conditions": [condition(kind, status=status, message=message, **more)]}}


def test_a_pod_that_has_a_node_and_does_not_start_says_why() -> None:
    earlier = {"type": "Warning", "reason": "FailedMount", "message": "timed out", "firstTimestamp": THEN}
    mount = {"type": "Warning", "reason": "FailedMount", "message": 'secret "x" not found', "eventTime": LATER}
    last = {"lastTimestamp": SOON}
    placed = {"type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes are available", **last}
    pulled = {"type": "Normal", "reason": "Pulled", "message": "the image is there", **last}
    seen = view(jobset(), waiting(0, "PodInitializing"), running(1), events=[earlier, placed, mount, pulled])
    assert seen.native_state == 'Starting (1 of 2 pods run: PodInitializing: secret "x" not found)'


@pytest.mark.parametrize(("second", "server_now", "running_s", "nodes"), [
    (running(1, node="node-0"), NOW, 300.0, ("node-0",)), (homeless(1), NOW, None, ("node-0",)),
    (LATE, NOW, 280.0, ("node-0", "node-1")), (LATE, THEN_S, 0.0, ("node-0", "node-1")),
    (LATE, None, None, ("node-0", "node-1")),
])  # fmt: skip
def test_on_which_nodes_the_pods_are_and_since_when_all_run_by_the_clock_of_the_server(
    second: dict[str, Any], server_now: float | None, running_s: float | None, nodes: tuple[str, ...]
) -> None:
    seen = views.slice_view(views.Seen(jobset(), (running(0), second), server_now=server_now), NAME)
    assert (seen.running_s, seen.nodes) == (running_s, nodes)


def test_a_jobset_is_claimed_to_the_end_of_its_life_and_once_it_has_ended_until_the_cluster_deletes_it() -> None:
    found = jobset()
    found["spec"]["ttlSecondsAfterFinished"] = 600
    seen = view(found, running(0), running(1))
    assert seen.labels["tpujob-deadline"] == seen.labels["tpujob-claimed-until"] == "1790003600"
    assert (seen.accelerator_type, seen.created_at, seen.deadline) == ("v5litepod-8", THEN_S, THEN_S + 3600)
    found["status"]["conditions"] = [condition("Completed")]
    assert view(found, ended(0), ended(1)).deadline == THEN_S + 3600 + 600
    assert not seen.spot
    pod_of(found)["nodeSelector"]["cloud.google.com/gke-spot"] = "true"
    assert view(found).spot


def test_what_is_left_of_a_jobset_is_as_old_as_the_newest_of_it() -> None:
    newer = running(1)
    newer["metadata"]["creationTimestamp"] = LATER
    assert views.leftovers_view(NAME, {"pods": [running(0), newer]}, "x").created_at == THEN_S + 20


def test_counts_that_a_jobset_does_not_say_are_one_as_for_kubernetes() -> None:
    found = jobset()
    (job,) = found["spec"]["replicatedJobs"]
    del job["replicas"], job["template"]["spec"]["parallelism"]
    assert (views.hosts_of(found), views.pods_of(found)) == (1, 1)


def test_of_the_pods_that_have_not_started_one_without_a_node_is_asked_about_first() -> None:
    started, late, without = running(0), waiting(1), homeless(2)
    assert views.waiting_pod([started, late, without]) == without["metadata"]["name"]
    assert views.waiting_pod([started, late]) == late["metadata"]["name"]
    assert views.waiting_pod([started]) is None


ENFORCED = 'pods "x-0-" is forbidden: violates PodSecurity "baseline:latest": privileged'
POLICY = 'job "x" creation failed with error: jobs.batch "x" is forbidden: ValidatingAdmissionPolicy \'p\' denied request: no'
FULL = 'pods "x-0-" is forbidden: exceeded quota: q, requested: requests.google.com/tpu=4, used: requests.google.com/tpu={}, '


def refused(message: str, reason: str = "FailedCreate", at: str = LATER, **more: Any) -> dict[str, Any]:
    about = {"name": NODE if reason == "JobCreationFailed" else f"{NODE}-slice-0"}
    return {"type": "Warning", "reason": reason, "message": message, "eventTime": at, "involvedObject": about, **more}


@pytest.mark.parametrize(("event", "code"), [
    (refused(f"Error creating: {ENFORCED}"), 64),
    (refused(POLICY, "JobCreationFailed"), 64),
    (refused('Error creating: admission webhook "w" denied the request: GKE Warden rejected the request'), 64),
    (refused('Error creating: pods "x" is forbidden: no PriorityClass with name nope was found'), 64),
    (refused('Error creating: Pod "x" is invalid: spec.nodeName: Invalid value'), 64),
    (refused(f"Error creating: {FULL.format(0)}limited: requests.google.com/tpu=7"), 69),
    (refused(f"Error creating: {FULL.format(8)}limited: requests.google.com/tpu=8"), None),
    (refused('Error creating: Internal error occurred: failed calling webhook "w": no endpoints available'), None),
    (refused('Error creating: admission webhook "m" denied the request: Node "gke-a" not found'), None),
    (refused('job "j" creation failed with error: admission webhook "m" denied the request: JobSet.x "j" not found',
             "JobCreationFailed"), None),
    (refused(f"Error creating: {ENFORCED}", at=THEN), None),
    (refused(f"Error creating: {ENFORCED}", at=THEN, series={"lastObservedTime": LATER}), 64),
], ids=range(12))  # fmt: skip
def test_what_admission_refuses_for_good_ends_the_wait_with_its_words(event: dict[str, Any], code: int | None) -> None:
    """A refusal from before the JobSet was resumed is over; a quota that is only used up may be free again."""
    resumed = {**condition("Suspended", status="False"), "lastTransitionTime": "2026-09-21T14:13:30Z"}
    seen = view(jobset(resumed), jobs=(), events=[event])
    assert (seen.error and seen.error.exit_code) == code
    if code is not None:
        assert event["message"].removeprefix("Error creating: ") in str(seen.error)
        assert seen.state is SliceState.TOMBSTONE
        overcome = view(jobset(resumed), running(0), running(1), events=[event])
        assert overcome.state is SliceState.READY


NOT_YET = f'job "{NODE}-slice-0" creation failed with error: admission webhook "m" denied the request: no such set'
NEW = "2026-09-21T14:18:18.500000Z"  # 1.5 s before NOW


@pytest.mark.parametrize(("event", "made", "jobs", "refuses"), [
    (refused(ENFORCED, at="2026-09-21T14:14:59Z"), "2026-09-21T14:15:00Z", None, False),
    (refused(ENFORCED, at="2026-09-21T14:15:00.9Z"), "2026-09-21T14:15:00Z", None, False),
    (refused(ENFORCED, at="2026-09-21T14:15:01Z"), "2026-09-21T14:15:00Z", None, True),
    (refused(ENFORCED, at="2026-09-21T14:14:59Z", involvedObject={"name": f"{NODE}-slice-1"}), LATER, None, True),
    (refused(NOT_YET, "JobCreationFailed"), LATER, None, False),
    (refused(NOT_YET, "JobCreationFailed"), None, (), True),
    (refused(NOT_YET, "JobCreationFailed"), None, ({"metadata": {"name": f"{NODE}-slice-0"}},), False),
    (refused(NOT_YET, "JobCreationFailed", at=NEW), None, (), False),
    (refused(ENFORCED, at=NEW), None, None, False),
], ids=range(9))  # fmt: skip
def test_a_refusal_is_over_once_that_is_made(event: dict[str, Any], made: str | None, jobs: Any, refuses: bool) -> None:
    """It is not believed while it is new: Kueue refused a Job whose JobSet it did not know yet, and a moment later not."""
    pods = [running(0)] if made else []
    for each in pods:
        each["metadata"]["creationTimestamp"] = made
    assert (view(jobset(), *pods, jobs=jobs, events=[event]).error is not None) is refuses


WHY = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu"
QUEUED = jobset(suspend=True)
PRIORITY = jobset(suspend=True, labels={"kueue.x-k8s.io/priority-class": "nope"})
OF_POD = jobset(suspend=True)
pod_of(OF_POD)["priorityClassName"] = "urgent"
GOING = jobset(deletionTimestamp=THEN, finalizers=["foregroundDeletion", "example.com/hold"])
UNREAD = {"unread": "workloads is forbidden"}
BOTH = [running(0), running(1)]
SPARED = ended(0, conditions=[condition("DisruptionTarget", reason="EvictionByEvictionAPI")])
NO_NODE = "Pending: 2 of 2 pods have no node"


@pytest.mark.parametrize(("found", "pods", "more", "state", "native"), [
    (QUEUED, [], {"workload": with_condition(WHY)}, "QUEUED", f"Suspended: {WHY}"),
    (QUEUED, [], {}, "QUEUED", f"Suspended: {words.NOT_SEEN}"),
    (QUEUED, [], UNREAD, "QUEUED", "Suspended: workloads is forbidden"),
    (QUEUED, BOTH, {}, "QUEUED", f"Suspended: {words.NOT_SEEN}"),  # sent back: its pods are being stopped
    (PRIORITY, [], {}, "QUEUED", f"Suspended: {words.NO_WORKLOAD}: is there a WorkloadPriorityClass nope?"),
    (PRIORITY, [], UNREAD, "QUEUED", "Suspended: workloads is forbidden"),
    (OF_POD, [], {}, "QUEUED", f"Suspended: {words.NO_WORKLOAD}: is there a PriorityClass urgent?"),
    (jobset(), [], {}, "CREATING", NO_NODE), (jobset(), [], {"jobs": ({},)}, "CREATING", NO_NODE),
    (jobset(), [], {"jobs": ()}, "CREATING", f"Pending: {words.NO_JOB}"),
    (jobset(), [], {"jobs": (), "events": [refused("exceeded quota: q", "JobCreationFailed")]}, "CREATING",
     "Pending: exceeded quota: q"),  # others may free it
    (jobset(), [homeless(0, "0/3 nodes: no match"), homeless(1)], {}, "CREATING", f"{NO_NODE}: 0/3 nodes: no match"),
    (jobset(), [waiting(0), waiting(1)], {}, "CREATING", "Starting (0 of 2 pods run: ContainerCreating)"),
    (jobset(), [running(0), homeless(1)], {}, "CREATING", "Pending: 1 of 2 pods have no node, 1 run: 0/3 nodes are available"),
    (jobset(), [running(0)], {}, "CREATING", "Pending: 1 of 2 pods have no node, 1 run"),
    (jobset(slices=2), BOTH, {}, "CREATING", "Pending: 2 of 4 pods have no node, 2 run"),
    (jobset(slices=2), [*BOTH, running(0, slice=1), running(1, slice=1)], {}, "READY", "Running"),
    (jobset(), BOTH, {}, "READY", "Running"), (jobset(), [ended(0), running(1)], {}, "READY", "Running"),
    (jobset(), [ended(0, 3), ended(1)], {}, "READY", "Finished"),
    (jobset(condition("Completed")), [], {}, "READY", "Completed"),
    (jobset(condition("Completed"), suspend=True), [ended(0), ended(1)], {}, "READY", "Finished"),
    (jobset(condition("Completed"), hosts=1), [SPARED], {}, "READY", "Finished"),  # it was to be evicted, and was faster
    (jobset(condition("Failed")), [ended(0, 3)], {}, "READY", "Failed"),
    (GOING, [running(0)], {}, "DELETING", "Deleting, 1 pod left held by finalizer example.com/hold"),
])  # fmt: skip
def test_the_state_of_a_jobset_says_why_it_waits(
    found: dict[str, Any], pods: list[dict[str, Any]], more: dict[str, Any], state: str, native: str
) -> None:
    seen = view(found, *pods, **more)
    assert (seen.state, seen.native_state, seen.error) == (SliceState[state], native, None)


MOST = "insufficient quota for google.com/tpu in flavor {}, podsets requests (0) + request (8) > maximum capacity (4)"
FULL_NOW = "insufficient unused quota for google.com/tpu in flavor spot, 4 more needed"


@pytest.mark.parametrize(("clauses", "reason", "never"), [
    ([MOST.format("v5e")], "Pending", True), ([FULL_NOW], "ExceedsMaxQuota", True),
    ([MOST.format("v5e"), "flavor v4 doesn't match node affinity", MOST.format("v5p")], "Pending", True),
    (["insufficient quota for google.com/tpu in flavor v5e, request > maximum capacity (8 > 4)"], "Pending", True),
    ([MOST.format("v5e"), FULL_NOW], "Pending", False), ([FULL_NOW], "Pending", False),
    (["flavor v4 doesn't match node affinity"], "Pending", False),
    (["resource memory unavailable in ClusterQueue"], "Pending", True),
])  # fmt: skip
def test_a_request_larger_than_any_quota_is_never_admitted(clauses: list[str], reason: str, never: bool) -> None:
    message = f"couldn't assign flavors to pod set slice: {', '.join(clauses)}"
    error = view(QUEUED, workload=with_condition(message, reason=reason)).error
    assert isinstance(error, QuotaError) is never
    assert error is None or clauses[0] in error.message


MISSING = 'secret "tpujob-x" not found'
ROOT = "container has runAsNonRoot and image will run as root"


@pytest.mark.parametrize(("reason", "message", "since", "about"), [
    ("ImagePullBackOff", "rpc error: code = NotFound desc = x: not found", SOON, "image"),
    ("ImagePullBackOff", "pull access denied", SOON, "image"), ("InvalidImageName", "couldn't parse image name", SOON, "image"),
    ("ImagePullBackOff", "503", SOON, None), ("ImagePullBackOff", "503", THEN, "image"),
    *(("CreateContainerConfigError", message, SOON, None) for message in (
        MISSING, 'object "team"/"tpujob-x" not registered', "failed to sync secret cache: timed out")),
    ("CreateContainerConfigError", MISSING, THEN, ""), ("CreateContainerConfigError", ROOT, SOON, ""),
])  # fmt: skip
def test_a_container_that_cannot_start_ends_the_wait(reason: str, message: str, since: str, about: str | None) -> None:
    """A registry that fails, and a Secret that the node has not seen yet, have some minutes."""
    bound = {**condition("PodScheduled"), "lastTransitionTime": since}
    seen = view(jobset(), waiting(0, reason, message, conditions=[bound]), waiting(1))
    assert (seen.state is SliceState.CREATING) is (about is None) and (seen.state is SliceState.TOMBSTONE) is (
        about is not None
    )
    if about is not None:
        assert isinstance(seen.error, BadRequest) and message in seen.error.message
        assert ("image" in str(seen.error.hint)) is (about == "image")


LATE_JOB = with_condition("Job was active too long", "Failed", "True", reason="DeadlineExceeded")
OVER = with_condition("too long", "Evicted", "True", reason="DeactivatedDueToMaximumExecutionTimeExceeded")
LOST_JOB = with_condition("said why", "Failed", "True", reason="BackoffLimitExceeded")
NO_ROOM = ("UnexpectedAdmissionError", "OutOfgoogle.com/tpu", "NodeAffinity")


@pytest.mark.parametrize(("found", "more", "pods", "deadline", "words"), [
    (QUEUED, {"workload": OVER}, [], True, "too long"),
    (jobset(condition("Failed")), {"jobs": [LATE_JOB]}, [], True, "Job was active too long"),
    (jobset(condition("Failed", message="a job failed")), {"jobs": [LOST_JOB]}, [], False, "with their nodes: a job failed"),
    *((jobset(condition("Failed")), {}, [waiting(0), pod(1, reason=reason, message="no TPUs", phase="Failed")], False,
       f"worker1 never started ({reason}): no TPUs") for reason in NO_ROOM),
])  # fmt: skip
def test_a_jobset_that_ended_without_an_end_of_its_pods_is_lost_and_says_why(
    found: dict[str, Any], more: dict[str, Any], pods: list[dict[str, Any]], deadline: bool, words: str
) -> None:
    seen = view(found, *pods, **more)
    assert seen.state is SliceState.TOMBSTONE and isinstance(seen.error, SliceLost)
    assert (seen.error.reason == "deadline") is deadline and seen.error.message.endswith(words)


@pytest.mark.parametrize(("of_condition", "reason"), [
    ("", "Evicted"), ("PreemptionByScheduler", "Preempting"), ("DeletionByTaintManager", "NodeLost"),
    ("DeletionByPodGC", "NodeLost"), ("EvictionByEvictionAPI", "Evicted"),
])  # fmt: skip
def test_a_pod_that_was_taken_away_takes_the_jobset_with_it(of_condition: str, reason: str) -> None:
    by_kubelet = {"reason": "Evicted", "message": "said why"}  # the node was low on something
    status = {"conditions": [condition("DisruptionTarget", reason=of_condition)]} if of_condition else by_kubelet
    seen = view(jobset(), running(0), {**running(1), "status": {**running(1)["status"], **status}})
    assert (seen.state, seen.native_state) == (SliceState.TOMBSTONE, reason)
    assert isinstance(seen.error, Preempted) and seen.error.message == f"worker1 was taken away: {reason}: said why"


WITH_MESH = running(0)
WITH_MESH["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"terminated": {"exitCode": 9}}})
GATED = condition("PodScheduled", status="False", reason="SchedulingGated")


@pytest.mark.parametrize(("found", "values"), [
    (ended(1, 3, slice=2), {"worker": 9, "phase": PodPhase.FAILED, "rc": 3, "node": "node-1",
                            "started_at": THEN_S, "ended_at": THEN_S}),
    (WITH_MESH, {"rc": None, "started_at": THEN_S}),
    *((pod(0, {"terminated": {"exitCode": code, "message": "saved at step 9"}}), {"rc": rc, "note": "saved at step 9"})
      for code, rc in ((3, 3), (0, 0), ("3", None), (True, None), (None, None))),
    ({}, {"phase": PodPhase.UNKNOWN, "rc": None, "node": "", "started_at": None}),
    (homeless(0), {"reason": "Unschedulable"}), (pod(0), {"reason": ""}),
    (pod(0, node="", conditions=[GATED]), {"reason": "SchedulingGated"}),
])  # fmt: skip
def test_a_pod_is_a_worker_whose_container_says_how_it_is(found: dict[str, Any], values: dict[str, Any]) -> None:
    seen = views.pod_view(found, hosts=4)
    assert {key: getattr(seen, key) for key in values} == values


@pytest.mark.parametrize("text", [None, "", "soon", 1_790_000_000])
def test_what_is_no_time_of_the_api_counts_as_not_said(text: Any) -> None:
    assert fields.time_of(text) is None


@pytest.mark.parametrize("life", ["²", "9" * 400, "-1", "1e3", ""])
def test_a_life_that_is_no_number_of_seconds_counts_as_not_said(life: str) -> None:
    assert view(jobset(annotations={"tpujob-life-seconds": life})).deadline is None


TPU = {"resources": {"requests": {"google.com/tpu": "4"}}}


@pytest.mark.parametrize(("phase", "containers", "place", "busy"), [
    ("Running", [TPU], "gke-a", True), ("Pending", [{}, TPU], "gke-a", True), ("Succeeded", [TPU], "gke-a", False),
    ("Failed", [TPU], "gke-a", False), ("Running", [{}], "gke-a", False), ("Running", [TPU], "gke-b", False),
])  # fmt: skip
def test_a_node_is_busy_while_pods_on_it_ask_for_tpus(phase: str, containers: Any, place: str, busy: bool) -> None:
    labels = {"cloud.google.com/gke-nodepool": "v5e"}
    node = {"metadata": {"name": "gke-a", "creationTimestamp": THEN, "labels": labels}}
    of_pod = {"spec": {"nodeName": place, "containers": containers}, "status": {"phase": phase}}
    assert views.node_view(node, [of_pod]) == NodeView("gke-a", "v5e", busy=busy)
    labels["cloud.google.com/gke-max-run-duration-seconds"] = "3600"
    assert views.node_view(node, []).ends_at == THEN_S + 3600


ASSIGN, OTHER = "couldn't assign flavors to pod set slice: ", "flavor tpu7x doesn't match node affinity"
SENT_BACK = with_condition("Preempted to accommodate a workload", "Evicted", "True")
BACK_AND_WAITS = {
    "status": {"conditions": [*with_condition(FULL_NOW)["status"]["conditions"], *SENT_BACK["status"]["conditions"]]}
}


@pytest.mark.parametrize(("found", "said"), [
    (with_condition(f"{ASSIGN}flavor tpu-v4-podslice doesn't match node affinity, {OTHER}, {FULL_NOW}"), f"{ASSIGN}{FULL_NOW}"),
    (with_condition(f"{ASSIGN}{OTHER}"), f"{ASSIGN}{OTHER}"), (with_condition("no LocalQueue"), "no LocalQueue"),
    (SENT_BACK, "Preempted to accommodate a workload"), ({"status": {}}, "waits for Kueue"), (None, words.NOT_SEEN),
    (BACK_AND_WAITS, f"Preempted to accommodate a workload; {FULL_NOW}"),
])  # fmt: skip
def test_kueue_is_quoted_without_flavors_of_other_accelerators(found: dict[str, Any] | None, said: str) -> None:
    assert words.for_kueue(found) == said


FOLLOWER = 'admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology domain not found'
SCHEDULER = (
    "0/8 nodes are available: 4 Insufficient google.com/tpu. no new claims to deallocate, "
    "preemption: 0/8 nodes are available: 5 No preemption victims found for incoming pod."
)
EVENTS = [
    {"reason": "FailedScheduling", "message": "x", "lastTimestamp": "2026-09-21T14:14:00Z"},
    {"reason": "NotTriggerScaleUp", "message": "pod didn't trigger scale-up", "lastTimestamp": "2026-09-21T14:13:30Z"},
    {"reason": "TriggeredScaleUp", "message": "earlier", "lastTimestamp": "2026-09-21T14:13:20Z"},
]


@pytest.mark.parametrize(("scheduler", "events", "said"), [
    (SCHEDULER, EVENTS, "0/8 nodes are available: 4 Insufficient google.com/tpu; pod didn't trigger scale-up"), ("", [], ""),
    ("", [{"reason": "FailedCreate", "message": FOLLOWER}], ""),  # it is admitted once the first pod of the slice has a node
])  # fmt: skip
def test_the_newest_word_of_the_autoscaler_stands_beside_that_of_the_scheduler(
    scheduler: str, events: list[dict[str, Any]], said: str
) -> None:
    assert words.for_nodes(scheduler, events) == said


def test_a_jobset_that_starts_its_job_again_waits_for_the_pods_of_that_start() -> None:
    """What is left of the pods before does not count, and that they were taken away ends nothing."""
    made = jobset()
    made["spec"]["failurePolicy"], made["status"]["restarts"] = {"maxRestarts": 3}, 1
    old, new = running(0), running(1)
    new["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = "1"
    old["status"]["conditions"] = [condition("DisruptionTarget", reason="EvictionByEvictionAPI")]
    seen = view(made, old, new)
    assert seen.state is SliceState.CREATING and seen.ran
    again = running(0)
    again["metadata"]["labels"] |= {"jobset.sigs.k8s.io/restart-attempt": "1"}
    assert view(made, old, again, new).state is SliceState.READY
    again["metadata"]["deletionTimestamp"] = THEN
    assert view(made, old, again, new).state is SliceState.CREATING
    made["status"] = {"conditions": [condition("Failed")], "restarts": 1}
    assert view(made, old).state is SliceState.TOMBSTONE


def test_a_job_that_kueue_has_sent_back_has_run_if_it_may_be_started_again() -> None:
    made, sent_back = jobset(suspend=True), {"status": {"conditions": [condition("Evicted", reason="Preempted")]}}
    assert not view(made, workload=sent_back).ran
    made["spec"]["failurePolicy"] = {"maxRestarts": 3}
    assert view(made, workload=sent_back).ran and not view(made).ran
