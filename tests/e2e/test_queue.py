"""A queue of jobs: added, carried on by passes, and ended once, whatever becomes of slices, runners and machines."""

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.places.google.objects import Objects
from tests.cli_fixture import Said, Tpujob, in_ci
from tests.e2e.test_elsewhere import Machine
from tests.e2e.test_resume import TRAIN, saved_step
from tests.waiting import until
from tpujob import Client, Job, Limits, Tpu

JOB = """name: {name}
tpu: {{accelerator: {type}, zone: us-central1-a}}
limits: {{max_duration: 6m}}
command: |
  {command}
  echo "{name} $TPUJOB_ATTEMPT" >> {told}
{more}
"""
SECRET = "s3cr3t-of-the-runner"
REPORT = ["committed_usd", "emulated", "jobs", "max_cost", "now", "per_s", "runner", "slots", "store"]
ENTRY = [
    "added_at", "asks", "at_most_usd", "attempts", "cost_usd", "ended_at", "exit_code", "id", "losses", "metrics", "name",
    "node", "priority", "runner", "seen_at", "since", "state", "sweep", "variant", "why", "zone",
]  # fmt: skip
WAITS = "while [ ! -e {go} ]; do sleep 0.05; done"


class Desk:
    """A machine with a queue in its settings. Each job tells in a file outside of its slice that it came to its end."""

    def __init__(self, cli: Tpujob, queue: str = "{slots: 2, max_cost: 5}") -> None:
        self.cli, self.told_in, self.go = cli, cli.directory / "told", cli.directory / "go"
        self.told_in.touch()
        self.settings(queue)

    def settings(self, queue: str) -> None:
        path = self.cli.directory / "home" / ".config" / "tpujob" / "settings.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"queue: {queue}\n")

    def job(self, name: str, command: str = "true", more: str = "", type: str = "v5litepod-4") -> str:
        """Write a job file; return its name. `{go}` in the command: a file that appears with `let_go`."""
        command = command.replace("{go}", str(self.go))
        text = JOB.format(name=name, command=command, told=self.told_in, more=more, type=type)
        return self.cli.job(text, f"{name}.yaml")

    def do(self, *words: str, code: int = 0, **env: str) -> Said:
        said = self.cli("queue", *words, env=env)
        assert said.returncode == code, said.text
        assert "Traceback" not in said.text, said.text
        return said

    def add(self, *files: str, **env: Any) -> None:
        self.do("add", *files, **env)

    def jobs(self, **env: Any) -> dict[str, dict[str, Any]]:
        """The rows of the list, by name."""
        return {row["name"]: row for row in json.loads(self.do("--json", **env).stdout)["jobs"]}

    def states(self) -> dict[str, str]:
        return {name: row["state"] for name, row in self.jobs().items()}

    @property
    def store(self) -> Path:
        return self.cli.own_state / "queue"

    def preempt(self, node: str) -> None:
        self.cli.admin("POST", f"nodes/{node.rpartition('/')[2]}:preempt", {"notice_s": 0})

    def let_go(self) -> None:
        self.go.touch()

    def finish(self, **env: Any) -> dict[str, dict[str, Any]]:
        """Make passes until every job has ended and every slice is gone."""

        def rows() -> dict[str, dict[str, Any]]:
            self.do("run", **env)
            return self.jobs(**env)

        found = until(
            rows, "the end of all jobs", lambda jobs: all(row["ended_at"] and not row["since"] for row in jobs.values())
        )
        assert self.cli.alive() == []
        return found

    def told(self) -> list[str]:
        """Which jobs came to their end, and in which attempt, in order: `first 1`."""
        lines = (line.split() for line in self.told_in.read_text().splitlines())
        return [f"{name} {attempt.rpartition('-')[2]}" for name, attempt in lines]


@pytest.fixture
def desk(tpujob: Tpujob) -> Desk:
    return Desk(tpujob)


def test_two_jobs_end_once_each_over_one_slice(desk: Desk) -> None:
    desk.settings("{slots: 1}")
    command = 'echo result > "$TPUJOB_ARTIFACTS/result.txt"'
    desk.add(desk.job("first", command), desk.job("second", command))
    ended = desk.finish()
    assert {(row["state"], row["exit_code"], row["attempts"]) for row in ended.values()} == {("succeeded", 0, 1)}
    assert desk.told() == ["first 1", "second 1"] and desk.cli.lived() == 1
    assert [row["state"] for row in json.loads(desk.cli("list", "--json").stdout)] == ["succeeded"] * 2
    assert len([*desk.cli.directory.glob("runs/*/worker0/artifacts/result.txt")]) == 2
    assert {lease.state for lease in desk.cli.leases()} == {"gone"}


