"""What is read back of a run: its job, its error, claims in labels, and what VMs publish, which is untrusted data."""

import json
import signal
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.job import job_spec
from orchestrator.places.preparation import records as runs
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Detached,
    Extended,
    HeldUntil,
    ResultsCollected,
    apply,
    apply_to_attempt,
)
from orchestrator.promise.lease.claim_labels import (
    LabelClaim,
    claimed_until,
    expiry_reason,
    labels,
    read_claim,
    watchdog_acts_by,
)
from orchestrator.promise.lease.cloud_api import NO_CLOUD, SliceState, SliceView
from orchestrator.promise.lease.guest_reports import (
    CHIPS_ATTRIBUTE,
    JobReport,
    problem,
    published,
    read_job,
    read_watchdogs,
)
from orchestrator.promise.lease.lease import CANCEL, DOWN, Lease, LeaseState, Mode, Purpose, SliceName
from orchestrator.promise.lease.periods import GOOGLE, emulated
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, recorded_error, state_after
from orchestrator.promise.lease.run_spec import FunctionCall, LimitsRecord, RunSpec, SweepPart, TpuRecord, TrainRecord
from tests.fakes.leases import lease_on

JOB = """
tpu: {accelerator: v6e-8, zone: us-east5-b}
access: {network: n, subnetwork: s, tags: [t]}
artifacts: ['*.txt']
metrics: {loss: 'loss ([0-9.]+)'}
ports: [6006]
tpu_metrics: false
params: {lr: 0.1, name: x}
limits: {max_duration: 90m, max_results: 2GB, max_log: 3MB, linger: 5m}
env: {KEY: "${env:MINE}"}
code: .
"""
TRAIN = "train: {entry: 'a:b', options: {function: f}, backend: none, model: mlp, batch_size: 64, cores: 4}"


def test_what_the_file_said_is_read_again() -> None:
    spec = _recorded(JOB + TRAIN)
    assert spec == RunSpec(
        train=TrainRecord("a:b", FunctionCall("f"), "none", "mlp", "mnist", 64, "fp32", 4),
        tpu=TpuRecord("v6e-8", ("us-east5-b",)),
        access=AccessWish("auto", None, "auto", "n", "s", ("t",), secure_boot=False),
        limits=LimitsRecord(5400.0, 2_000_000_000, 3_000_000, 300.0), artifacts=("*.txt",),
        metrics={"loss": "loss ([0-9.]+)"}, ports=(6006,), tpu_metrics=False, params={"lr": 0.1, "name": "x"},
        secret_sources=("MINE",), sweep=SweepPart("1", "s", 2, "lr=0.1", "k"), values=spec.values,
    )  # fmt: skip
    assert _recorded("on: gke\ngke: {image: i}\nbucket: gs://my-bucket/r\ncommand: ls").bucket == "gs://my-bucket/r"
    assert _recorded("command: ls").command == "ls" and _recorded("command: ls").train is None
    several = _recorded("command: ls\ntpu: {any_of: [{accelerator: v5e-8}, {accelerator: v6e-8}]}")
    assert several.tpu.place == (None, None)


def _recorded(text: str) -> RunSpec:
    of_sweep = {"id": "1", "name": "s", "number": 2, "variant": "lr=0.1", "params": {"lr": 0.1}, "key": "k"}
    record, _ = runs.new_run(
        job_spec.load(text, path="j.yaml"), Path("j.yaml"), "google", Path("r"), 1.0, sweep=of_sweep
    )
    return record.spec


@pytest.mark.parametrize("other", [None, "text", 7, -1.5, True, [], [1, "x"], {}, {"a": [None]}], ids=repr)
def test_whatever_another_tpujob_recorded_is_read_and_kept(other: object) -> None:
    assert RunSpec.of(other).values == (other if isinstance(other, dict) else {})
    names = [field.name for field in fields(RunSpec)]
    for values in (dict.fromkeys(names, other), {name: dict.fromkeys(names, other) for name in names}):
        spec = RunSpec.of(values | {"colour": other})
        assert spec.having(sweep={"id": "1"}).values == values | {"colour": other, "sweep": {"id": "1"}}
        assert (spec.tpu.place, spec.cluster.phases) == ((None, None), ("main",)) and isinstance(spec.ports, tuple)


