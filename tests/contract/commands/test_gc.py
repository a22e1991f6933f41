"""`tpujob gc` as a process against the emulator, and the recipes of docs/gc.md."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import typer_app
from orchestrator.places.google.error_translation import EMULATOR_LOGIN
from orchestrator.promise.gc import DEADLINE_S
from orchestrator.text.units import parse_duration
from tests import ROOT
from tests.cli_fixture import Tpujob
from tests.waiting import HANG_S, ran, until

ZONE = "us-central1-a"
NODES = f"/v2/projects/emulated/locations/{ZONE}/nodes"


def node(cli: Tpujob, name: str) -> dict[str, Any]:
    return cli.emulator.request("GET", f"{NODES}/{name}")


def make(cli: Tpujob, name: str, kind: str = "v5litepod-4", **labels: str) -> str:
    """A node that no command of this machine created."""
    body = {"acceleratorType": kind, "runtimeVersion": "v2-alpha-tpuv5-lite", "labels": labels}
    cli.emulator.request("POST", f"{NODES}?nodeId={name}", body)
    until(lambda: node(cli, name)["state"] == "READY")
    return name


def queue(cli: Tpujob, name: str, **labels: str) -> str:
    """A queued request without its node, of no command of this machine."""
    node = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite", "labels": labels}
    requests = f"{NODES.removesuffix('/nodes')}/queuedResources"
    body = {"tpu": {"nodeSpec": [{"nodeId": name, "node": node}]}}
    cli.emulator.request("POST", f"{requests}?queuedResourceId={name}", body)
    state = lambda: cli.emulator.request("GET", f"{requests}/{name}")["state"]["state"]  # noqa: E731
    until(lambda: state() == "ACTIVE")
    cli.emulator.request("DELETE", f"{NODES}/{name}")
    until(lambda: state() == "SUSPENDED")
    return name


def ours(run: str, lease_in: float = 3600.0, deadline_in: float = 7200.0) -> dict[str, str]:
    now = int(time.time())
    return {
        "tpujob": "1",
        "tpujob-lease-id": run,
        "tpujob-claimed-until": str(int(now + lease_in)),
        "tpujob-deadline": str(int(now + deadline_in)),
        "tpujob-mode": "run",
    }


def names(cli: Tpujob) -> set[str]:
    return {each.rpartition("/")[2] for each in cli.alive()}


def elsewhere(cli: Tpujob, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that knows nothing but where the API is: an empty home that cannot be written."""
    token = tmp_path / "token-elsewhere"
    token.write_text(cli.emulator.token)
    return {
        "TPUJOB_ENDPOINT": cli.emulator.url,
        "TPUJOB_TOKEN_FILE": str(token),
        "TPUJOB_STATE_DIR": "/proc/nowhere",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "",
        "CLOUDSDK_CONFIG": "",
    }


