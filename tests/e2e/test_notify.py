"""Who is told: real runs with a receiver on loopback, whose address is written nowhere."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.notify.outbox import Outbox
from tests.cli_fixture import Cli, kill_all
from tests.fakes.api import StubApi, StubReply
from tests.waiting import until

PATH = "/services/T0/B0/s3cr3t-s3cr3t"
HELLO = """
name: hello
tpu: {zone: us-central1}
command: echo hello
"""
WAITS = """
name: waits
tpu: {zone: us-central1-a, provisioning: spot}
command: echo waits; sleep 300
on_preemption: restart
notify: ${env:HOOK}
"""


@pytest.fixture
def told(cli: Cli, stub: StubApi) -> Iterator[Cli]:
    """A command line whose settings name the receiver."""
    stub.answers(StubReply(200, "ok"))
    path = Path(cli.env["XDG_CONFIG_HOME"]) / "tpujob" / "settings.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"notify: {stub.url}{PATH}\n")
    path.chmod(0o600)
    yield cli
    kill_all(cli.local("orchestrator.notify.sender"))


def messages(stub: StubApi) -> list[str]:
    """The run and the event of every message that arrived."""
    shapes = [json.loads(asked.body)["tpujob"]["messages"] for asked in stub.asked]
    return [f"{each['name']} {each['event']}" for shape in shapes for each in shape]


def where_it_stands(directory: Path, word: bytes) -> list[str]:
    """Every file below the directory that has this word, but for the settings."""
    files = [Path(parent, name) for parent, _, names in os.walk(directory) for name in names]
    return [
        str(path) for path in files if path.name != "settings.yaml" and path.is_file() and word in path.read_bytes()
    ]


def test_a_run_is_told_at_its_start_and_its_end_and_its_address_stands_nowhere(told: Cli, stub: StubApi) -> None:
    done = told("run", told.job(HELLO), env={"TPUJOB_TRANSCRIPT": str(told.directory / "transcript")})
    assert done.returncode == 0, done.stderr
    until(lambda: len(messages(stub)) == 2, "both messages")
    assert messages(stub) == ["hello started", "hello ended"] and len(stub.asked) == 1
    assert [asked.path for asked in stub.asked] == [PATH]
    assert "hello (" in json.loads(stub.asked[0].body)["text"]
    said = [done.text, told("show", "hello", "--json").text, told("status", "--json").text, told("doctor").text]
    said += [told("notify").text, told("plan", told.job(HELLO), "--json").text, told("report", "hello").text]
    assert "127.0.0.1 answered 200" in said[4] and "s3cr3t" not in "".join(said)
    assert where_it_stands(told.directory, b"s3cr3t") == []


def test_a_dead_receiver_delays_nothing_and_is_tried_again_by_the_timer(told: Cli, stub: StubApi) -> None:
    stub.answers(StubReply(503))
    done = told("run", told.job(HELLO))
    assert done.returncode == 0 and "503" not in done.text, done.stderr
    until(lambda: Outbox(told.own_state).problems(0.0), "the end of a try")
    kill_all(told.local("orchestrator.notify.sender"))
    doctor = told("doctor").stdout
    assert "NOT  notify" in doctor and "2 messages waiting: 127.0.0.1 answered 503" in doctor
    kill_all(told.local("orchestrator.notify.sender"))
    stub.answers(StubReply(200))
    stub.asked.clear()
    Outbox(told.own_state).hurry()
    assert told("gc", "--local", "--quiet").returncode == 0
    assert messages(stub) == ["hello started", "hello ended"], (
        "with the end of a timer's command systemd ends all of it"
    )
    assert "live notify" in told("doctor").stdout


@pytest.mark.ci
def test_a_preempted_run_is_told_as_it_goes_on_elsewhere_also_from_a_variable(cli: Cli, stub: StubApi) -> None:
    stub.answers(StubReply())
    process = cli.start("run", cli.job(WAITS), env={"HOOK": f"{stub.url}{PATH}"})
    try:
        cli.until("waits", process)
        (node,) = cli.alive()
        assert cli("emulator", "preempt", node.rpartition("/")[2]).returncode == 0
        cli.until("waits", process)
        assert cli("cancel", "waits").returncode == 0
        _, said = process.communicate()
    finally:
        process.kill()
    until(lambda: "waits ended" in messages(stub), "the end")
    assert messages(stub) == [f"waits {each}" for each in ("started", "preempted", "restarted", "started", "ended")], (
        said
    )
    assert "canceled" in json.loads(stub.asked[-1].body)["text"]
    assert where_it_stands(cli.directory, b"s3cr3t") == [] and "s3cr3t" not in said
    kill_all(cli.local("orchestrator.notify.sender"))


def test_a_job_without_its_variable_is_refused_before_anything_is_created(cli: Cli) -> None:
    refused = cli("run", cli.job(WAITS))
    assert refused.returncode == 64 and "job.yaml:6: notify: your variable HOOK is not set" in refused.stderr
    assert cli("notify").returncode == 64