def test_a_typo_in_the_third_job_adds_none(desk: Desk) -> None:
    third = desk.job("third", more="comand: ls")
    with desk.cli.promising_nothing():
        said = desk.do("add", desk.job("first"), desk.job("second"), third, code=64)
    assert (
        "third.yaml:7: comand: unknown key" in said.stderr
        and "; nothing was added\n" in said.stderr
        and said.stdout == ""
    )
    assert desk.jobs() == {}


def test_a_job_runs_the_code_of_the_moment_at_which_it_was_added(desk: Desk) -> None:
    code = desk.cli.directory / "code"
    code.mkdir()
    (code / "say.sh").write_text("echo before\n")
    desk.add(desk.job("says", "sh say.sh", "code: code"))
    (code / "say.sh").write_text("echo after\n")
    desk.cli.job("garbage: [", "says.yaml")
    assert desk.finish()["says"]["state"] == "succeeded"
    assert desk.cli("logs", "says").stdout == "worker0 | before\n"


def test_a_secret_is_the_runners_and_a_job_waits_where_there_is_none(desk: Desk) -> None:
    found = desk.cli.directory / "found"
    desk.add(
        desk.job("reads", f'printf %s "$TOKEN" > {found}', "env: {TOKEN: '${env:QUEUE_TOKEN}'}"), QUEUE_TOKEN=SECRET
    )
    files = [path.read_bytes() for path in desk.store.rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert not [
        each for each in files if SECRET.encode() in (gzip.decompress(each) if each[:2] == b"\x1f\x8b" else each)
    ]
    desk.do("run")
    row = desk.jobs()["reads"]
    assert row["state"] == "waiting" and "lacks the variable QUEUE_TOKEN" in row["why"] and desk.cli.lived() == 0
    assert "lacks the variable QUEUE_TOKEN" in desk.cli("queue").stdout
    desk.finish(QUEUE_TOKEN=SECRET)
    assert found.read_text() == SECRET and desk.told() == ["reads 1"]


def test_a_job_without_capacity_waits_with_googles_words_and_holds_up_no_other(desk: Desk) -> None:
    desk.cli.admin("PUT", "rehearsal", {"capacity": [{"zone": "us-central1-a", "type": "v5litepod-4"}]})
    desk.settings("{slots: 1}")
    desk.add(desk.job("short"), desk.job("other", type="v5litepod-1"))
    desk.do("run")
    until(lambda: desk.do("run") and desk.jobs()["other"]["ended_at"], "the end of the other one")
    row = desk.jobs()["short"]
    assert (row["state"], row["attempts"]) == ("waiting", 0)
    assert "no capacity" in row["why"] and "no more capacity" in row["why"], row["why"]
    desk.cli.admin("DELETE", "capacity")
    desk.do("release", "short")  # which asks at once
    desk.do("run")
    assert desk.states()["short"] in ("running", "succeeded")
    assert {row["state"] for row in desk.finish().values()} == {"succeeded"}
    assert desk.told() == ["other 1", "short 1"]


def test_jobs_begin_by_priority_then_age_and_are_held_moved_and_removed(desk: Desk) -> None:
    desk.settings("{slots: 1}")
    desk.add(*(desk.job(name) for name in ("first", "second", "third", "fourth")))
    desk.add(desk.job("urgent"), "--priority", "5")
    desk.do("hold", "second")
    desk.do("move", "third", "--first")
    desk.do("remove", "fourth")
    assert list(desk.jobs()) == ["third", "urgent", "first", "second", "fourth"]
    assert "it is held" in desk.jobs()["second"]["why"]
    until(lambda: desk.do("run") and desk.jobs()["first"]["ended_at"], "the end of the last that may begin")
    assert desk.told() == ["third 1", "urgent 1", "first 1"] and desk.cli.alive() == []
    assert {"second": "held", "fourth": "removed"}.items() <= desk.states().items()
    desk.do("release", "second")
    assert desk.states()["second"] == "waiting"


def test_a_job_that_runs_is_removed_with_its_slice(desk: Desk) -> None:
    desk.add(desk.job("goes", WAITS))
    desk.do("run")
    assert desk.states() == {"goes": "running"} and len(desk.cli.alive()) == 1
    said = desk.do("remove", "goes")
    assert "\tcanceled" in said.stdout and desk.cli.alive() == []
    row = desk.jobs()["goes"]
    assert (row["state"], row["exit_code"], row["since"]) == ("canceled", 71, None) and desk.told() == []
    again = desk.do("remove", "goes", code=64)
    assert "no job 'goes' that has not ended" in again.stderr


def test_a_job_waits_for_a_slot_and_for_money_and_the_list_says_so(desk: Desk) -> None:
    desk.add(*(desk.job(name, WAITS) for name in ("first", "second", "third")))
    desk.do("run")
    assert desk.states() == {"first": "running", "second": "running", "third": "waiting"}
    assert desk.jobs()["third"]["why"] == "2 of 2 slots are in use"
    most = desk.jobs()["first"]["at_most_usd"]
    desk.settings(f"{{slots: 3, max_cost: {2.5 * most}}}")
    desk.do("run")
    why = f"${2 * most:.2f} of ${2.5 * most:.2f} are spent or claimed, and this job may cost ${most:.2f}"
    assert desk.jobs()["third"]["why"] == why and len(desk.cli.alive()) == 2
    desk.let_go()
    assert {row["state"] for row in desk.finish().values()} == {"succeeded"}


def test_a_job_that_is_preempted_starts_again_if_it_may(desk: Desk) -> None:
    desk.add(desk.job("again", WAITS, "on_preemption: restart"), desk.job("once", WAITS))
    desk.do("run")
    for node in desk.cli.alive():
        desk.preempt(node)
    desk.do("run")
    desk.let_go()
    ended = desk.finish()
    assert {name: (row["state"], row["attempts"], row["losses"]) for name, row in ended.items()} == {
        "again": ("succeeded", 2, 1), "once": ("interrupted", 1, 1)
    }  # fmt: skip
    assert desk.told() == ["again 2"] and "was taken away while the job ran (PREEMPTED)" in ended["once"]["why"]
    attempts = json.loads(desk.cli("show", ended["again"]["id"], "--json").stdout)["attempts"]
    assert [each["usd"] > 0 for each in attempts] == [True, True], "each slice counts for the attempt that had it"
    assert desk.cli.lived() == 3


@pytest.mark.ci
def test_a_job_with_a_bucket_goes_on_from_its_saved_work(desk: Desk) -> None:
    url = desk.cli.emulator.endpoint.url
    code = desk.cli.directory / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("GO", str(desk.go)))
    more = "code: code\nbucket: gs://my-bucket/runs\non_preemption: restart"
    desk.add(desk.job("trains", "python3 train.py", more), STORAGE_EMULATOR_HOST=url)
    desk.do("run", STORAGE_EMULATOR_HOST=url)
    until(lambda: (saved_step(Objects(emulator=url)) or ("", 0))[1] == 30, "a copy in the bucket")
    desk.preempt(desk.cli.alive()[0])
    desk.let_go()
    ended = desk.finish(STORAGE_EMULATOR_HOST=url)["trains"]
    assert (ended["state"], ended["attempts"]) == ("succeeded", 2)
    assert "worker0 | starting after step 30" in desk.cli("logs", "trains").stdout
    (losses,) = desk.cli.directory.glob("runs/*/worker0/artifacts/losses.jsonl")
    assert [json.loads(line)["step"] for line in losses.read_text().splitlines()] == [10, 20, 30, 40, 50, 60]


