"""The sentences that must not be misread: money, what is emulated, and the banner."""

from dataclasses import replace

import pytest

from orchestrator.core.lease.absence import Verdict
from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.lease.lease import Lease, LeaseState
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.text.times import day_clock
from orchestrator.engine.leases.release import Released
from orchestrator.remote.transfer.collect import CollectedFile, CollectResult, Problem
from orchestrator.report.messages import lease_outcome, outcome_lines, uncollected_alert, unproven_alert, unproven_head
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import lease_and_request

LEASE, _ = lease_and_request()
GOOGLE = replace(LEASE, cloud="google", sent_at=1_000_000.0)
AT = 1_000_000.0


def test_the_banner_names_the_slice_the_money_what_is_missing_and_what_to_type() -> None:
    verdict = Verdict(gone=False, missing=("get failed: 403 Permission denied",), last_seen="unknown")
    assert unproven_alert(Released(GOOGLE, False, AT, verdict)).splitlines() == [
        "!! NOT VERIFIED GONE: tpujob-owner0-0000000000 (v5litepod-8, us-central1-a, project p) may be billing about $9.60/h",
        "   last seen   unknown at 13:46:40Z; missing for the proof: get failed: 403 Permission denied",
        "   still trying  the guardian process, if one runs; every tpujob command continues this first",
        "   do now      gcloud compute tpus tpu-vm delete tpujob-owner0-0000000000 --zone=us-central1-a --project=p --quiet",
        "   check       gcloud compute tpus tpu-vm list --zone=us-central1-a --project=p"
        " --filter=labels.tpujob-lease-id=0000000000",
        "   give up     `tpujob forget alice` lists how to verify it, and records that you did",
        "   exit status 75 (teardown unverified)",
    ]


def test_the_banner_says_what_the_cloud_answered_to_the_delete_and_which_guardian_goes_on() -> None:
    released = Released(GOOGLE, False, AT, Verdict(gone=False, missing=("still there: READY",)), 3, "refused: 503")
    lines = unproven_alert(released, "guardian 7, once this command has ended (log: g.log)").splitlines()
    assert "   delete      refused: 503" in lines
    assert lines[3].startswith("   still trying  guardian 7, once this command has ended (log: g.log); every tpujob")


def test_the_banner_says_until_when_a_late_create_could_land() -> None:
    verdict = Verdict(gone=False, missing=("the create call has not settled",), quiet_until=AT + 300)
    assert "a late create could still land until 13:51:40Z" in unproven_alert(Released(GOOGLE, False, AT, verdict))


def test_the_banner_says_by_when_the_switch_acts() -> None:
    text = unproven_alert(
        Released(GOOGLE, False, AT, Verdict(gone=False, missing=("still there: READY",))), watchdog_by=AT + 60
    )
    assert f"   watchdog    deletes it by {day_clock(AT + 60)} if its VM is up and may" in text.splitlines()


def test_the_banner_of_a_job_on_a_cluster_says_what_ends_it_and_what_to_type_there() -> None:
    lease = replace(GOOGLE, cloud="gke", name=SliceName("dev@https://127.0.0.1:1", "ml", "tpujob-owner0-0000000000"))
    text = unproven_alert(Released(lease, False, AT, Verdict(gone=False, missing=("still there: Suspended",))))
    where = "v5litepod-8, JobSet in namespace ml, dev@https://127.0.0.1:1"
    objects = "jobsets,jobs,pods,configmaps,secrets -n ml -l tpujob-lease-id=0000000000 --context dev"
    lines = text.splitlines()
    assert lines[0].endswith(f" {lease.name.node} ({where}) may still ask for TPUs, about $9.60/h")
    assert unproven_head("gke", lease.name, "", None).endswith(
        "(JobSet in namespace ml, dev@https://127.0.0.1:1) may still ask for TPUs, price unknown"
    )
    assert f"   by itself   the JobSet ends its pods by {day_clock(lease.deadline)}" in lines
    assert f"   do now      kubectl delete {objects}" in lines and f"   check       kubectl get {objects}" in lines