def test_a_whole_number_is_a_number_of_seconds_and_true_is_no_number() -> None:
    assert RunSpec.of({"limits": {"max_duration": 60, "max_results": True}}).limits == LimitsRecord(60.0, None)


def test_what_a_record_does_not_say_or_says_only_in_part_reads_as_the_default() -> None:
    spec = RunSpec.of({"ports": [6006, "no port"], "metrics": {"loss": "x", "step": 5}})
    assert (spec.ports, spec.metrics, spec.tpu_metrics) == ((), {}, True)


RUN = "0j0jgxf50f"


def recorded(error: errors.TpujobError) -> Attempt:
    """The attempt as the ledger has it after this error."""
    rc = error.rc if isinstance(error, errors.PayloadFailed) else None
    return apply_to_attempt(
        Attempt(f"{RUN}-1", RUN), AttemptEnded.by(f"{RUN}-1", 1.0, state_after(error), error, rc=rc)
    )


@pytest.mark.parametrize("error", [
    errors.PayloadFailed("the job failed on worker2 with code 3", rc=3, hint="`tpujob logs` prints it"),
    errors.PayloadFailed("the setup failed on worker0 with code 100", rc=100, hint="look"),
    errors.PayloadFailed("the job failed with code 3", rc=3),
    errors.DeadlineExceeded("the job reached limits.max_cost and was stopped", hint="raise limits.max_cost"),
    errors.ArtifactError("a.bin differs from its hash"),
    errors.Canceled(CANCEL), errors.Canceled(DOWN), errors.Interrupted(signal.SIGINT),
    errors.Interrupted(signal.SIGTERM),
    errors.Preempted("tpujob-x-y was preempted while the job was running (PREEMPTED)"),
    errors.Vanished("tpujob-x-y was deleted by another client while the job was running"),
    errors.Vanished("tpujob-x-y is STOPPED though the job is running"),
    errors.SliceLost("a worker of tpujob-x-y does not answer since 600 s, though the API lists it"),
    errors.CapacityError("no capacity in any zone", hint="try another zone"),
    errors.QuotaError("TPUS_PER_PROJECT is used up"),
    errors.CloudUnavailable("503", retry_after_s=3.0),
    errors.Unreachable("worker0 cannot be reached"),
    errors.CommandFailed(["pack"], 2, "no space left"),
    errors.AuthError("no permission"),
    errors.RemoteError("worker0 cannot be reached"),
    errors.WatchdogNotArmed("its watchdog is not armed"),
    errors.TpujobError("a bug in tpujob"),
], ids=lambda error: f"{type(error).__name__}: {error.message[:30]}")  # fmt: skip
def test_an_error_comes_back_from_the_ledger_as_it_was(error: errors.TpujobError) -> None:
    again = recorded_error(recorded(error))
    assert again is not None and type(again) is type(error)
    assert (again.message, str(again), again.exit_code, again.hint) == (
        error.message, error.message, error.exit_code, error.hint,
    )  # fmt: skip
    for code in ("rc", "signum"):
        if not isinstance(error, errors.CommandFailed):  # its exit code is not recorded
            assert getattr(again, code, None) == getattr(error, code, None)


def test_a_success_and_a_run_that_goes_on_have_no_error() -> None:
    for state in (AttemptState.SUCCEEDED, AttemptState.RUNNING, AttemptState.PENDING):
        assert recorded_error(Attempt(f"{RUN}-1", RUN, state=state, exit_code=0)) is None


def test_the_results_that_are_collected_later_take_the_place_of_the_error() -> None:
    missing = recorded(errors.ArtifactError("a.bin did not come"))
    again = apply_to_attempt(missing, ResultsCollected.by(missing.id, 2.0, AttemptState.SUCCEEDED, None))
    assert recorded_error(again) is None and (again.state, again.exit_code) == (AttemptState.SUCCEEDED, 0)


