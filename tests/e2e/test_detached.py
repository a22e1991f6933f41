"""Runs that are submitted and left, attached to, extended, ended by their watchdog, and canceled by name."""

import contextlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.api.session.session import Session
from orchestrator.places.google.objects import Objects
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.periods import GOOGLE
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
    monkeypatch.setattr("orchestrator.promise.lease.periods.GOOGLE", replace(GOOGLE, **changed))


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
    bucket = Objects(emulator=url)
    (copy,) = until(
        lambda: [each for each in bucket.list("gs://my-bucket/") if each.name.endswith("result.txt")], "the copy"
    )
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


HELLO = "name: hello\ntpu: {zone: us-central1-a}\ncommand: echo hi\n"
LONG = HELLO.replace("echo hi", "while [ ! -e ~/go ]; do sleep 0.1; done")
WAITER = "name: waiter\ntpu: {zone: us-central1-a, wait: 1h}\ncommand: echo hi\n"
QUEUED = WAITER.replace("wait: 1h", "wait: 1h, provisioning: queued")
RACE = QUEUED.replace("zone: us-central1-a", "zone: [us-central1-a, us-west4-a], race: true")


@pytest.fixture
def left_alone(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Tpujob:
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    return tpujob


def state_of(cli: Tpujob, run: str) -> str:
    return str(json.loads(cli("show", run, "--json").stdout)["state"])


def no_capacity(cli: Tpujob) -> None:
    (cli.directory / "rehearsal.json").write_text(json.dumps({"capacity": [{"zone": "*"}]}))
    assert cli("emulator", "rehearse", "rehearsal.json").returncode == 0


def test_a_name_means_the_newest_run_and_for_what_acts_the_one_that_has_not_ended(left_alone: Tpujob) -> None:
    older = submit(left_alone, LONG)
    assert left_alone("run", left_alone.job(HELLO)).returncode == 0
    assert json.loads(left_alone("show", "hello", "--json").stdout)["run"] != older
    assert left_alone("extend", "hello", "--by", "5m").returncode == 0
    done = left_alone("cancel", "hello")
    assert done.returncode == 0 and f"{older} canceled" in done.stdout, done.text
    assert left_alone.alive() == [] and state_of(left_alone, older) == "canceled"
    again = left_alone("cancel", "hello")
    assert again.returncode == 0 and "has ended already" in again.stdout


def test_a_name_of_several_live_runs_ends_and_follows_none(left_alone: Tpujob) -> None:
    runs = [submit(left_alone, LONG), submit(left_alone, LONG)]
    for words in (("cancel", "hello"), ("attach", "hello"), ("extend", "hello", "--by", "5m"), ("down", "hello")):
        refused = left_alone(*words)
        assert refused.returncode == 64 and all(run in refused.stderr for run in runs), (words, refused.text)
    assert len(left_alone.alive()) == 2
    assert json.loads(left_alone("show", "hello", "--json").stdout)["run"] == runs[1]
    down = left_alone("down", runs[0][:9])
    assert down.returncode == 0 and "absent" in down.stdout, down.text
    assert state_of(left_alone, runs[0]) == "canceled" and len(left_alone.alive()) == 1
    assert left_alone("cancel", "hello").returncode == 0
    assert left_alone.alive() == []


@pytest.mark.parametrize("job", [WAITER, QUEUED, RACE], ids=["between-tries", "queued", "race"])
def test_a_run_that_waits_for_capacity_is_canceled_from_another_terminal(tpujob: Tpujob, job: str) -> None:
    no_capacity(tpujob)
    process = tpujob.start("run", tpujob.job(job), stderr=subprocess.STDOUT)
    if job is WAITER:
        tpujob.until("no capacity (released: absent) → next", process)
        run = until(lambda: json.loads(tpujob("status", "--json").stdout)["waiting"], "a waiting run")[0]["run"]
        assert f"waiter\tv5litepod-8\tus-central1-a\twaiting\trun {run}\t" in tpujob("status").stdout
    else:
        requests = 1 if job is QUEUED else 2
        until(
            lambda: len(tpujob.admin("GET", "status").get("queued_resources", [])) == requests, "requests in the queue"
        )
    done = tpujob("cancel", "waiter")
    assert done.returncode == 0 and " canceled; " in done.stdout, done.text
    assert tpujob.admin("GET", "status").get("queued_resources", []) == []
    tpujob.admin("DELETE", "capacity")
    assert_ended(tpujob, process)
    assert tpujob.lived() == (1 if job is WAITER else 0), "nothing was created after the end"


def test_a_run_on_a_held_slice_is_stopped_and_the_slice_stays(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a", "--idle", "never").returncode == 0
    process = tpujob.start("run", tpujob.job(LONG), stderr=subprocess.STDOUT)
    until(lambda: [run for run in json.loads(tpujob("list", "--json").stdout) if run["state"] == "running"], "a job")
    done = tpujob("cancel", "hello", "--json")
    shape = json.loads(done.stdout)
    assert done.returncode == 0 and (shape["state"], shape["slices"], shape["released"]) == ("canceled", [], True)
    out, _ = process.communicate()
    assert process.returncode == 71 and "canceled by `tpujob cancel`" in out and "alice is kept until" in out, out
    assert len(tpujob.alive()) == 1
    again = tpujob("run", tpujob.job(HELLO))
    assert again.returncode == 0 and "held by `tpujob up`" in again.stderr, "nothing of the first job is in its way"


def test_cancel_and_down_say_as_json_what_they_proved(left_alone: Tpujob) -> None:
    run = submit(left_alone, LONG)
    shape = json.loads(left_alone("cancel", run, "--json").stdout)
    assert sorted(shape) == ["had_ended", "released", "run", "slices", "state"]
    (gone,) = shape["slices"]
    assert (shape["run"], shape["had_ended"], shape["state"], gone["absent"]) == (run, False, "canceled", True)
    assert json.loads(left_alone("cancel", run, "--json").stdout)["had_ended"] is True
    assert left_alone("up", "alice", "--zone", "us-central1-a").returncode == 0
    (down,) = json.loads(left_alone("down", "alice", "--json").stdout)["released"]
    assert (down["name"], down["zone"], down["absent"]) == ("alice", "us-central1-a", True)
    assert json.loads(left_alone("down", "--json").stdout) == {"released": [], "alive": []}


def test_the_record_of_a_cancel_outlives_a_run_that_was_killed(tpujob: Tpujob) -> None:
    no_capacity(tpujob)
    process = tpujob.start("run", tpujob.job(QUEUED), env={"TPUJOB_GUARDIAN": "off"})
    until(lambda: tpujob.admin("GET", "status").get("queued_resources", []), "a request in the queue")
    process.kill()
    process.communicate()
    done = tpujob("cancel", "waiter")
    assert done.returncode == 0 and "has ended already" in done.stdout, done.text
    assert tpujob.admin("GET", "status").get("queued_resources", []) == [] and tpujob.lived() == 0
    assert json.loads(tpujob("status", "--json").stdout)["waiting"] == []


def assert_ended(cli: Tpujob, process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate()
    assert process.returncode == 71 and "canceled by `tpujob cancel`" in out, out
    assert cli.alive() == [] and cli.only_run()["state"] == "canceled"
    assert cli.only_run()["exit_code"] == 71
