"""Why a job waits, in the words of Kueue, the scheduler and the autoscaler. The messages are those of real ones."""

from typing import Any

from orchestrator.places.gke.api import waiting
from tests.unit.places.gke.api.objects import condition


def workload(message: str, kind: str = "QuotaReserved", status: str = "False") -> dict[str, Any]:
    return {"status": {"conditions": [condition(kind, status=status, message=message)]}}


def test_what_kueue_says_of_flavors_of_other_accelerators_is_left_out() -> None:
    others = ", ".join(f"flavor {name} doesn't match node affinity" for name in ("tpu-v4-podslice", "tpu7x"))
    why = "insufficient unused quota for google.com/tpu in flavor tpu-v5p-slice, 4 more needed"
    found = waiting.for_kueue(workload(f"couldn't assign flavors to pod set slice: {others}, {why}"))
    assert found == f"couldn't assign flavors to pod set slice: {why}"


def test_a_job_for_which_no_flavor_fits_is_told_about_all() -> None:
    message = "couldn't assign flavors to pod set slice: flavor tpu7x doesn't match node affinity"
    assert waiting.for_kueue(workload(message)) == message


def test_any_other_message_of_kueue_is_passed_on() -> None:
    assert waiting.for_kueue(workload("LocalQueue tpu doesn't exist")) == "LocalQueue tpu doesn't exist"
    assert waiting.for_kueue(workload("Preempted to accommodate a workload", "Evicted", "True")).startswith("Preempted")
    assert waiting.for_kueue({"status": {}}) == "waits for Kueue"
    assert waiting.for_kueue(None) == waiting.NOT_SEEN


def test_a_job_that_was_sent_back_says_why_before_why_it_still_waits() -> None:
    sent_back = workload("Preempted to accommodate a workload", "Evicted", "True")["status"]["conditions"]
    waits = workload("insufficient unused quota")["status"]["conditions"]
    found = waiting.for_kueue({"status": {"conditions": [*waits, *sent_back]}})
    assert found == "Preempted to accommodate a workload; insufficient unused quota"


def test_that_the_first_pod_of_a_slice_comes_first_is_no_reason_to_wait() -> None:
    why = 'admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology domain not found'
    assert waiting.for_nodes("", [{"reason": "FailedCreate", "message": why}]) == ""


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
    said = waiting.for_nodes(scheduler, events)
    assert said == "0/8 nodes are available: 4 Insufficient google.com/tpu; pod didn't trigger scale-up"
    assert waiting.for_nodes("", []) == ""
