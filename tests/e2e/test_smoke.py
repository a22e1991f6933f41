"""`tpujob smoke`, with the real CLI, against the emulator: every step, Ctrl-C at any moment, and every fault there is."""

import contextlib
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from cloud_tpu_emulator.faults.kinds import KINDS, NODES, QUEUED
from orchestrator.cli.console.output import open_client
from orchestrator.drill.smoke import Smoke, Step, Wish
from orchestrator.promise.lease.lease import LeaseState
from tests.cli_fixture import Cli

ZONE = "us-central1-a"
AT = ("--zone", ZONE, "--yes")
# Slower than usual: the watchdog of a slice whose labels end its claim leaves gc more than some seconds.
GUARDED = {"TPUJOB_GUARDIAN": "", "TPUJOB_EMULATED_SPEED": "10"}
LONG_S = 60.0  # for steps of some seconds: a fault may hold one up for an hour
BRIEF = {"stuck": {"seconds": 20.0}}  # instead of an hour, which is more than the proof of a delete waits for
ASKED = (*NODES, *QUEUED, "operations.get", "operations.list")  # operations that it calls


def calls(cli: Cli) -> list[dict[str, Any]]:
    """The lines of the transcript, without one that is being written."""
    rows = []
    for file in cli.own_state.glob("smoke/*/transcript.jsonl"):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def steps(cli: Cli) -> list[str]:
    return [row["step"] for row in calls(cli) if "step" in row]


def creates(cli: Cli) -> int:
    return sum(row.get("method") == "POST" and "Id=tpujob-" in row["path"] for row in calls(cli))


def there(cli: Cli) -> list[dict[str, Any]]:
    """Every node and every queued request that the cloud has."""
    status = cli.admin("GET", "status")
    return [*status["nodes"], *status["queued_resources"]]


def deleted_by(cli: Cli) -> list[set[str]]:
    """Who deleted each node, in the order of their creation."""
    nodes = [bill["name"].rpartition("/")[2] for bill in cli.bills()]
    rows = cli.requests("nodes.delete")
    return [{row["caller"] for row in rows if row["node"] == node and row["status"] == 200} for node in nodes]


def test_each_layer_deletes_what_it_should_and_the_transcript_tells_it_without_names(cli: Cli) -> None:
    done = cli("smoke", *AT, "--json", env=GUARDED)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] and said["usd_at_most"] <= 2
    assert [step["step"] for step in said["steps"]] == ["job", "ssh", "gc", "watchdog", "queue", "left"]
    assert cli.alive() == [] and all(lease.state == LeaseState.GONE for lease in cli.leases())
    assert deleted_by(cli)[:2] == [{"client"}, {"vm"}]  # by gc, for the ledger still had it open, and by its watchdog
    assert cli.requests("queuedResources.delete", "client") and not there(cli)
    (written,) = cli.own_state.glob("smoke/*/transcript.jsonl")
    text = written.read_text()
    assert "projects/PROJECT/" in text and '"verb": "delete"' in text and "startup-script" in text
    for secret in ("ssh-ed25519 AAAA", "projects/emulated", "127.0.0.1", "gserviceaccount", "Bearer"):
        assert secret not in text


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda cli: creates(cli) == 1, id="creating"),
        *(
            pytest.param(moment, id=name, marks=pytest.mark.exhaustive)
            for name, moment in {
                "training": lambda cli: any(
                    b'"phase"' in f.read_bytes() for f in cli.own_state.glob("smoke/*/*-run.out")
                ),
                "ssh": lambda cli: steps(cli) == ["job"],
                "gc": lambda cli: steps(cli) == ["job", "ssh"],
                "creating again": lambda cli: creates(cli) == 2,
                "waiting for the watchdog": lambda cli: (
                    creates(cli) == 2 and list(cli.own_state.glob("smoke/*/*-up.out"))
                ),
                "queue": lambda cli: creates(cli) == 3,
            }.items()
        ),
    ],
)
def test_ctrl_c_leaves_nothing_at_any_moment(cli: Cli, moment: Callable[[Cli], object]) -> None:
    command = cli.begin("smoke", *AT, env=GUARDED)
    command.until_true(lambda: moment(cli), "the moment")
    command.press()
    command.until("stopping")
    if not command.ended:
        command.press()  # an impatient person
    assert command.code() == 130, command.said
    assert steps(cli)[-1] == "left"
    assert cli.alive() == [] and not there(cli)
    assert all(lease.state == LeaseState.GONE for lease in cli.leases())


def play(cli: Cli, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Step]:
    """Play some of the steps, and `left`."""
    for name, value in (cli.env | {"TPUJOB_GUARDIAN": ""}).items():
        monkeypatch.setenv(name, value)
    directory, other = cli.own_state / "smoke" / "one", cli.directory / "other"
    for each in (directory, other):
        each.mkdir(parents=True)
    (other / "emulator").symlink_to(cli.emulator_directory)
    monkeypatch.setenv("TPUJOB_TRANSCRIPT", str(directory / "transcript.jsonl"))
    wish = Wish("v5litepod-1", (ZONE,), 1.2)
    end_claim = open_client().end_claim
    played = Smoke(wish, directory, other, end_claim, print, print, lambda: None, steps_s=LONG_S, needs_s={})
    played.play(names)
    return played.steps


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM,)]
)
def test_the_first_of_several_signals_decides_and_nothing_is_left(cli: Cli, numbers: tuple[int, ...]) -> None:
    command = cli.begin("smoke", *AT, env=GUARDED)
    command.until_true(lambda: creates(cli) == 1, "the first create")
    for number in numbers:
        command.press(number)
    assert command.code() == 128 + numbers[0], command.said
    assert steps(cli)[-1] == "left" and cli.alive() == [] and not there(cli)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [name for name in KINDS if not name.startswith(("relay_", "content_"))])
def test_no_fault_makes_it_leave_a_slice_or_say_what_is_not_true(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for operation in set(ASKED) & set(KINDS[kind].operations):
        cli.fault(kind, operation, when={"first": 1}, **BRIEF.get(kind, {}))
    played = play(cli, monkeypatch, "job", "gc", "queue")
    assert (played[-1].name, played[-1].ok) == ("left", True), played
    assert cli.alive() == [] and not there(cli)
    cli.admin("DELETE", "faults")
    assert cli("gc", "--local").returncode in (0, 75)
    assert cli("down", "--all").returncode == 0
    assert cli.alive() == [] and not there(cli)