def test_an_error_of_another_version_is_a_plain_one() -> None:
    error = recorded_error(Attempt(f"{RUN}-1", RUN, state=AttemptState.ERROR, detail="?", exit_code=76, error="Newer"))
    assert type(error) is errors.TpujobError and (error.message, error.exit_code) == ("?", 76)


NOW = 1_800_000_000.0


def lease(**changes: object) -> Lease:
    name = SliceName("p", "us-central1-a", "tpujob-owner0-0123456789")
    return lease_on(name, NOW, **{"handle": "mnist", "cloud": "google", **changes})


def view(labels: dict[str, str], created_at: float | None = NOW) -> SliceView:
    name = SliceName("p", "us-central1-a", "tpujob-owner0-0123456789")
    return SliceView(name, SliceState.READY, "READY", "v5litepod-8", "v2", labels, created_at)


def test_the_first_claim_reaches_over_provisioning_and_boot() -> None:
    assert claimed_until(lease(), NOW, GOOGLE) == NOW + GOOGLE.provision_s + GOOGLE.boot_s


def test_the_first_claim_of_a_queued_slice_reaches_over_its_waiting_too() -> None:
    waiting = lease(ready_by=NOW + 6 * 3600)
    assert claimed_until(waiting, NOW, GOOGLE) == NOW + 6 * 3600 + GOOGLE.provision_s + GOOGLE.boot_s
    late = NOW + 7 * 3600  # sent again, when the time in the queue is over
    assert claimed_until(waiting, late, GOOGLE) == late + GOOGLE.provision_s + GOOGLE.boot_s
    short = replace(waiting, deadline=NOW + 6 * 3600 + 60)
    assert claimed_until(short, NOW, GOOGLE) == short.deadline
    ready = replace(waiting, state=LeaseState.READY, ready_at=NOW + 600)
    assert claimed_until(ready, NOW + 600, GOOGLE) == NOW + 600 + GOOGLE.label_ttl_s


def test_the_watchdog_of_a_queued_slice_counts_from_the_end_of_its_wait() -> None:
    plain, waiting = lease(), lease(ready_by=NOW + 6 * 3600)
    assert watchdog_acts_by(waiting, NOW, GOOGLE) - watchdog_acts_by(plain, NOW, GOOGLE) == 6 * 3600


@pytest.mark.parametrize(("fields", "until"), [
    ({}, NOW + 600 + GOOGLE.label_ttl_s),
    ({"purpose": Purpose.HOLD}, NOW + 600 + GOOGLE.label_ttl_s),  # of `up`, and not held yet
    ({"deadline": NOW + 1000}, NOW + 1000),
])  # fmt: skip
def test_a_ready_slice_claims_a_little_ahead_of_now_and_never_beyond_its_deadline(
    fields: dict[str, Any], until: float
) -> None:
    ready = lease(state=LeaseState.READY, ready_at=NOW, **fields)
    assert claimed_until(ready, NOW + 600, GOOGLE) == until


def test_the_label_of_a_detached_run_reaches_to_its_deadline() -> None:
    """gc does not see the end of the job: without a watchdog it deletes such a slice after the deadline (C7)."""
    detached = lease(state=LeaseState.READY, ready_at=NOW, detached_at=NOW + 60)
    assert claimed_until(detached, NOW + 600, GOOGLE) == detached.deadline


@pytest.mark.parametrize(("event", "until", "mode"), [
    (HeldUntil("0123456789", NOW, NOW + 3600), NOW + 3600, Mode.HOLD),
    (Detached("0123456789", NOW), NOW + 86400, Mode.DETACHED),
])  # fmt: skip
def test_a_held_or_detached_slice_claims_to_its_end(event: HeldUntil | Detached, until: float, mode: Mode) -> None:
    moved = apply(lease(state=LeaseState.READY, ready_at=NOW), event)
    written = labels(moved, NOW + 60, GOOGLE)
    assert (written["tpujob-claimed-until"], written["tpujob-mode"]) == (str(int(until)), str(mode))