def test_nothing_else_goes_on_with_a_job_that_waits_in_the_queue(desk: Desk) -> None:
    url, more = desk.cli.emulator.endpoint.url, "bucket: gs://my-bucket/runs\non_preemption: restart"
    file = desk.job("trains", WAITS, more)
    desk.add(file, STORAGE_EMULATOR_HOST=url)
    desk.do("hold", "trains")
    waits = desk.jobs()["trains"]["id"]
    with desk.cli.creating_nothing():
        refused = desk.cli("run", file, "--resume", waits, env={"STORAGE_EMULATOR_HOST": url})
    assert refused.returncode == 64 and f"{waits} is in the queue, which goes on with it by itself" in refused.stderr


# -- runners and machines that die ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [
    "Create:1:after",
    *in_ci(
        "Create:1:before", "StartPhase:1:before", "StartPhase:1:after",
        "StartCollection:1:before", "WaitForCollection:1:after", "Delete:1:before", "Delete:1:after",
    ),
])  # fmt: skip
def test_what_a_killed_runner_had_begun_is_finished_or_undone_by_the_next(desk: Desk, point: str) -> None:
    desk.add(desk.job("only", 'echo result > "$TPUJOB_ARTIFACTS/result.txt"'))
    killed: list[int] = []

    def run_until_killed() -> list[int]:
        said = desk.cli.as_process("queue", "run", env={"TPUJOB_CRASH_AT": point})
        assert said.returncode in (0, -signal.SIGKILL), said.text
        return killed.append(said.returncode) or [code for code in killed if code]

    until(run_until_killed, "the moment of the kill")
    row = desk.finish()["only"]
    assert (row["state"], row["exit_code"]) == ("succeeded", 0)
    assert len(desk.told()) == 1
    assert [*desk.cli.directory.glob("runs/*/worker0/artifacts/result.txt")]
    assert {lease.state for lease in desk.cli.leases()} == {"gone"}