def test_a_request_without_a_claim_goes_and_its_price_is_not_invented(tpujob: Tpujob, tmp_path: Path) -> None:
    dead = queue(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    kept = queue(tpujob, "tpujob-k3f9ab-a11ve00000", **ours("a11ve00000"))
    done = tpujob("gc", env=elsewhere(tpujob, tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if dead in line]
    assert line.startswith("deleted") and "not billed" in line
    assert any(line.startswith("claimed") and kept in line for line in done.stdout.splitlines())
    again = tpujob("gc", env=elsewhere(tpujob, tmp_path))
    assert dead not in again.stdout and kept in again.stdout


def test_from_a_machine_without_any_state_the_unclaimed_go_and_the_claimed_stay(tpujob: Tpujob, tmp_path: Path) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    over = make(tpujob, "tpujob-k3f9ab-0ver000000", **ours("0ver000000", lease_in=600, deadline_in=-60))
    alive = make(tpujob, "tpujob-k3f9ab-a11ve00000", **ours("a11ve00000"))
    foreign = make(tpujob, "training", team="x")
    half = make(tpujob, "tpujob-by-hand", **(ours("x", lease_in=-3600) | {"tpujob": "0"}))
    label_only = make(tpujob, "someones", **ours("y", lease_in=-3600))
    done = tpujob("gc", "--json", env=elsewhere(tpujob, tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["done"] and len(said["zones"]) > 30 and said["incomplete"] == []
    assert {each["node"] for each in said["ended"] if each["gone"]} == {dead, over}
    assert [each["node"] for each in said["claimed"]] == [alive]
    assert {each["node"] for each in said["doubtful"]} == {half, label_only}
    assert names(tpujob) == {alive, foreign, half, label_only}
    assert "gc went on without it" in done.stderr
    quiet = tpujob("gc", "--quiet", env=elsewhere(tpujob, tmp_path))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_dry_run_says_what_would_go_and_fails_as_an_alarm(tpujob: Tpujob) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    done = tpujob("gc", "--dry-run", "--zone", ZONE)
    assert done.returncode == 75
    assert f"would delete\t{dead}\t{ZONE}\tv5litepod-4\tabout $" in done.stdout
    assert names(tpujob) == {dead}


def test_a_zone_that_is_not_whole_is_75_and_what_is_seen_there_goes_all_the_same(tpujob: Tpujob) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    tpujob.settings(unreachable=["us-west4-a"])
    process = tpujob.start("gc", "--zone", ZONE, "--zone", "us-west4-a")
    until(lambda: dead not in names(tpujob))
    tpujob.settings(unreachable=[])
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, "an outage that ends within the gc run costs nothing"
    assert "2 of 2 zones complete" in out


def test_what_no_person_mends_meanwhile_is_75(tpujob: Tpujob, tmp_path: Path) -> None:
    env = elsewhere(tpujob, tmp_path)
    Path(env["TPUJOB_TOKEN_FILE"]).write_text("another-emulators-token")
    done = tpujob("gc", "--all-zones", env=env)
    assert done.returncode == 75
    assert "incomplete\t-\tthe project's zones cannot be listed" in done.stdout
    assert done.stderr.count("hint     ") == 1 and EMULATOR_LOGIN in done.stderr


FAULTS: list[list[tuple[str, dict[str, Any]]]] = [
    [("nodes.list", {"kind": "status", "status": 503}), ("nodes.list", {"kind": "drop"})],
    [("nodes.list", {"kind": "garbage"}), ("nodes.delete", {"kind": "lost_reply"})],
    [("nodes.get", {"kind": "status", "status": 502}), ("nodes.delete", {"kind": "drop"})],
    [("nodes.delete", {"kind": "operation_fails", "seconds": 0.1}), ("nodes.delete", {"kind": "status"})],
    [("nodes.list", {"kind": "page_loop"}), ("nodes.delete", {"kind": "operation_forgets"})],
]


@pytest.mark.parametrize(
    "faults", [FAULTS[0], *(pytest.param(faults, marks=pytest.mark.exhaustive) for faults in FAULTS[1:])]
)
def test_gc_gets_through_an_api_that_fails(tpujob: Tpujob, faults: list[tuple[str, dict[str, Any]]]) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    counts: dict[str, int] = {}
    for operation, kind in faults:
        counts[operation] = counts.get(operation, 0) + 1
        tpujob.admin("POST", "faults", {"operation": operation, "when": {"calls": str(counts[operation])}, **kind})
    done = tpujob("gc", "--zone", ZONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert dead not in names(tpujob)
    assert [fault["hits"] for fault in tpujob.admin("GET", "faults")["faults"]] == [1] * len(faults)


# -- with a ledger -----------------------------------------------------------------------------------------------------


def held(cli: Tpujob, handle: str = "alice") -> str:
    assert cli("up", handle, "--zone", ZONE).returncode == 0
    (row,) = [row for row in json.loads(cli("status", "--json").stdout)["slices"] if row["name"] == handle]
    return str(row["node"])


def unclaim(cli: Tpujob, name: str) -> None:
    labels = node(cli, name)["labels"] | {"tpujob-claimed-until": str(int(time.time()) - 3600)}
    operation = cli.emulator.request("PATCH", f"{NODES}/{name}?updateMask=labels", {"labels": labels})
    until(lambda: cli.emulator.request("GET", f"/v2/{operation['name']}").get("done"))


def test_what_gc_deletes_is_no_longer_owed_by_the_ledger_that_made_it(tpujob: Tpujob) -> None:
    name = held(tpujob)
    assert tpujob("gc").returncode == 0
    assert names(tpujob) == {name}, "it is held"
    unclaim(tpujob, name)
    done = tpujob("gc", "--zone", ZONE)
    assert done.returncode == 0 and f"deleted\t{name}" in done.stdout
    assert tpujob("status").stdout.endswith("\nnothing of tpujob is alive there\n")


def test_with_a_damaged_ledger_gc_works(tpujob: Tpujob) -> None:
    # A process of its own: a connection of this one, closed late, would write its log over the damage.
    assert tpujob.as_process("up", "alice", "--zone", ZONE).returncode == 0
    (name,) = names(tpujob)
    unclaim(tpujob, name)
    ledger = tpujob.directory / "state" / "ledger.sqlite3"
    for path in ledger.parent.glob("ledger.sqlite3-*"):
        path.unlink()
    ledger.write_bytes(b"not a database" * 1000)
    done = tpujob("gc", "--zone", ZONE)
    assert done.returncode == 0, done.stderr
    assert "gc went on without it" in done.stderr and names(tpujob) == set()


# -- --local -----------------------------------------------------------------------------------------------------------


def test_local_finishes_what_a_killed_command_left_and_is_silent_otherwise(tpujob: Tpujob) -> None:
    killed = tpujob.as_process("up", "alice", "--zone", ZONE, env={"TPUJOB_CRASH_AT": "Create:1:after"})
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tpujob)) == 1
    done = tpujob("gc", "--local", "--quiet")
    assert done.returncode == 0 and "the process that created it is gone" in done.stderr
    assert names(tpujob) == set()
    again = tpujob("gc", "--local", "--quiet")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_local_leaves_alone_what_this_ledger_does_not_owe(tpujob: Tpujob) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    name = held(tpujob)
    done = tpujob("gc", "--local")
    assert (done.returncode, done.stdout) == (0, "0 released, 0 not proven, 1 claimed\n")
    assert names(tpujob) == {dead, name}


def test_local_closes_the_lease_of_a_slice_that_deleted_itself(tpujob: Tpujob) -> None:
    name = held(tpujob)
    tpujob.emulator.request("DELETE", f"{NODES}/{name}")
    until(lambda: names(tpujob) == set())
    done = tpujob("gc", "--local")
    assert (done.returncode, done.stdout) == (0, "1 released, 0 not proven, 0 claimed\n")


@pytest.mark.parametrize("words", [
    ("--local", "--zone", ZONE), ("--local", "--dry-run"), ("--local", "--json"),
    ("--zone", ZONE, "--all-zones"), ("--zone", "us-centrall1"), ("--zone", "-oProxyCommand=x"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_before_anything_is_asked(tpujob: Tpujob, words: tuple[str, ...]) -> None:
    with tpujob.starting_no_emulator():
        assert tpujob("gc", *words).returncode == 64


def test_an_interrupted_gc_run_says_so(tpujob: Tpujob) -> None:
    tpujob.settings(unreachable=[ZONE])
    process: subprocess.Popen[str] = tpujob.start("gc", "--zone", ZONE)
    until(lambda: tpujob.requests("nodes.list"))
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(HANG_S) == 130
    process.communicate()


PAGE = (ROOT / "docs" / "gc.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"the page has no block of {language}"
    return found


def shell_commands() -> list[list[str]]:
    """Every command of the sh blocks, its variables filled in."""
    commands = []
    for block in blocks("sh"):
        text = block.replace("\\\n", " ")
        values = dict(re.findall(r"(?:^|\s)([A-Z]+)=(\S+)", text))
        for name, value in values.items():
            text = text.replace(f"${name}", value)
        commands += [shlex.split(line) for line in text.splitlines() if line.strip()]
    return commands


def run_job_args() -> list[str]:
    (create,) = [words for words in shell_commands() if words[:4] == ["gcloud", "run", "jobs", "create"]]
    (args,) = [word.removeprefix("--args=") for word in create if word.startswith("--args=")]
    return args.split(",")


def cron_job() -> dict[str, Any]:
    (job,) = [each for block in blocks("yaml") for each in yaml.safe_load_all(block) if each.get("kind") == "CronJob"]
    return job


def workflow() -> dict[str, Any]:
    (found,) = [each for block in blocks("yaml") for each in yaml.safe_load_all(block) if "jobs" in each]
    return found


def container() -> dict[str, Any]:
    (found,) = cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return found


def workflow_args() -> list[str]:
    steps = workflow()["jobs"]["gc"]["steps"]
    (run,) = [step["run"] for step in steps if step.get("run", "").startswith("tpujob ")]
    return shlex.split(run)[1:]


def cron_args() -> list[str]:
    (line,) = [line for block in blocks("cron") for line in block.splitlines() if "tpujob" in line]
    return shlex.split(line)[6:]


def every_recipe() -> list[list[str]]:
    return [run_job_args(), workflow_args(), list(container()["args"]), cron_args()]


@pytest.mark.parametrize("number", range(4))
def test_our_own_parser_takes_the_command_line_and_it_names_the_cloud_and_the_project(number: int) -> None:
    words = every_recipe()[number]
    context = typer_app.everything()[words[0]].make_context(words[0], list(words[1:]))
    assert words[0] == "gc"
    assert (context.params["cloud"], context.params["project"]) == ("google", "my-project")
    assert context.params["all_zones"] and not context.params["dry_run"] and not context.params["local"]


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 4))])
def test_the_command_of_each_recipe_deletes_from_a_container_that_knows_nothing(
    tpujob: Tpujob, tmp_path: Path, number: int
) -> None:
    dead = make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    other_project = elsewhere(tpujob, tmp_path)
    words = [word.replace("google", "emulated").replace("my-project", "emulated") for word in every_recipe()[number]]
    bare = {"PATH": "/usr/bin:/bin", **{name: other_project[name] for name in ("TPUJOB_ENDPOINT", "TPUJOB_TOKEN_FILE")}}
    done = ran(
        [sys.executable, "-m", "orchestrator.cli", *words],
        cwd=ROOT,
        env={**bare, "HOME": "/nonexistent", "TPUJOB_STATE_DIR": "/proc/nowhere"},
    )
    assert done.returncode == 0, done.stderr
    assert dead in done.stdout and names(tpujob) == set()


def test_gc_asks_for_no_more_than_the_role_of_the_page_permits(tpujob: Tpujob, tmp_path: Path) -> None:
    make(tpujob, "tpujob-k3f9ab-dead000000", **ours("dead000000", lease_in=-3600))
    queue(tpujob, "tpujob-k3f9ab-dead000001", **ours("dead000001", lease_in=-3600))
    env = elsewhere(tpujob, tmp_path)
    before = len(tpujob.requests())
    assert tpujob("gc", env=env).returncode == 0
    asked = {
        f"tpu.{row['operation']}"
        for row in tpujob.requests()[before:]
        if row["operation"] and not row["path"].startswith("/_emulator")
    }
    roles = (ROOT / "docs" / "permissions.md").read_text(encoding="utf-8")
    (role,) = re.findall(r"```yaml\n(title: tpujob gc\n.*?)```", roles, re.DOTALL)
    assert asked == set(yaml.safe_load(role)["includedPermissions"])


def test_without_a_project_the_recipes_fail_and_do_not_collect_the_emulator(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("gc", "--all-zones", "--cloud", "google")
    assert done.returncode == 64 and "no Google Cloud project" in done.stderr


def test_the_schedules_leave_gc_its_time() -> None:
    template = cron_job()["spec"]["jobTemplate"]["spec"]
    assert template["activeDeadlineSeconds"] > DEADLINE_S
    assert cron_job()["spec"]["concurrencyPolicy"] == "Forbid"
    assert template["template"]["spec"]["restartPolicy"] == "Never"
    assert workflow()["jobs"]["gc"]["timeout-minutes"] * 60 > DEADLINE_S
    (create,) = [words for words in shell_commands() if words[:4] == ["gcloud", "run", "jobs", "create"]]
    (timeout,) = [word.partition("=")[2] for word in create if word.startswith("--task-timeout=")]
    assert parse_duration(timeout) > DEADLINE_S
    triggers = dict[Any, Any](workflow())[True]  # YAML 1.1 reads the key `on` as a truth value, and GitHub does not
    schedules = [triggers["schedule"][0]["cron"], cron_job()["spec"]["schedule"]]
    schedules += [
        word.partition("=")[2] for words in shell_commands() for word in words if word.startswith("--schedule=")
    ]
    for line in schedules:
        minutes, *rest = line.split()
        assert len(rest) == 4 and re.fullmatch(r"[\d*,/]+", minutes), line


def test_the_container_of_the_page_starts_with_the_command_that_its_recipes_take_for_granted() -> None:
    (dockerfile,) = blocks("dockerfile")
    assert 'ENTRYPOINT ["tpujob"]' in dockerfile
    assert container()["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_shell_commands_are_shell() -> None:
    for block in blocks("sh"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    known = {"gcloud"}
    assert {words[0] for words in shell_commands() if "=" not in words[0]} <= known