def test_extending_a_hold_moves_its_end_and_the_deadline_only_as_far_as_needed() -> None:
    held = apply(lease(state=LeaseState.READY, ready_at=NOW), HeldUntil("0123456789", NOW, NOW + 3600))
    longer = apply(held, Extended("0123456789", NOW, NOW + 7200))
    assert (longer.hold_until, longer.deadline) == (NOW + 7200, NOW + 86400)
    assert apply(held, Extended("0123456789", NOW, NOW + 90000)).deadline == NOW + 90000


def test_labels_that_were_written_are_read_back() -> None:
    claim = read_claim(view(labels(lease(), NOW, GOOGLE)), GOOGLE)
    assert claim == LabelClaim(NOW + GOOGLE.provision_s + GOOGLE.boot_s, NOW + 86400)


@pytest.mark.parametrize("text", [None, "", "soon", "-1", "9e99", "1" * 40, "٣" * 10, "0x10", " 1800000000"])
def test_an_unreadable_claim_counts_from_creation_and_gets_a_remark(text: str | None) -> None:
    written = {**labels(lease(), NOW, GOOGLE), "tpujob-claimed-until": text}
    claim = read_claim(view({key: value for key, value in written.items() if value is not None}), GOOGLE)
    assert claim.claimed_until == min(NOW + GOOGLE.provision_s + claim_labels.DEFAULT_LIFE_S, NOW + 86400)
    assert "tpujob-claimed-until" in claim.remarks[0]
    assert claim_labels.DEFAULT_LIFE_S == 86400


def test_without_labels_and_time_of_creation_there_is_no_claim() -> None:
    assert read_claim(view({"tpujob": "1"}, created_at=None), GOOGLE) is None


def test_a_claim_ends_only_after_the_margin() -> None:
    claim = LabelClaim(NOW, NOW + 1000)
    assert expiry_reason(claim, NOW + GOOGLE.margin_s, GOOGLE) is None
    assert "claim" in str(expiry_reason(claim, NOW + GOOGLE.margin_s + 1, GOOGLE))
    assert "deadline" in str(expiry_reason(claim, NOW + 1000 + GOOGLE.margin_s + 1, GOOGLE))
    assert expiry_reason(LabelClaim(NOW, NOW), NOW + GOOGLE.margin_s, GOOGLE) is None


@pytest.mark.parametrize(("fields", "until"), [
    ({"ready_at": NOW + 600}, NOW + 600 + GOOGLE.label_ttl_s), ({}, NOW + GOOGLE.label_ttl_s),
    ({"ready_at": NOW + 600, "deadline": NOW + 900}, NOW + 900),
])  # fmt: skip
def test_once_ready_a_claim_no_longer_has_the_time_in_the_queue(fields: dict[str, Any], until: float) -> None:
    assert claim_labels.claimed_until_once_ready(lease(**fields), GOOGLE) == until
    slow = replace(GOOGLE, provision_s=5000.0)
    assert claim_labels.claimed_until_once_ready(lease(), slow) == NOW + 5000.0 + GOOGLE.boot_s


@pytest.mark.parametrize(("text", "until"), [("1800000009", 1_800_000_009.0), ("soon", 0.0), (None, 0.0)])
def test_a_claim_label_that_cannot_be_read_claims_nothing(text: str | None, until: float) -> None:
    assert claim_labels.read_claimed_until({} if text is None else {"tpujob-claimed-until": text}) == until


