"""What the control plane says of a JobSet, as a slice: its state, why it waits, in whose words, and what ended it."""

from typing import Any

import pytest

from orchestrator.errors import BadRequest, Preempted, QuotaError, SliceLost
from orchestrator.places.gke.api import fields, views, words
from orchestrator.places.gke.objects.pod_api import PodPhase
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from tests.unit.places.gke.api.store import (
    CREATED,
    NODE,
    SERVER_NOW,
    condition,
    ended,
    homeless,
    jobset,
    pod,
    running,
    waiting,
)

CREATED_S = SERVER_NOW - 300.0
LATER = "2026-09-21T14:13:40Z"  # 20 s after CREATED
NAME = SliceName("kind@https://127.0.0.1:1", "team", NODE, queued=True)


def view(found: dict[str, Any], *pods: dict[str, Any], **fields: Any) -> SliceView:
    return views.slice_view(views.Seen(found, pods, server_now=SERVER_NOW, **fields), NAME)


def test_a_suspended_jobset_waits_in_its_queue_and_says_why_kueue_does_not_admit_it() -> None:
    message = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu"
    workload = {"status": {"conditions": [condition("QuotaReserved", status="False", message=message)]}}
    seen = view(jobset(suspend=True), workload=workload)
    assert (seen.state, seen.native_state) == (SliceState.QUEUED, f"Suspended: {message}")


def test_a_jobset_that_is_sent_back_waits_also_while_its_pods_are_being_stopped() -> None:
    assert view(jobset(suspend=True), running(0), running(1)).state is SliceState.QUEUED
    ended_well = jobset(condition("Completed"), suspend=True)
    assert view(ended_well, ended(0), ended(1)).state is SliceState.READY


def test_a_jobset_that_kueue_suspends_for_good_has_reached_its_limit() -> None:
    over = condition("Evicted", reason="DeactivatedDueToMaximumExecutionTimeExceeded", message="exceeded the time")
    seen = view(jobset(suspend=True), workload={"status": {"conditions": [over]}})
    assert seen.state is SliceState.TOMBSTONE and isinstance(seen.error, SliceLost) and seen.error.reason == "deadline"


def test_a_suspended_jobset_without_a_workload_names_what_may_be_missing() -> None:
    assert "LocalQueue" in view(jobset(suspend=True)).native_state


def test_a_workload_that_may_not_be_read_is_no_missing_queue() -> None:
    native = view(jobset(suspend=True), unread="workloads is forbidden").native_state
    assert "LocalQueue" not in native and "workloads is forbidden" in native


def test_pods_without_a_node_wait_and_say_what_the_scheduler_says() -> None:
    seen = view(jobset(), homeless(0, "0/3 nodes are available: 3 node(s) didn't match"), homeless(1))
    assert seen.state is SliceState.CREATING
    assert seen.native_state == "Pending: 2 of 2 pods have no node: 0/3 nodes are available: 3 node(s) didn't match"


def test_a_pod_that_has_a_node_and_does_not_start_says_why() -> None:
    earlier = {"type": "Warning", "reason": "FailedMount", "message": "timed out", "firstTimestamp": CREATED}
    mount = {"type": "Warning", "reason": "FailedMount", "message": 'secret "x" not found', "eventTime": LATER}
    last = {"lastTimestamp": "2026-09-21T14:18:00Z"}
    placed = {"type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes are available", **last}
    pulled = {"type": "Normal", "reason": "Pulled", "message": "the image is there", **last}
    seen = view(jobset(), waiting(0, "PodInitializing"), running(1), events=[earlier, placed, mount, pulled])
    assert seen.native_state == 'Starting (1 of 2 pods run: PodInitializing: secret "x" not found)'


def test_since_when_all_pods_run_and_on_which_nodes_they_are_is_said() -> None:
    seen = view(jobset(), running(0), running(1, node="node-0"))
    assert (seen.running_s, seen.nodes) == (300.0, ("node-0",))
    starting = view(jobset(), running(0), homeless(1))
    assert (starting.running_s, starting.nodes) == (None, ("node-0",))