def test_the_banner_of_an_emulated_slice_announces_no_bill() -> None:
    text = unproven_alert(Released(LEASE, False, AT, Verdict(gone=False, missing=("still there: DELETING",))))
    assert "emulated, not billed" in text and "gcloud" not in text and "$" not in text


@pytest.mark.parametrize(("lease", "words"), [
    pytest.param(replace(GOOGLE, state=LeaseState.GONE, gone_at=AT), "absent (checked 13:46:40Z)", id="gone"),
    pytest.param(replace(GOOGLE, state=LeaseState.DOWN, down_at=AT), "not proven absent yet", id="going"),
    pytest.param(replace(GOOGLE, state=LeaseState.FORGOTTEN, gone_at=AT, reason="verified by a person: seen"),
                 "not proven: tpujob-owner0-0000000000 was forgotten, verified by a person: seen",
                 id="forgotten is never absent"),
    pytest.param(replace(GOOGLE, state=LeaseState.READY), "`tpujob down alice` releases it", id="alive"),
])  # fmt: skip
def test_a_run_that_did_not_release_its_slice_says_what_became_of_it(lease: Lease, words: str) -> None:
    assert words in lease_outcome(lease)
    run = RunRecord("r", "r", "job.yaml", "google", AT, "runs/r")
    outcome = Outcome(run, Attempt("r-1", run.id), lease=lease)
    _, spans, _, released = outcome_lines(replace(outcome, took_s=9.0), result="", inside={}, usd=1.0)
    assert words in released and "nothing was created" not in released and spans.startswith("spans    9 s: ")


def left(lease: Lease, kept_until: float | None) -> Outcome:
    run = RunRecord("r1", "r", "job.yaml", lease.cloud, AT, "runs/r-r1")
    waiting = (
        Problem(0, "artifacts/model.pt", "no room for 80.0 GB: runs/r-r1 has 12.0 GB"),
        Problem(1, "(everything)", "silent"),
    )
    collected = CollectResult((CollectedFile(0, "artifacts/a", 1, "00"),), waiting=waiting)
    attempt, lease = Attempt("r1-1", run.id), replace(lease, run="r1")
    return Outcome(run, attempt, lease=lease, kept_until=kept_until, collected=collected)


def test_results_that_are_not_at_home_are_said_with_their_slice_its_price_and_what_to_type() -> None:
    outcome = left(GOOGLE, AT)
    assert uncollected_alert(outcome).splitlines() == [
        "!! RESULTS NOT COLLECTED: r1 ended, and not all of its results are in runs/r-r1",
        "   missing     worker0: artifacts/model.pt: no room for 80.0 GB: runs/r-r1 has 12.0 GB",
        "   missing     worker1: (everything): silent",
        "   came        1 file",
        "   kept        tpujob-owner0-0000000000 until 1970-01-12 13:46:40Z, for about $9.60/h",
        "   do now      `tpujob collect r1` collects the rest and releases it",
        "   give up     `tpujob down tpujob-owner0-0000000000`",
    ]
    *_, released = outcome_lines(outcome, result="", inside={}, usd=1.0)
    assert released == "released no: tpujob-owner0-0000000000 keeps the results until 1970-01-12 13:46:40Z"


def test_results_that_are_lost_are_said_to_be() -> None:
    assert uncollected_alert(left(GOOGLE, None)).endswith("\n   lost        its slice is not kept")


def test_a_slice_that_up_brought_is_not_said_to_be_released_with_its_results() -> None:
    beside = replace(left(GOOGLE, AT), collected=CollectResult(left=(Problem(0, "work/big", "too much"),)))
    for outcome in (beside, replace(left(GOOGLE, AT), lease=GOOGLE)):
        assert "`tpujob collect r1` collects the rest\n" in uncollected_alert(outcome)


def test_what_an_emulated_slice_would_cost_is_not_called_a_bill() -> None:
    assert "for about $9.60/h on Google Cloud; emulated, not billed" in uncollected_alert(left(LEASE, AT))