@pytest.mark.parametrize(("found", "age_s", "adopted"), [
    ({}, 600.0, {"handle": "mnist", "purpose": Purpose.HOLD, "created_at": NOW - 600, "sent_at": NOW - 600}),
    ({"tpujob-name": "", "tpujob-mode": "run"}, None,
     {"handle": "tpujob-owner0-0123456789", "purpose": Purpose.RUN, "created_at": NOW, "sent_at": NOW}),
])  # fmt: skip
def test_a_slice_that_the_ledger_does_not_know_is_adopted_to_be_released(
    found: dict[str, str], age_s: float | None, adopted: dict[str, Any]
) -> None:
    marked = labels(lease(state=LeaseState.READY, ready_at=NOW, hold_until=NOW + 60), NOW, GOOGLE) | found
    made = claim_labels.adopted(view(marked), cloud="google", now=NOW, age_s=age_s, usd_per_hour=9.6)
    assert made == lease(
        **adopted, runtime_version="v2", state=LeaseState.CREATING, sends=1, deadline=NOW, usd_per_hour=9.6
    )
    assert made is not None and (made.settled, made.slices) == (False, 1), "none of its creates was seen to end"
    foreign = view(marked | {"tpujob-lease-id": "../x"})
    assert claim_labels.adopted(foreign, cloud="google", now=NOW, age_s=None, usd_per_hour=None) is None


def test_googles_periods_are_those_of_the_bounds_and_an_emulated_cloud_is_faster_but_in_provisioning() -> None:
    """docs/bounds.md derives its bounds from them."""
    assert astuple(GOOGLE) == (
        *(60.0, 900.0, 180.0, 60.0, 1800.0, 4500.0, 600.0), *(2700.0, 3600.0, 120.0, 60.0, 300.0, 300.0),
    )  # fmt: skip
    assert astuple(emulated()) == astuple(replace(GOOGLE.scaled(30.0), provision_s=300.0))
    assert emulated(10.0).provision_s == 900.0
    assert (NO_CLOUD.visible_within_s, NO_CLOUD.settles_within_s) == (0.0, 0.0)


def test_renewals_leave_room_for_an_outage_and_for_the_next_one() -> None:
    """The relations between the periods on which docs/guarantee.md builds."""
    for timings in (GOOGLE, emulated(), emulated(300)):
        assert timings.label_ttl_s > 2 * timings.renew_s  # one renewal may fail altogether
        assert timings.grace_s == pytest.approx(3 * timings.heartbeat_s)
        assert timings.ttl_s > 2 * timings.grace_s
        assert (
            timings.provision_s + timings.boot_s > timings.label_ttl_s - timings.renew_s
        )  # the create call's claim is not due for renewal at once


@pytest.mark.parametrize(("changes", "begins_after_s"), [
    pytest.param({"ready_at": NOW}, GOOGLE.ttl_s, id="a run: no heartbeat from now on"),
    pytest.param({"purpose": Purpose.HOLD, "hold_until": NOW + 7200, "ready_at": NOW}, 7200, id="held: its time"),
    pytest.param({"ready_at": NOW, "detached_at": NOW}, 86400, id="detached: its deadline"),
    pytest.param({"ready_at": NOW, "deadline": NOW + 60}, 60, id="a run with a minute left"),
    pytest.param({}, GOOGLE.provision_s + GOOGLE.boot_s + GOOGLE.ttl_s,
                 id="still being created: its VM has to boot first"),
])  # fmt: skip
def test_by_when_the_watchdog_has_deleted_it(changes: dict[str, object], begins_after_s: float) -> None:
    by = watchdog_acts_by(lease(**changes), NOW, GOOGLE)
    assert by == NOW + begins_after_s + GOOGLE.grace_s + 3 * GOOGLE.poll_s


PROVEN = {"v": 1, "armed": True, "route": True, "permission": True, "mode": "run", "claimed_until": 1_800_000_000}


def report(worker: object = 0, **changes: object) -> dict[str, str]:
    return {"tpujob/watchdog": json.dumps(PROVEN | {"worker": worker} | changes)}


def test_a_slice_is_armed_when_every_worker_reports_it() -> None:
    assert problem(read_watchdogs([report(), report(1)], 2)) is None
    assert problem(()) == "the slice has no workers"


UNPROVEN = {"armed": False, "permission": None}


def test_the_permission_is_proven_by_one_worker_for_all_and_each_reaches_the_api_itself() -> None:
    reports = [report(), *(report(worker, **UNPROVEN) for worker in range(1, 5))]
    assert problem(read_watchdogs(reports, 5)) is None
    assert problem(read_watchdogs([*reports[:4], report(4, **UNPROVEN, route=False)], 5)) == (
        "worker4: its watchdog has no route to the Cloud TPU API"
    )