@pytest.mark.parametrize(("server_now", "running_s"), [(SERVER_NOW, 280.0), (CREATED_S, 0.0), (None, None)])
def test_the_last_pod_that_started_counts_by_the_clock_of_the_server(
    server_now: float | None, running_s: float | None
) -> None:
    pods = (running(0), pod(1, {"running": {"startedAt": LATER}}, phase="Running"))
    assert views.slice_view(views.Seen(jobset(), pods, server_now=server_now), NAME).running_s == running_s


def test_a_jobset_on_nodes_that_may_be_taken_away_is_on_spot() -> None:
    found = jobset()
    assert not view(found).spot
    nodes = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["nodeSelector"]
    nodes["cloud.google.com/gke-spot"] = "true"
    assert view(found).spot


def test_what_is_left_of_a_jobset_is_as_old_as_the_newest_of_it() -> None:
    newer = running(1)
    newer["metadata"]["creationTimestamp"] = LATER
    assert views.leftovers_view(NAME, {"pods": [running(0), newer]}, "x").created_at == CREATED_S + 20


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


def test_the_claim_of_a_jobset_that_has_ended_goes_on_until_the_cluster_deletes_it() -> None:
    found = jobset(condition("Completed"))
    found["spec"]["ttlSecondsAfterFinished"] = 600
    life_s = 3600
    assert view(found, ended(0), ended(1)).deadline == CREATED_S + life_s + 600
    found["status"]["conditions"] = []
    assert view(found, running(0), running(1)).deadline == CREATED_S + life_s


def test_pods_that_do_not_exist_yet_wait_as_well() -> None:
    assert view(jobset()).native_state == "Pending: 2 of 2 pods have no node"


@pytest.mark.parametrize(("pods", "native"), [
    ([waiting(0), waiting(1)], "Starting (0 of 2 pods run: ContainerCreating)"),
    ([running(0), homeless(1)], "Pending: 1 of 2 pods have no node, 1 run: 0/3 nodes are available"),
    ([running(0)], "Pending: 1 of 2 pods have no node, 1 run"),
])  # fmt: skip
def test_a_jobset_whose_pods_start_is_being_created(pods: list[dict[str, Any]], native: str) -> None:
    seen = view(jobset(), *pods)
    assert (seen.state, seen.native_state) == (SliceState.CREATING, native)


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
    (refused(f"Error creating: {ENFORCED}", at=CREATED), None),
    (refused(f"Error creating: {ENFORCED}", at=CREATED, series={"lastObservedTime": LATER}), 64),
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
NEW = "2026-09-21T14:18:18.500000Z"  # 1.5 s before SERVER_NOW


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
def test_a_refusal_is_over_once_that_is_made_and_is_not_believed_while_it_is_new(
    event: dict[str, Any], made: str | None, jobs: Any, refuses: bool
) -> None:
    """Kueue once refused a Job as its cache did not know the JobSet yet, and JobSet made the Job a moment later."""
    pods = [running(0)] if made else []
    for each in pods:
        each["metadata"]["creationTimestamp"] = made
    assert (view(jobset(), *pods, jobs=jobs, events=[event]).error is not None) is refuses


def test_a_jobset_of_which_no_job_is_made_says_so_where_jobs_were_asked_for() -> None:
    assert view(jobset(), jobs=()).native_state == f"Pending: {words.NO_JOB}"
    full = refused("exceeded quota: q", "JobCreationFailed")
    assert view(jobset(), jobs=(), events=[full]).native_state == "Pending: exceeded quota: q", "others may free it"
    assert view(jobset(), jobs=({},)).native_state == "Pending: 2 of 2 pods have no node"


