"""Detached runs through the real CLI: submitted and left, attached to, canceled, extended, and ended by their own watchdog."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.client.session import Session
from orchestrator.core.lease import timings
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.places.google.objects import Objects
from tests.cli_fixture import Tpujob
from tests.waiting import HANG_S, until

QUICK = """
name: quick
tpu: {zone: us-central1-a}
limits: {linger: 1h}
command: |
  echo begun
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
"""
SLOW = """
name: slow
tpu: {zone: us-central1-a}
limits: {linger: 1h}
command: |
  echo begun
  while [ ! -e go ] && [ ! -e ~/go ]; do sleep 0.1; done
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
  exit ${RC:-0}
"""

SETUP = (
    "setup: echo early\n"  # `submit` waits for its end, hence has its log; it may leave before the job says anything
)


@pytest.fixture
def detached(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Tpujob:
    """No process collects unless the test starts one. `submit` waits for the watchdog's next look, which here comes soon."""
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    periods(monkeypatch, poll_s=6.0)
    return tpujob


def periods(monkeypatch: pytest.MonkeyPatch, **changed: float) -> None:
    """Other periods than Google's, for slices that are made from now on; the emulated cloud scales them."""
    monkeypatch.setattr(timings, "GOOGLE", replace(timings.GOOGLE, **changed))