def test_a_permission_that_no_worker_proved_does_not_count() -> None:
    assert "has not been proven yet" in str(
        problem(read_watchdogs([report(worker, **UNPROVEN) for worker in range(3)], 3))
    )


def test_one_worker_without_permission_leaves_the_slice_unarmed() -> None:
    found = read_watchdogs([report(armed=False, permission=False), report(1), report(2, **UNPROVEN)], 3)
    assert [status.armed for status in found] == [False, True, True]
    assert "tpu.nodes.delete" in str(problem(found))


def test_a_report_belongs_to_the_worker_that_it_names_wherever_the_api_lists_it() -> None:
    moved = [report(2, mode="detached"), report(0, mode="run"), {}, report(1, mode="hold")]
    assert [status.mode for status in read_watchdogs(moved, 3)] == ["run", "hold", "detached"]
    assert read_watchdogs(moved[:2], 1)[0].mode == "run"
    assert [status.armed for status in read_watchdogs(moved[:2], 3)] == [True, False, True]


def test_a_worker_that_reports_as_another_arms_neither() -> None:
    found = read_watchdogs([report(), report(0)], 2)
    assert [status.armed for status in found] == [False, False]
    assert "2 watchdogs claim to be this worker's" in found[0].why


@pytest.mark.parametrize(("published", "why"), [
    ([], "worker0: its watchdog has published nothing"),
    ([report()], "worker1: its watchdog has published nothing"),
    ([report(), report(None)], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(1.5)], "worker1: its watchdog has published nothing that can be read"),
    ([{"tpujob/watchdog": "{"}, report()], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(True)], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(-1)], "worker1: its watchdog has published nothing"),
    ([report(), {}], "worker1: its watchdog has published nothing"),
    ([report(), {"tpujob/watchdog": "{"}], "worker1: its watchdog has published nothing that can be read"),
    ([report(), {"tpujob/watchdog": "[]"}], "worker1: its watchdog has published nothing that can be read"),
    ([report(armed=False, route=False), report(1)], "no route"),
    ([report(armed=False, permission=False), report(1)], "tpu.nodes.delete"),
    ([report(armed="yes"), report(1)], "not armed"),
])  # fmt: skip
def test_any_other_report_is_a_problem_with_a_reason(published: list[dict[str, str]], why: str) -> None:
    said = str(problem(read_watchdogs(published, 2)))
    assert why in said and ("that can be read" in why) == ("that can be read" in said)


def test_the_claim_that_a_watchdog_has_read_is_returned() -> None:
    (status,) = read_watchdogs([report(mode="detached")], 1)
    assert (status.mode, status.claimed_until) == ("detached", 1_800_000_000)
    (status,) = read_watchdogs([report(claimed_until="soon")], 1)
    assert status.claimed_until is None


def of_job(worker: int, state: object = "running", rc: object = None, **more: object) -> dict[str, str]:
    job = {"attempt": "a-1", "state": state, "rc": rc}
    return report(worker, **{"mode": "detached", "job": job, **more})


BEFORE = {"attempt": "a-0", "state": "ended", "rc": 0}