def test_a_priority_of_which_kueue_makes_no_workload_is_named() -> None:
    named = jobset(suspend=True, labels={"kueue.x-k8s.io/priority-class": "nope"})
    why = f"Suspended: {words.NO_WORKLOAD}: is there a"
    assert view(named).native_state == f"{why} WorkloadPriorityClass nope?"
    assert "nope" not in view(named, unread="workloads is forbidden").native_state
    of_pod = jobset(suspend=True)
    of_pod["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    assert view(of_pod).native_state == f"{why} PriorityClass urgent?"


MOST = "insufficient quota for google.com/tpu in flavor {}, podsets requests (0) + request (8) > maximum capacity (4)"
FULL_NOW = "insufficient unused quota for google.com/tpu in flavor spot, 4 more needed"


@pytest.mark.parametrize(("clauses", "reason", "never"), [
    ([MOST.format("v5e")], "Pending", True), ([FULL_NOW], "ExceedsMaxQuota", True),
    ([MOST.format("v5e"), "flavor v4 doesn't match node affinity", MOST.format("v5p")], "Pending", True),
    (["insufficient quota for google.com/tpu in flavor v5e, request > maximum capacity (8 > 4)"], "Pending", True),
    ([MOST.format("v5e"), FULL_NOW], "Pending", False), ([FULL_NOW], "Pending", False),
    (["flavor v4 doesn't match node affinity"], "Pending", False),
])  # fmt: skip
def test_a_request_that_is_larger_than_any_quota_is_never_admitted(
    clauses: list[str], reason: str, never: bool
) -> None:
    message = f"couldn't assign flavors to pod set slice: {', '.join(clauses)}"
    waits = condition("QuotaReserved", status="False", reason=reason, message=message)
    error = view(jobset(suspend=True), workload={"status": {"conditions": [waits]}}).error
    assert isinstance(error, QuotaError) is never
    assert error is None or clauses[0] in error.message


@pytest.mark.parametrize(("pods", "native"), [
    ([running(0), running(1)], "Running"), ([ended(0), running(1)], "Running"), ([ended(0, 3), ended(1)], "Finished"),
])  # fmt: skip
def test_a_jobset_all_of_whose_pods_have_started_is_ready(pods: list[dict[str, Any]], native: str) -> None:
    seen = view(jobset(), *pods)
    assert (seen.state, seen.native_state) == (SliceState.READY, native)


def test_a_completed_jobset_is_ready_also_without_its_pods() -> None:
    seen = view(jobset(condition("Completed")))
    assert (seen.state, seen.native_state, seen.error) == (SliceState.READY, "Completed", None)


def test_the_pods_of_all_slices_have_to_start() -> None:
    first = [running(0), running(1)]
    assert view(jobset(slices=2), *first).state is SliceState.CREATING
    assert view(jobset(slices=2), *first, running(0, slice=1), running(1, slice=1)).state is SliceState.READY


@pytest.mark.parametrize(("reason", "message"), [
    ("ImagePullBackOff", "rpc error: code = NotFound desc = x: not found"), ("ImagePullBackOff", "pull access denied"),
    ("InvalidImageName", "couldn't parse image name"),
])  # fmt: skip
def test_an_image_that_cannot_be_had_ends_the_wait_at_once(reason: str, message: str) -> None:
    seen = view(jobset(), waiting(0, reason, message), waiting(1))
    assert seen.state is SliceState.TOMBSTONE and isinstance(seen.error, BadRequest)
    assert message in seen.error.message and seen.error.hint is not None and "image" in seen.error.hint


def test_a_registry_that_fails_otherwise_has_some_minutes() -> None:
    def state(scheduled: str) -> SliceState:
        bound = {**condition("PodScheduled"), "lastTransitionTime": scheduled}
        return view(jobset(hosts=1), waiting(0, "ImagePullBackOff", "503", conditions=[bound])).state

    assert state("2026-09-21T14:18:00Z") is SliceState.CREATING  # 20 s ago by the clock of the server
    assert state(CREATED) is SliceState.TOMBSTONE


def test_a_secret_that_the_node_has_not_seen_yet_has_some_minutes_and_is_no_matter_of_the_image() -> None:
    def seen(message: str, scheduled: str) -> SliceView:
        bound = {**condition("PodScheduled"), "lastTransitionTime": scheduled}
        return view(jobset(hosts=1), waiting(0, "CreateContainerConfigError", message, conditions=[bound]))

    missing, soon = 'secret "tpujob-x" not found', "2026-09-21T14:18:00Z"
    for message in (missing, 'object "team"/"tpujob-x" not registered', "failed to sync secret cache: timed out"):
        assert seen(message, soon).state is SliceState.CREATING
    late = seen(missing, CREATED)
    assert late.state is SliceState.TOMBSTONE and isinstance(late.error, BadRequest)
    assert missing in late.error.message and "image" not in str(late.error.hint)
    assert seen("container has runAsNonRoot and image will run as root", soon).state is SliceState.TOMBSTONE


def test_a_pod_that_its_node_refused_says_why_the_jobset_failed() -> None:
    status: dict[str, Any] = {
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to no TPUs",
        "phase": "Failed",
    }
    seen = view(jobset(condition("Failed")), waiting(0), pod(1, **status))
    assert isinstance(seen.error, SliceLost)
    assert seen.error.message == "worker1 never started (UnexpectedAdmissionError): Allocate failed due to no TPUs"


def test_a_pod_that_succeeded_though_it_was_to_be_evicted_was_not_taken_away() -> None:
    spared = ended(0, conditions=[condition("DisruptionTarget", reason="EvictionByEvictionAPI")])
    assert view(jobset(condition("Completed"), hosts=1), spared).state is SliceState.READY


def test_the_container_of_the_job_counts_and_not_one_that_the_cluster_adds() -> None:
    found = running(0)
    added = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 9}}}
    found["status"]["containerStatuses"].insert(0, added)
    seen = views.pod_view(found, 1)
    assert seen.rc is None and seen.started_at is not None


