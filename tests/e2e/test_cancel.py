"""What ends a run or a slice by its name: it ends the one that lives, or asks which one, and never another."""

import json
import subprocess

import pytest

from tests.cli_fixture import Tpujob
from tests.waiting import until

HELLO = "name: hello\ntpu: {zone: us-central1-a}\ncommand: echo hi\n"
LONG = HELLO.replace("echo hi", "while [ ! -e ~/go ]; do sleep 0.1; done")
WAITER = "name: waiter\ntpu: {zone: us-central1-a, wait: 1h}\ncommand: echo hi\n"
QUEUED = WAITER.replace("wait: 1h", "wait: 1h, provisioning: queued")
RACE = QUEUED.replace("zone: us-central1-a", "zone: [us-central1-a, us-west4-a], race: true")


@pytest.fixture
def detached(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Tpujob:
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    return tpujob


def submit(cli: Tpujob, text: str) -> str:
    done = cli("submit", cli.job(text))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state_of(cli: Tpujob, run: str) -> str:
    return str(json.loads(cli("show", run, "--json").stdout)["state"])


def no_capacity(cli: Tpujob) -> None:
    (cli.directory / "rehearsal.json").write_text(json.dumps({"capacity": [{"zone": "*"}]}))
    assert cli("emulator", "rehearse", "rehearsal.json").returncode == 0


def test_a_name_means_the_newest_run_and_for_what_acts_the_one_that_has_not_ended(detached: Tpujob) -> None:
    older = submit(detached, LONG)
    assert detached("run", detached.job(HELLO)).returncode == 0
    assert json.loads(detached("show", "hello", "--json").stdout)["run"] != older
    assert detached("extend", "hello", "--by", "5m").returncode == 0
    done = detached("cancel", "hello")
    assert done.returncode == 0 and f"{older} canceled" in done.stdout, done.text
    assert detached.alive() == [] and state_of(detached, older) == "canceled"
    again = detached("cancel", "hello")
    assert again.returncode == 0 and "has ended already" in again.stdout


def test_a_name_of_several_live_runs_ends_and_follows_none(detached: Tpujob) -> None:
    runs = [submit(detached, LONG), submit(detached, LONG)]
    for words in (("cancel", "hello"), ("attach", "hello"), ("extend", "hello", "--by", "5m"), ("down", "hello")):
        refused = detached(*words)
        assert refused.returncode == 64 and all(run in refused.stderr for run in runs), (words, refused.text)
    assert len(detached.alive()) == 2
    assert json.loads(detached("show", "hello", "--json").stdout)["run"] == runs[1]
    down = detached("down", runs[0][:9])
    assert down.returncode == 0 and "absent" in down.stdout, down.text
    assert state_of(detached, runs[0]) == "canceled" and len(detached.alive()) == 1
    assert detached("cancel", "hello").returncode == 0
    assert detached.alive() == []


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
    assert_canceled(tpujob, process)
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


def test_cancel_and_down_say_as_json_what_they_proved(detached: Tpujob) -> None:
    run = submit(detached, LONG)
    shape = json.loads(detached("cancel", run, "--json").stdout)
    assert sorted(shape) == ["had_ended", "released", "run", "slices", "state"]
    (gone,) = shape["slices"]
    assert (shape["run"], shape["had_ended"], shape["state"], gone["absent"]) == (run, False, "canceled", True)
    assert json.loads(detached("cancel", run, "--json").stdout)["had_ended"] is True
    assert detached("up", "alice", "--zone", "us-central1-a").returncode == 0
    (down,) = json.loads(detached("down", "alice", "--json").stdout)["released"]
    assert (down["name"], down["zone"], down["absent"]) == ("alice", "us-central1-a", True)
    assert json.loads(detached("down", "--json").stdout) == {"released": [], "alive": []}


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


def assert_canceled(cli: Tpujob, process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate()
    assert process.returncode == 71 and "canceled by `tpujob cancel`" in out, out
    assert cli.alive() == [] and cli.only_run()["state"] == "canceled"
    assert cli.only_run()["exit_code"] == 71