@pytest.mark.parametrize(("published", "state"), [
    ([of_job(0), of_job(1)], "running"),
    ([of_job(0, "ended", 0), of_job(1)], "running"),
    ([of_job(0, "ended", 0), of_job(1, "ended", 0)], "ended"),
    ([of_job(1, "ended", 0), of_job(0, "ended", 0), of_job(2)], "ended"),
    ([of_job(0), of_job(1, "ended", 3)], "ended"),
    ([of_job(1, "ended", None)], "ended"),
    ([of_job(0, job=None), of_job(1, job=None)], "none"),
    ([of_job(0, job=BEFORE), of_job(1, job=None)], "none"),
    ([of_job(0, job=BEFORE), of_job(1)], "partial"),
    ([of_job(0, job={**BEFORE, "rc": 3}), of_job(1, job={**BEFORE, "rc": 3})], "none"),
    ([of_job(0, "ended", 0), of_job(1, job=BEFORE)], "partial"),
    ([of_job(0, job=None)], "unknown"),
    ([of_job(0, job=None), {}], "unknown"),
    ([of_job(0, job=None), of_job(1, job=None, mode="run")], "unknown"),
    ([report(0, mode="detached"), report(1, mode="detached")], "unknown"),
    ([of_job(0, job=None), of_job(2, job=None)], "unknown"),
    ([of_job(0, job=None), of_job(-1, "ended", 3)], "unknown"),
    ([of_job(0, "ended", 0), of_job(1, "ended", 3), of_job(1)], "partial"),
    ([of_job(0, "ended", 3), of_job(0)], "unknown"),
    ([of_job(0, job=[1]), of_job(1, job="a-1")], "none"),
    ([of_job(0, "ended", "0"), of_job(1)], "ended"),
    ([of_job(0, ["ended"], 3), of_job(1)], "running"),
    ([{"tpujob/watchdog": "[" * 5000}, {}], "unknown"),
    ([], "unknown"),
])  # fmt: skip
def test_a_job_ends_on_all_workers_or_fails_on_one(published: list[dict[str, str]], state: str) -> None:
    assert read_job(published, 2, "a-1").state == state


def test_a_slice_of_one_worker_has_one_that_decides() -> None:
    said = [[of_job(0, job=None)], [of_job(0)], [of_job(0, "ended", 0)]]
    assert [read_job(each, 1, "a-1").state for each in said] == ["none", "running", "ended"]


def test_a_slice_without_workers_says_nothing_of_a_job() -> None:
    assert read_job([of_job(0, "ended", 0)], 0, "a-1") == JobReport("unknown", {})


MANY = {f"m{number}": 0.5 for number in range(13)}


@pytest.mark.parametrize(("said", "found"), [
    ({"step": 7, "loss": 0.5, "phase": "warm\x1b[31mup"}, {"step": 7.0, "loss": 0.5, "phase": "warmup"}),
    ({"a": float("nan"), "b": float("inf"), "c": True, "d": None, "e": [1], "f": -10**400, "g": 1}, {"g": 1.0}),
    ({"n\n" + "n" * 99: "x" * 99}, {"n" + "n" * 38: "x" * 40}),
    (MANY, dict.fromkeys([*MANY][:12], 0.5)),
    (None, {}), ([["a", 1]], {}), ("a", {}),
])  # fmt: skip
def test_metrics_of_the_first_worker_are_short_and_printable(said: object, found: dict[str, object]) -> None:
    others = of_job(1, metrics={"other": 1})
    assert read_job([others, of_job(0, metrics=said)], 2, "a-1").metrics == found
    assert read_job([of_job(0, metrics=said, job=BEFORE), others], 2, "a-1").metrics == {}, "of another job"


SAID = {"worker": 0, "workers": 3, "attempt": "a-1", "use": "idle", "text": "no process"}


@pytest.mark.parametrize(("records", "found"), [
    ([SAID, {**SAID, "worker": 2}], {"idle": "worker0 and worker2 (2 of 3): no process"}),
    ([{**SAID, "text": "\x1b[31m" + "x" * 999}], {"idle": "worker0 (1 of 3): " + "x" * 195}),
    ([{**SAID, "worker": index, "use": "alone"} for index in range(2)], {}),
    ([{**SAID, "attempt": "a-0"}, {**SAID, "use": "used"}, {**SAID, "use": []}, [SAID], None], {}),
    ([{**SAID, "worker": worker} for worker in (3, -1, "0", True, 1e99)], {}),
])  # fmt: skip
def test_only_what_workers_say_of_this_attempt_counts(records: list[Any], found: dict[str, str]) -> None:
    assert (
        published([{}, {CHIPS_ATTRIBUTE: "{"}, *({CHIPS_ATTRIBUTE: json.dumps(each)} for each in records)], "a-1")
        == found
    )