@pytest.mark.parametrize(("status", "reason"), [
    ({"reason": "Evicted", "message": "The node was low on resource: memory"}, "Evicted"),
    ({"conditions": [condition("DisruptionTarget", reason="PreemptionByScheduler")]}, "Preempting"),
    ({"conditions": [condition("DisruptionTarget", reason="DeletionByTaintManager")]}, "NodeLost"),
    ({"conditions": [condition("DisruptionTarget", reason="DeletionByPodGC")]}, "NodeLost"),
    ({"conditions": [condition("DisruptionTarget", reason="EvictionByEvictionAPI")]}, "Evicted"),
])  # fmt: skip
def test_a_pod_that_was_taken_away_takes_the_jobset_with_it(status: dict[str, Any], reason: str) -> None:
    seen = view(jobset(), running(0), {**running(1), "status": {**running(1)["status"], **status}})
    assert (seen.state, seen.native_state) == (SliceState.TOMBSTONE, reason)
    why = status.get("message", "said why")
    assert isinstance(seen.error, Preempted) and seen.error.message == f"worker1 was taken away: {reason}: {why}"


def test_a_jobset_whose_job_was_too_late_says_so_by_its_reason() -> None:
    late = {
        "status": {"conditions": [condition("Failed", reason="DeadlineExceeded", message="Job was active too long")]}
    }
    seen = view(jobset(condition("Failed")), jobs=[late])
    assert seen.state is SliceState.TOMBSTONE and isinstance(seen.error, SliceLost) and seen.error.reason == "deadline"


def test_a_failed_jobset_whose_pods_have_ended_is_there_to_be_read() -> None:
    seen = view(jobset(condition("Failed")), ended(0, 3))
    assert (seen.state, seen.native_state) == (SliceState.READY, "Failed")