def submit(cli: Tpujob, text: str, *words: str, **env: str) -> str:
    done = cli("submit", cli.job(text), *words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def let_go(cli: Tpujob) -> None:
    for home in (cli.emulator_directory / "vms").glob("*/worker*/home"):
        (home / "go").touch()


def test_submit_leaves_and_attach_collects_everything(detached: Tpujob) -> None:
    said = detached("submit", detached.job(SLOW + SETUP))
    run = said.stdout.split()[-1]
    assert said.returncode == 0 and len(detached.alive()) == 1
    assert "detached" in detached("status").stdout
    assert f"tpujob extend {run} --by 1h" in said.stderr  # every command of the last line works as it stands
    early = detached("collect", run)
    assert early.returncode == 64 and f"`tpujob attach {run}`" in early.stderr
    let_go(detached)
    done = detached("attach", run)
    assert done.returncode == 0, done.stderr
    assert "worker0 | early\nworker0 | begun\n" in done.stdout and "absent" in done.stdout
    assert detached("logs", run).stdout == "worker0 | early\nworker0 | begun\n"
    shown = detached.only_run()
    assert (shown["state"], shown["lease"]["state"]) == ("succeeded", "gone")
    assert detached.alive() == []
    late = detached("collect", run)
    assert late.returncode == 0 and "all results are collected" in late.stdout


def test_the_collector_collects_the_artifacts_without_any_command(detached: Tpujob) -> None:
    submit(detached, QUICK, TPUJOB_COLLECTOR="on")
    until(lambda: detached.only_run()["state"] == "succeeded", "the end of the run")
    assert detached.alive() == []
    (artifact,) = detached.directory.glob("runs/*/worker0/artifacts/result.txt")
    assert artifact.read_text() == "result\n"


@pytest.mark.exhaustive
def test_reading_along_while_the_collector_is_attached_ends_with_the_run(detached: Tpujob) -> None:
    run = submit(detached, SLOW, TPUJOB_COLLECTOR="on")
    until_followed(detached)
    process = detached.start("attach", run)
    detached.until("begun", process)
    let_go(detached)
    out, err = process.communicate()
    assert process.returncode == 0 and "succeeded" in out and "ready to take over" in err


def until_followed(cli: Tpujob) -> None:
    """The collector has the run: an `attach` from now on reads along."""
    until(lambda: json.loads(cli("status", "--json").stdout)["slices"][0]["followed"], "a collector")


def collector(cli: Tpujob) -> psutil.Process:
    (found,) = cli.local("attach")
    return found


@pytest.mark.exhaustive
def test_who_reads_along_takes_the_place_of_a_collector_that_died(detached: Tpujob) -> None:
    run = submit(detached, SLOW, TPUJOB_COLLECTOR="on")
    first = collector(detached)
    until_followed(detached)
    assert "detached, followed" in detached("status").stdout
    process = detached.start("attach", run)
    detached.until("begun", process)
    first.kill()
    detached.until("begun", process)  # from the first line, over a connection of its own
    let_go(detached)
    out, err = process.communicate()
    assert process.returncode == 0 and "absent" in out, err
    assert "ready to take over" in err
    assert list(detached.directory.glob("runs/*/worker0/artifacts/result.txt"))


@pytest.mark.exhaustive
def test_who_reads_along_learns_of_the_proof_and_of_its_want(detached: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(detached, SLOW, TPUJOB_COLLECTOR="on")
    detached.fault("status", "nodes.delete", status=503)
    let_go(detached)
    until(lambda: detached.only_run()["lease"]["state"] == "down", "the end of the job")
    assert "being deleted for" in detached("status").stdout
    first, lock = collector(detached), FileLocks.lock

    def dies_first(locks: FileLocks, work: str) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            first.kill()  # in the middle of its teardown, at the last moment at which it could be met alive
            first.wait()
        return lock(locks, work)

    with monkeypatch.context() as patch:
        patch.setitem(
            Session.recover.__kwdefaults__, "budget_s", 0.5
        )  # in place of 20 s, of which a person learns nothing
        patch.setattr(FileLocks, "lock", dies_first)
        for _ in range(2):
            unproven = detached("attach", run)
            assert unproven.returncode == 75 and "NOT VERIFIED GONE" in unproven.stderr, unproven.stderr
            assert unproven.stderr.count("releasing it") == 1, "each try keeps a person waiting"
            patch.setattr(FileLocks, "lock", lock)
    detached.admin("DELETE", "faults")
    proven = detached("attach", run)
    assert "absent (checked" in proven.stdout and proven.returncode == 71  # its end was never written down


def test_submit_prints_the_id_and_nothing_else_on_stdout(detached: Tpujob) -> None:
    said = detached("submit", detached.job(SLOW + SETUP))
    run = said.stdout.removesuffix("\n")
    assert run == detached.only_run()["run"] and "worker0 | early" in said.stderr
    events = [json.loads(line) for line in detached("submit", detached.job(SLOW + SETUP), "--json").stdout.splitlines()]
    assert events[-1]["event"] == "result" and "log" in {event["event"] for event in events}
    assert {"detached": True, "released": False, "error": None, "metrics": {}}.items() <= events[-1].items()
    listed = {row["run"]: row for row in json.loads(detached("list", "--json").stdout)}[events[-1]["run"]]
    for shown in (events[-1], listed):  # it goes on
        assert (shown["state"], shown["exit_code"], shown["ended_at"]) == ("running", None, None)
    detached("cancel", run)
    detached("cancel", events[-1]["run"])


def assert_canceled(cli: Tpujob, run: str, by: str) -> None:
    """Every command says so."""
    shown = cli.only_run()
    assert (shown["state"], shown["exit_code"], shown["detail"]) == ("canceled", 71, f"canceled by `{by}`")
    (listed,) = json.loads(cli("list", "--json").stdout)
    assert {key: shown[key] for key in listed} == listed
    assert "\tcanceled\t" in cli("list").stdout
    text = cli("show", run).stdout
    assert f"why      canceled by `{by}`" in text and "delete: " in text
    attached = cli("attach", run)
    assert attached.returncode == 71 and f"result   canceled by `{by}`" in attached.stdout
    assert "absent (checked" in attached.stdout
    assert cli("logs", "-f", run).returncode == 0


@pytest.mark.parametrize("command", ["cancel", "down"])
def test_a_run_is_canceled_at_once_even_if_its_collector_stands_still(detached: Tpujob, command: str) -> None:
    run = submit(detached, SLOW, TPUJOB_COLLECTOR="on")
    until_followed(detached)
    still = collector(detached)
    reader = detached.start("logs", "-f", run)
    detached.until("begun", reader)
    still.suspend()
    attached = detached.start("attach", run)
    detached.until("begun", attached)
    assert detached(command, "slow").returncode == 0
    assert_canceled(detached, run, f"tpujob {command}")
    for process, code in ((reader, 0), (attached, 71)):
        process.communicate()
        assert process.returncode == code
    still.resume()
    still.wait(HANG_S)
    assert_canceled(detached, run, f"tpujob {command}")


def test_extend_of_a_run_that_has_ended_says_so(detached: Tpujob) -> None:
    run = submit(detached, SLOW)
    assert detached("cancel", run).returncode == 0
    for name in (run, "slow"):
        done = detached("extend", name, "--by", "1h")
        assert done.returncode == 64 and f"{run} has ended: canceled\nhint: `tpujob show {run}`" in done.stderr, (
            done.text
        )


def test_extend_moves_the_deadline_in_the_ledger_and_on_the_node(detached: Tpujob) -> None:
    run = submit(detached, SLOW, "--ttl", "6m")
    before = json.loads(detached("status", "--json").stdout)["slices"][0]["deadline"]
    done = detached("extend", run, "--by", "1h")
    assert done.returncode == 0, done.stderr
    after = json.loads(detached("status", "--json").stdout)["slices"][0]["deadline"]
    assert after - before == pytest.approx(3600)
    refused = detached("extend", run, "--by", "7d")
    assert refused.returncode == 64 and "7 days" in refused.stderr
    detached("cancel", run)


def test_artifacts_go_to_the_bucket_that_the_job_names(detached: Tpujob) -> None:
    url = detached.emulator.endpoint.url  # which has a Cloud Storage, though its workers are not told of it
    run = submit(detached, QUICK + "bucket: gs://my-bucket/runs\n", STORAGE_EMULATOR_HOST=url)
    (copy,) = until(lambda: list(Objects(emulator=url).list("gs://my-bucket/")), "the copy")
    assert detached("cancel", run).returncode == 0
    assert (copy.name, copy.size_bytes) == (f"runs/{run}/worker0/artifacts/result.txt", len("result\n"))


def test_a_worker_fetches_the_data_of_a_job_and_what_is_missing_is_refused_before_the_create(
    detached: Tpujob, tmp_path: Path
) -> None:
    url = detached.emulator.endpoint.url
    text = QUICK.replace("echo result", "cat data/a data/b/c") + "data: {./data: gs://my-bucket/d}\n"
    refused = detached("submit", detached.job(text), env={"STORAGE_EMULATOR_HOST": url})
    assert refused.returncode == 64
    assert "job.yaml:8: data../data: gs://my-bucket has no object `d`, and none below it" in refused.stderr
    (tmp_path / "x").write_text("result\n")
    for name in ("d/a", "d/b/c"):
        Objects(emulator=url).upload(f"gs://my-bucket/{name}", tmp_path / "x")
    planned = detached("plan", detached.job(text), env={"STORAGE_EMULATOR_HOST": url})
    assert "data: ./data is gs://my-bucket/d: 2 objects, 14 bytes, fetched by each worker" in planned.text
    submitted = detached("submit", detached.job(text), env={"STORAGE_EMULATOR_HOST": url})
    assert "data: data: 2 files, 14 B of gs://my-bucket/d: 14 B fetched" in submitted.text
    assert detached("attach", submitted.stdout.split()[-1]).returncode == 0
    assert next(detached.directory.glob("**/result.txt")).read_text() == "result\nresult\n"


def test_a_bucket_is_refused_where_there_is_no_storage(detached: Tpujob) -> None:
    done = detached("submit", detached.job(QUICK + "bucket: gs://my-bucket/runs\n"))
    assert done.returncode == 64 and "job.yaml:8: bucket: no Cloud Storage belongs to this shell" in done.stderr
