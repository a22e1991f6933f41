"""The recipes of docs/gc.md: they parse, our parser takes their command lines, and the container's command deletes."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import typer_app
from orchestrator.core.text.durations import parse_duration
from orchestrator.engine.leases.gc import DEADLINE_S
from tests import ROOT
from tests.cli_fixture import Tpujob
from tests.contract.commands.test_gc import elsewhere, make, names, ours, queue
from tests.waiting import HANG_S

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
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *words],
        cwd=ROOT,
        env={**bare, "HOME": "/nonexistent", "TPUJOB_STATE_DIR": "/proc/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
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
    triggers = workflow()[True]  # YAML 1.1 reads the key `on` as a truth value, and GitHub does not
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