def test_a_failed_jobset_without_pods_is_lost_and_says_what_the_jobset_says() -> None:
    refused = {"status": {"conditions": [condition("Failed", reason="BackoffLimitExceeded")]}}
    error = view(
        jobset(condition("Failed", message="jobset failed due to one or more job failures")), jobs=[refused]
    ).error
    assert isinstance(error, SliceLost) and error.reason != "deadline"
    assert error.message.endswith("gone with their nodes: jobset failed due to one or more job failures")


def test_a_jobset_that_is_being_deleted_names_its_finalizers() -> None:
    going = jobset(deletionTimestamp=CREATED, finalizers=["foregroundDeletion", "example.com/hold"])
    assert view(going, running(0)).native_state == "Deleting, 1 pod left held by finalizer example.com/hold"


def test_its_end_by_the_control_plane_stands_where_labels_of_a_slice_have_it() -> None:
    seen = view(jobset())
    assert seen.deadline == 1_790_003_600.0
    assert seen.labels["tpujob-deadline"] == seen.labels["tpujob-claimed-until"] == "1790003600"
    assert (seen.accelerator_type, seen.created_at) == ("v5litepod-8", 1_790_000_000.0)


def test_a_pod_is_a_worker_by_its_slice_and_its_host() -> None:
    found = views.pod_view(ended(1, 3, slice=2), hosts=4)
    assert (found.worker, found.phase, found.rc, found.node) == (9, PodPhase.FAILED, 3, "node-1")
    assert found.started_at == found.ended_at == 1_790_000_000.0


@pytest.mark.parametrize(("code", "rc"), [(3, 3), (0, 0), ("3", None), (True, None), (None, None)])
def test_how_a_container_ended_is_its_code_and_what_it_noted(code: Any, rc: int | None) -> None:
    found = views.pod_view(pod(0, {"terminated": {"exitCode": code, "message": "saved at step 9"}}), 1)
    assert (found.rc, found.note) == (rc, "saved at step 9")


@pytest.mark.parametrize("text", [None, "", "soon", 1_790_000_000])
def test_what_is_no_time_of_the_api_counts_as_not_said(text: Any) -> None:
    assert fields.time_of(text) is None


def test_a_pod_without_any_field_is_of_unknown_phase() -> None:
    found = views.pod_view({}, hosts=1)
    assert (found.phase, found.rc, found.node, found.started_at) == (PodPhase.UNKNOWN, None, "", None)


def test_a_pod_without_a_container_status_waits_for_the_reason_of_the_scheduler() -> None:
    assert views.pod_view(homeless(0), 1).reason == "Unschedulable"
    gated = condition("PodScheduled", status="False", reason="SchedulingGated")
    assert views.pod_view(pod(0, node="", conditions=[gated]), 1).reason == "SchedulingGated"
    assert views.pod_view(pod(0), 1).reason == ""


def test_a_node_is_busy_while_pods_on_it_ask_for_tpus() -> None:
    node = {
        "metadata": {"name": "gke-a", "creationTimestamp": CREATED, "labels": {"cloud.google.com/gke-nodepool": "v5e"}}
    }
    asking = {"resources": {"requests": {"google.com/tpu": "4"}}}

    def busy(phase: str, *containers: dict[str, Any], place: str = "gke-a") -> bool:
        pod = {"spec": {"nodeName": place, "containers": [*containers]}, "status": {"phase": phase}}
        return views.node_view(node, [pod]).busy

    assert busy("Running", asking) and busy("Pending", {}, asking)
    assert not busy("Succeeded", asking) and not busy("Failed", asking)
    assert not busy("Running", {}) and not busy("Running", asking, place="gke-b")
    assert (views.node_view(node, []).pool, views.node_view(node, []).ends_at) == ("v5e", None)


def test_a_node_with_a_run_limit_says_when_the_cloud_ends_it() -> None:
    labels = {"cloud.google.com/gke-max-run-duration-seconds": "3600"}
    node = {"metadata": {"name": "gke-a", "creationTimestamp": CREATED, "labels": labels}}
    assert views.node_view(node, []).ends_at == 1_790_003_600.0