@pytest.fixture
def machines(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> tuple[Desk, Machine]:
    """Two of one person, with the queue in the emulator's Cloud Storage."""
    monkeypatch.setenv("TPUJOB_OWNER", "alice")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", tpujob.emulator.endpoint.url)
    return Desk(tpujob, "{store: gs://queue/all, slots: 2}"), Machine(tpujob)


def test_another_machine_goes_on_where_the_first_one_is_gone(machines: tuple[Desk, Machine]) -> None:
    desk, other = machines
    desk.add(desk.job("left", WAITS + '; echo result > "$TPUJOB_ARTIFACTS/result.txt"'))
    desk.do("run")
    assert desk.states() == {"left": "running"}
    desk.cli.own_state.rename(gone := desk.cli.directory / "gone")
    desk.let_go()
    ended = desk.finish(**other.env)["left"]
    assert (ended["state"], ended["attempts"]) == ("succeeded", 1) and desk.told() == ["left 1"]
    assert other.found("result.txt").read_text() == "result\n"
    gone.rename(desk.cli.own_state)  # it comes back: what it knows of is over
    desk.do("run")
    assert {lease.state for lease in desk.cli.leases()} == {"gone"} and desk.told() == ["left 1"]


@pytest.mark.ci
def test_a_start_that_was_killed_is_undone_by_another_machine(machines: tuple[Desk, Machine]) -> None:
    desk, other = machines
    desk.add(desk.job("begun"))
    killed = desk.cli.as_process("queue", "run", env={"TPUJOB_CRASH_AT": "Create:1:after"})
    assert killed.returncode == -signal.SIGKILL and len(desk.cli.alive()) == 1
    (first,) = desk.cli.alive()
    ended = desk.finish(**other.env)["begun"]
    assert ended["state"] == "succeeded" and len(desk.told()) == 1
    bills = {bill["name"]: bill for bill in desk.cli.bills()}
    (second,) = bills.keys() - {first}
    assert bills[first]["until"] < bills[second]["since"]


@pytest.mark.ci
def test_of_two_runners_at_once_each_job_has_one(machines: tuple[Desk, Machine]) -> None:
    desk, other = machines
    names = [f"job{number}" for number in range(6)]
    desk.add(*map(desk.job, names))

    def both() -> bool:
        runners = [desk.cli.begin("queue", "run", env=env) for env in ({}, other.env)]
        for each in runners:
            assert each.code() == 0, each.said
        return all(row["ended_at"] and not row["since"] for row in desk.jobs().values())

    until(both, "the end of all jobs")
    assert sorted(desk.told()) == [f"{name} 1" for name in names] and desk.cli.alive() == []


def test_ctrl_c_while_a_runner_creates_leaves_the_job_waiting(desk: Desk) -> None:
    desk.cli.settings(provision_s=3600)
    desk.add(desk.job("made"))
    runner = desk.cli.begin("queue", "run")
    runner.until_true(desk.cli.lived, "the create")
    runner.press()
    assert runner.code() == 130, runner.said
    assert "Traceback" not in runner.said and desk.cli.alive() == []
    assert desk.states() == {"made": "waiting"}
    desk.cli.settings(provision_s=0)
    desk.finish()
    assert desk.told() == ["made 1"]


EVERY = (("queue",), ("queue", "add", "second.yaml"), ("queue", "hold", "goes"), ("queue", "release", "goes"),
    ("queue", "remove", "goes"), ("queue", "move", "goes", "--first"), ("queue", "run"))  # fmt: skip


def test_a_record_that_cannot_be_read_is_said_and_deletes_nothing(desk: Desk) -> None:
    desk.add(desk.job("goes", WAITS))
    desk.job("second")
    desk.do("run")
    record = desk.store / "queue.json"
    before = record.read_bytes()
    for content, why in (
        (b"garbage", f"the record of the queue in {desk.store} cannot be read: "),
        (b'{"version": 3, "jobs": []}', f"the queue in {desk.store} is of another tpujob (version 3)"),
    ):
        record.write_bytes(content)
        for words in EVERY:
            said = desk.cli(*words)
            assert said.returncode == 64 and said.stderr.startswith(why), (words, said.text)
            _, hint = said.stderr.splitlines()
            assert "nothing of the queue is started or deleted" in hint and said.stdout == "", (words, said.text)
        said = desk.cli("gc", "--local")
        assert said.returncode == 0 and why in said.stderr, said.text
        assert len(desk.cli.alive()) == 1 and record.read_bytes() == content
    record.write_bytes(before)
    desk.let_go()
    desk.finish()
    assert desk.told() == ["goes 1"]


def test_a_store_that_cannot_be_used_is_named_in_one_line(desk: Desk) -> None:
    desk.job("second")
    desk.store.write_text("a file where the directory belongs")
    for words in EVERY:
        said = desk.cli(*words)
        assert said.returncode == 69 and said.stderr.startswith(f"{desk.store}"), (words, said.text)
        assert said.text.count("\n") == 1, (words, said.text)


def test_a_bucket_without_permission_is_named_with_the_role_that_has_it(machines: tuple[Desk, Machine]) -> None:
    desk, _ = machines
    desk.job("second")
    desk.cli.fault("status", "storage.objects.*", status=403)
    for words in EVERY:
        said = desk.cli(*words)
        first, hint = said.stderr.splitlines()
        assert said.returncode == 77 and first.startswith("gs://queue/all/") and " denied on " in first, (
            words,
            said.text,
        )
        assert hint == "hint: the role roles/storage.objectUser on gs://queue has it"
    desk.cli.admin("DELETE", "faults")
    assert desk.jobs() == {}


# -- what a pass cannot finish --------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_slice_that_is_held_for_its_results_is_released_by_collect_and_no_pass_waits_for_that(desk: Desk) -> None:
    text = Path(desk.cli.directory, desk.job("big", 'echo result > "$TPUJOB_ARTIFACTS/result.txt"')).read_text()
    desk.add(desk.cli.job(text.replace("6m}", "6m, max_results: 1B, linger: 1h}")))
    until(lambda: desk.do("run") and desk.jobs()["big"]["ended_at"], "the end of the job")
    before = len(desk.cli.requests())
    desk.do("run")
    row = desk.jobs()["big"]
    assert (row["state"], row["exit_code"], row["runner"]) == ("failed", 65, None) and row["since"]
    assert len(desk.cli.requests()) - before < 10 and len(desk.cli.alive()) == 1
    assert desk.cli("collect", row["id"], "--max-results", "none").returncode == 0
    desk.do("run")
    assert desk.jobs()["big"]["since"] is None and desk.cli.alive() == [] and desk.told() == ["big 1"]


@pytest.mark.ci
def test_a_pass_ends_though_a_deletion_gets_no_answer_and_the_next_one_proves_it(desk: Desk) -> None:
    desk.cli.monkeypatch.setattr("orchestrator.api.queue.leases.RELEASE_S", 6.0)  # more than half a claim
    desk.add(desk.job("goes", WAITS))
    desk.do("run")
    desk.cli.fault("status", "nodes.delete", status=503)
    said = desk.cli("queue", "remove", "goes")
    assert said.returncode == 75 and "NOT VERIFIED GONE" in said.stderr, said.text
    assert desk.states() == {"goes": "undoing"} and "proven gone" in desk.jobs()["goes"]["why"]
    desk.cli.admin("DELETE", "faults")
    assert desk.finish()["goes"]["state"] == "canceled" and desk.told() == []


# -- other ways in ---------------------------------------------------------------------------------------------------------


def test_submit_puts_a_job_that_restarts_and_a_sweep_into_the_queue(desk: Desk) -> None:
    one = desk.cli("submit", desk.job("restarts", more="on_preemption: restart"))
    assert one.returncode == 0, one.text
    (row,) = desk.jobs().values()
    assert one.stdout == f"{row['id']}\n" and row["attempts"] == 1, "it made the first pass"
    assert f"restarts ({row['id']}): in the queue, since it is to go on after a preemption" in one.stderr
    assert "nothing goes on without a runner: `tpujob install-gc` installs a timer" in one.stderr
    sweep = desk.cli("submit", desk.job("swept", "true ${params.lr}", "matrix: {lr: [1, 2]}"), "--json")
    assert sweep.returncode == 0, sweep.text
    event = next(each for each in map(json.loads, sweep.stdout.splitlines()) if each["event"] == "queued")
    assert (event["event"], [each["name"] for each in event["jobs"]]) == ("queued", ["swept-1", "swept-2"])
    ended = desk.finish()
    assert {row["state"] for row in ended.values()} == {"succeeded"} and len(desk.told()) == 3
    assert [(ended[name]["sweep"], ended[name]["variant"]) for name in ("swept-1", "swept-2")] == [
        ("swept", "lr=1"), ("swept", "lr=2")
    ]  # fmt: skip


def test_the_shapes_of_json_are_stable_and_python_has_the_same(desk: Desk) -> None:
    added = json.loads(desk.do("add", desk.job("first"), desk.job("second"), "--json").stdout)
    assert [each["name"] for each in added] == ["first", "second"]
    held = json.loads(desk.do("hold", "first", "--json").stdout)
    listed = json.loads(desk.do("--json").stdout)
    assert sorted(listed) == REPORT
    assert {tuple(sorted(row)) for row in (*added, *held, *listed["jobs"])} == {tuple(ENTRY)}
    queue = Client().queue
    small = Tpu(accelerator="v5litepod-4", zone="us-central1-a")
    (third,) = queue.add(Job(name="third", tpu=small, limits=Limits(max_duration="6m"), command="true"))
    assert (third.name, third.state) == ("third", "waiting")
    assert [each.state for each in queue.remove("first", "second")] == ["removed", "removed"]
    until(lambda: all(each.ended_at for each in queue.run().jobs) and not desk.cli.alive(), "the end")
    report = queue.report()
    assert {each.name: each.state for each in report.jobs} == {
        "first": "removed",
        "second": "removed",
        "third": "succeeded",
    }
    assert json.loads(json.dumps(report.as_json()["jobs"])) == json.loads(desk.do("--json").stdout)["jobs"]


def test_gc_makes_a_pass_where_there_is_a_queue(desk: Desk) -> None:
    assert desk.cli("gc", "--local").returncode == 0
    desk.add(desk.job("only"))
    until(lambda: desk.cli("gc", "--local").returncode == 0 and desk.jobs()["only"]["ended_at"], "its end")
    assert desk.told() == ["only 1"] and desk.cli.alive() == []


def test_a_machine_without_a_queue_makes_no_pass(tpujob: Tpujob) -> None:
    assert tpujob("gc", "--local").returncode == 0
    assert not (tpujob.own_state / "queue").exists() and tpujob.requests() == []


def test_cancel_and_attach_of_its_runs_are_in_the_queue(desk: Desk) -> None:
    desk.add(desk.job("canceled", WAITS, "on_preemption: restart"), desk.job("attached", WAITS))
    desk.do("run")
    runs = {name: row["id"] for name, row in desk.jobs().items()}
    assert desk.cli("cancel", runs["canceled"]).returncode == 0
    desk.let_go()
    done = desk.cli("attach", runs["attached"])
    assert done.returncode == 0 and "absent" in done.stdout, done.text
    ended = desk.finish()
    assert {name: (row["state"], row["exit_code"]) for name, row in ended.items()} == {
        "canceled": ("canceled", 71), "attached": ("succeeded", 0)
    }  # fmt: skip
    assert desk.told() == ["attached 1"]


def test_the_figures_of_a_job_that_runs_are_in_the_list(desk: Desk) -> None:
    line = json.dumps({"step": 1200, "loss": 0.25}).replace('"', '\\"')
    desk.add(desk.job("counts", f'echo "{line}" >> "$TPUJOB_ARTIFACTS/metrics.jsonl"; {WAITS}'))
    until(lambda: desk.do("run") and desk.jobs()["counts"]["metrics"], "figures")
    row = desk.jobs()["counts"]
    assert (row["metrics"]["step"], row["metrics"]["loss"]) == (1200, 0.25) and row["seen_at"]
    assert "step 1,200 · loss 0.25" in desk.cli("queue").stdout
    desk.let_go()
    desk.finish()
