"""What `show` and the messages say of a run: money, what is emulated, and how workers ended."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts.transfer.collect import CollectedFile, CollectResult, Problem
from orchestrator.promise.lease.absence import Released, Verdict
from orchestrator.promise.lease.changes import AttemptChange, Began, Intent, LeaseChange
from orchestrator.promise.lease.lease import Lease, LeaseState, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord, WorkerEnd
from orchestrator.report import results
from orchestrator.report.files.artifact_files import TAIL_BYTES
from orchestrator.report.messages import lease_outcome, outcome_lines, uncollected_alert, unproven_alert, unproven_head
from orchestrator.report.rows.worker_ends import MOST_GROUPS, WorkerReport, first_failures, lines, reports
from orchestrator.run.progress import Outcome
from orchestrator.text.units import day_clock
from tests.fakes.leases import lease_and_request
from tests.unit.report.page.world import plain_run

LEASE, _ = lease_and_request()
GOOGLE = replace(LEASE, cloud="google", name=replace(LEASE.name, project="p"), sent_at=1_000_000.0)
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


def test_the_banner_says_what_the_cloud_answered_what_goes_on_and_that_nothing_emulated_is_billed() -> None:
    verdict = Verdict(gone=False, missing=("still there: READY",), quiet_until=AT + 300)
    released = Released(GOOGLE, False, AT, verdict, 3, "refused: 503")
    told = unproven_alert(released, "guardian 7, once this command has ended (log: g.log)", watchdog_by=AT + 60)
    lines = told.splitlines()
    assert "   delete      refused: 503" in lines
    assert lines[3].endswith("a late create could still land until 13:51:40Z")
    assert lines[4].startswith("   still trying  guardian 7, once this command has ended (log: g.log); every tpujob")
    assert "guardian process, if one runs, in vain while the credentials are refused; " in unproven_alert(
        replace(released, refused=True)
    )
    assert lines[5] == f"   watchdog    deletes it by {day_clock(AT + 60)} if its VM is up and may"
    emulated = unproven_alert(replace(released, lease=LEASE))
    assert "emulated, not billed" in emulated and "gcloud" not in emulated and "$" not in emulated


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


@pytest.mark.parametrize(("lease", "words"), [
    pytest.param(replace(GOOGLE, state=LeaseState.GONE, gone_at=AT), "absent (checked 13:46:40Z)", id="gone"),
    pytest.param(replace(GOOGLE, state=LeaseState.DOWN, down_at=AT), "not proven absent yet", id="going"),
    pytest.param(replace(GOOGLE, state=LeaseState.FORGOTTEN, gone_at=AT, reason="verified by a person: seen"),
                 "not proven: tpujob-owner0-0000000000 was forgotten, verified by a person: seen",
                 id="forgotten is never absent"),
    pytest.param(replace(GOOGLE, state=LeaseState.READY), "`tpujob down alice` releases it", id="alive"),
    pytest.param(replace(GOOGLE, state=LeaseState.READY, idle_s=3600.0),
                 ", or once it is unused for 1 h; `tpujob down alice` releases it", id="alive until it is unused"),
])  # fmt: skip
def test_a_run_that_did_not_release_its_slice_says_what_became_of_it(lease: Lease, words: str) -> None:
    assert words in lease_outcome(lease)
    run = RunRecord("r", "r", "job.yaml", "google", AT, "runs/r")
    outcome = Outcome(run, Attempt("r-1", run.id), lease=lease)
    _, spans, _, released = outcome_lines(replace(outcome, took_s=9.0), result="", inside={}, usd=1.0)
    assert words in released and "nothing was created" not in released and spans.startswith("spans    9 s: ")


@pytest.mark.parametrize(("idle_s", "words"), [(None, "Z; `"), (3600.0, "Z, or once it is unused for 1 h; `")])
def test_a_slice_that_is_kept_says_everything_that_ends_it(idle_s: float | None, words: str) -> None:
    run = RunRecord("r", "r", "job.yaml", "google", AT, "runs/r")
    kept = Outcome(run, Attempt("r-1", run.id), lease=replace(GOOGLE, idle_s=idle_s), kept_until=AT, took_s=9.0)
    *_, released = outcome_lines(kept, result="", inside={}, usd=1.0)
    assert released == f"released no: alice is kept until 1970-01-12 13:46:40{words}tpujob down alice` releases it"


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
    assert uncollected_alert(left(GOOGLE, None)).endswith("\n   lost        its slice is not kept")
    assert "`tpujob attach r1` collects the rest, until" in uncollected_alert(
        replace(left(GOOGLE, None), detached=True)
    )
    assert "for about $9.60/h on Google Cloud; emulated, not billed" in uncollected_alert(left(LEASE, AT))


def test_a_slice_that_up_brought_is_not_said_to_be_released_with_its_results() -> None:
    beside = replace(left(GOOGLE, AT), collected=CollectResult(left=(Problem(0, "work/big", "too much"),)))
    for outcome in (beside, replace(left(GOOGLE, AT), lease=GOOGLE)):
        assert "`tpujob collect r1` collects the rest\n" in uncollected_alert(outcome)


def events() -> Iterator[type[Any]]:
    yield from (Intent, Began)
    for change in (LeaseChange, AttemptChange):
        for each in change.__subclasses__():
            yield from each.__subclasses__() or [each]


@pytest.mark.parametrize("event", list(events()))
def test_every_event_of_the_ledger_reads_as_a_sentence(event: type[Any]) -> None:
    kind = getattr(event, "kind", "") or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()
    data = {each.name: 1.0 if each.name == "until" else "x" for each in fields(event)}
    assert results._describe(kind, data) != kind


@pytest.mark.parametrize(("dataset", "said"), [
    ({"name": "mnist", "synthetic": False}, []),
    ({"name": "mnist-sample", "synthetic": False}, ["on the mnist sample, 6,000 real images at most"]),
    ({"name": "mnist", "synthetic": True}, ["on generated digits, not real images"]),
])  # fmt: skip
def test_the_result_says_of_which_images_its_accuracy_is(dataset: dict[str, Any], said: list[str]) -> None:
    assert results._describe_metrics({"test_accuracy": 0.5, "dataset": dataset}) == ["test accuracy 50.0 %", *said]


@pytest.mark.parametrize("look", [0, 2])
def test_a_file_that_another_process_renames_meanwhile_ends_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """As the draft of the page that the process of a run and its `tpujob cancel` both write."""
    world, looks, stat = plain_run(tmp_path / "run"), iter(range(9)), Path.stat
    draft = world.directory / ".trace.json.1-2"
    draft.write_text("{}")

    def stat_beside_a_rename(path: Path, **options: Any) -> Any:
        if path == draft and next(looks) == look:
            draft.rename(draft.with_name("trace.json"))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat_beside_a_rename)
    assert "logs/worker0.log" in [file.path for file in world.data().report.files]


def failed(worker: int, last: str = "ValueError: bad shape", code: int | None = 1) -> WorkerReport:
    return WorkerReport(worker, code, False, last)


def test_workers_that_fail_alike_are_said_once() -> None:
    workers = [
        failed(index, f"[worker{index}] ValueError: shape ({index}, 4) at 0x7f{index:02x}") for index in range(64)
    ]
    assert lines(workers) == ["64 workers ended with 1, alike: [worker0] ValueError: shape (0, 4) at 0x7f00"]


def test_each_way_to_fail_has_its_own_line_with_its_workers() -> None:
    workers = [failed(index) for index in range(64)]
    workers[63] = failed(63, code=2)
    workers[7] = failed(7, "FileNotFoundError: data.bin")
    assert lines(workers) == [
        "worker0 to worker6 and worker8 to worker62 ended with 1, alike: ValueError: bad shape",
        "worker7 ended with 1: FileNotFoundError: data.bin",
        "worker63 ended with 2: ValueError: bad shape",
    ]


def test_failures_come_before_those_that_were_stopped_and_those_that_succeeded() -> None:
    workers = [
        WorkerReport(0, 0, False, "done"), WorkerReport(1, 143, True, "step 7"),
        WorkerReport(2, None, True, "step 8"), failed(3, ""), failed(4, "", None),
    ]  # fmt: skip
    assert lines(workers) == [
        "worker3 ended with 1, without output",
        "worker4 ended with an unknown code, without output",
        "worker1 and worker2 were stopped",
        "worker0 succeeded",
    ]
    assert first_failures(workers) == [3, 4]


def test_many_ways_to_fail_and_long_lines_are_cut_and_one_worker_needs_no_line() -> None:
    assert lines([failed(0)]) == [] and lines([]) == []
    (line,) = lines([failed(0, "y" * 4000), failed(1, "y" * 4000)])
    assert len(line) < 300 and line.endswith("y…")
    told = lines([failed(index, "x" * (index + 1)) for index in range(MOST_GROUPS + 5)])
    assert len(told) == MOST_GROUPS + 1
    assert told[-1] == "5 more ended in 5 other ways: `show --json` has them all"


@pytest.mark.parametrize(("log", "last"), [
    (b"a\nValueError: no\n\n \n", "ValueError: no"), (b"a\nno newline", "no newline"), (b"", ""),
    (b"x" * 3 * TAIL_BYTES + b"\nafter a long line\n", "after a long line"), (b"50 %\r100 %\n", "100 %"),
    (b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n", "red"), (b"\xff\xfe\n", "\ufffd\ufffd"),
])  # fmt: skip
def test_the_last_line_of_a_log_is_safe_and_is_the_last_with_text(tmp_path: Path, log: bytes, last: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker3.log").write_bytes(log)
    os.mkfifo(tmp_path / "logs" / "worker0.log")
    told, no_file = reports([WorkerEnd(3, 1), WorkerEnd(0, 1)], tmp_path)
    assert no_file.last_line == "", "what is no regular file is not read"
    assert asdict(told) == {"worker": 3, "exit_code": 1, "stopped": False, "last_line": last}