@pytest.mark.parametrize("life", ["²", "9" * 400, "-1", "1e3", ""])
def test_a_life_that_is_no_number_of_seconds_counts_as_not_said(life: str) -> None:
    assert view(jobset(annotations={"tpujob-life-seconds": life})).deadline is None


def workload(message: str, kind: str = "QuotaReserved", status: str = "False") -> dict[str, Any]:
    return {"status": {"conditions": [condition(kind, status=status, message=message)]}}


def test_what_kueue_says_of_flavors_of_other_accelerators_is_left_out() -> None:
    others = ", ".join(f"flavor {name} doesn't match node affinity" for name in ("tpu-v4-podslice", "tpu7x"))
    why = "insufficient unused quota for google.com/tpu in flavor tpu-v5p-slice, 4 more needed"
    found = words.for_kueue(workload(f"couldn't assign flavors to pod set slice: {others}, {why}"))
    assert found == f"couldn't assign flavors to pod set slice: {why}"


def test_a_job_for_which_no_flavor_fits_is_told_about_all() -> None:
    message = "couldn't assign flavors to pod set slice: flavor tpu7x doesn't match node affinity"
    assert words.for_kueue(workload(message)) == message


def test_any_other_message_of_kueue_is_passed_on() -> None:
    assert words.for_kueue(workload("LocalQueue tpu doesn't exist")) == "LocalQueue tpu doesn't exist"
    assert words.for_kueue(workload("Preempted to accommodate a workload", "Evicted", "True")).startswith("Preempted")
    assert words.for_kueue({"status": {}}) == "waits for Kueue"
    assert words.for_kueue(None) == words.NOT_SEEN


def test_a_job_that_was_sent_back_says_why_before_why_it_still_waits() -> None:
    sent_back = workload("Preempted to accommodate a workload", "Evicted", "True")["status"]["conditions"]
    waits = workload("insufficient unused quota")["status"]["conditions"]
    found = words.for_kueue({"status": {"conditions": [*waits, *sent_back]}})
    assert found == "Preempted to accommodate a workload; insufficient unused quota"


def test_that_the_first_pod_of_a_slice_comes_first_is_no_reason_to_wait() -> None:
    why = 'admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology domain not found'
    assert words.for_nodes("", [{"reason": "FailedCreate", "message": why}]) == ""


def test_the_newest_word_of_the_autoscaler_stands_beside_that_of_the_scheduler() -> None:
    scheduler = (
        "0/8 nodes are available: 4 Insufficient google.com/tpu. no new claims to deallocate, "
        "preemption: 0/8 nodes are available: 5 No preemption victims found for incoming pod."
    )
    events = [
        {"reason": "FailedScheduling", "message": "x", "lastTimestamp": "2026-09-21T14:14:00Z"},
        {
            "reason": "NotTriggerScaleUp",
            "message": "pod didn't trigger scale-up",
            "lastTimestamp": "2026-09-21T14:13:30Z",
        },
        {"reason": "TriggeredScaleUp", "message": "earlier", "lastTimestamp": "2026-09-21T14:13:20Z"},
    ]
    said = words.for_nodes(scheduler, events)
    assert said == "0/8 nodes are available: 4 Insufficient google.com/tpu; pod didn't trigger scale-up"
    assert words.for_nodes("", []) == ""


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
    again["metadata"]["deletionTimestamp"] = CREATED
    assert view(made, old, again, new).state is SliceState.CREATING
    made["status"] = {"conditions": [condition("Failed")], "restarts": 1}
    assert view(made, old).state is SliceState.TOMBSTONE


def test_a_job_that_kueue_has_sent_back_has_run_if_it_may_be_started_again() -> None:
    made, sent_back = jobset(suspend=True), {"status": {"conditions": [condition("Evicted", reason="Preempted")]}}
    assert not view(made, workload=sent_back).ran
    made["spec"]["failurePolicy"] = {"maxRestarts": 3}
    assert view(made, workload=sent_back).ran and not view(made).ran
