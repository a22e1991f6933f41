"""What a person and a program see, as transcripts: ids and times are replaced, everything else is exact."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli_fixture import Cli

JOB = """
name: demo
tpu: {zone: us-central1-a}
command: echo hi
limits: {max_duration: 30m}
"""
EMULATED = "EMULATED Cloud TPU on this machine: no Google Cloud project is configured; nothing is billed"


def plain(text: str) -> str:
    """The text without what differs each time. (A quick job may end before the switch had time to say that it is armed.)"""
    text = re.sub(r"^switch .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"tpujob-[0-9a-z]{6}-[0-9a-z]{10}", "NODE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "DAY", text)
    text = re.sub(r"\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(
        r"^(|run +|.* runs/demo-)[0-9a-z]{10}(?=\t| ·)", r"\1RUN", text, flags=re.MULTILINE
    )  # perhaps all letters
    text = re.sub(r"(?<=tpujob show )[0-9a-z]{10}\b", "RUN", text)
    text = re.sub(r"\b(\d+ m )?\d+(\.\d+)? s\b", "SECONDS", text)
    return re.sub(r"\b(?=[0-9a-z]*\d)[0-9a-z]{10}\b", "RUN", text)


def test_a_run(cli: Cli) -> None:
    done = cli("run", cli.job(JOB))
    assert plain(done.stderr) == (
        f"cloud    {EMULATED}\n"
        "plan     v5litepod-8 · us-central1-a · v2-alpha-tpuv5-lite · on-demand · 1 worker · 8 cores emulated as 2"
        " · ends by DAY at the latest\n"
        "plan     on Google Cloud this would be about $9.60/h, at most $4.80 by the deadline (price table 2026-11)\n"
        "lease    NODE · no guardian (TPUJOB_GUARDIAN=off)\n"
        "ready    v5litepod-8 us-central1-a in SECONDS · NODE\n"
        "run      RUN · SECONDS · runs/demo-RUN · tpujob show RUN\n"
    )
    *lines, spans, cost, released = done.stdout.splitlines()
    assert lines == ["worker0 | hi", "result   succeeded"]
    assert spans.startswith("spans ") and plain(released) == "released NODE absent (checked TIME)"
    assert cost == "cost     $0.00 (emulated; on Google Cloud less than $0.01, price table 2026-11)"


def test_a_plan(cli: Cli) -> None:
    done = cli("plan", cli.job(JOB))
    assert done.stdout == "v5litepod-8\tus-central1-a\tv2-alpha-tpuv5-lite\tabout $9.60/h\tasked for\n"
    assert not (cli.directory / "state" / "emulator").exists(), "a plan starts nothing"


def test_a_plan_as_json_has_the_exact_request(cli: Cli) -> None:
    shape = json.loads(cli("plan", cli.job(JOB), "--json").stdout)
    assert sorted(shape) == [
        "candidates", "cloud", "cores", "dropped", "job", "max_duration_s", "order", "project", "race", "request", "wait_s",
        "workers", "worst_case_usd",
    ]  # fmt: skip
    assert shape["request"]["method"] == "POST"
    assert shape["request"]["body"]["acceleratorType"] == "v5litepod-8"
    assert shape["request"]["body"]["labels"]["tpujob"] == "1"
    assert shape["worst_case_usd"] == pytest.approx(4.8)


def test_a_dry_run_of_up_prints_the_request_and_creates_nothing(cli: Cli) -> None:
    done = cli("up", "--zone", "us-central1", "--dry-run")
    assert done.returncode == 0 and json.loads(done.stdout)["body"]["runtimeVersion"] == "v2-alpha-tpuv5-lite"
    assert not (cli.directory / "state" / "emulator").exists()


def test_status_of_nothing(cli: Cli) -> None:
    done = cli("status")
    assert done.stdout == "nothing is alive and nothing is owed that this machine knows of\n"
    assert done.stderr == f"cloud    {EMULATED}\n"


def test_status_of_a_held_slice(cli: Cli) -> None:
    cli("up", "alice", "--zone", "us-central1-a")
    assert plain(cli("status").stdout) == (
        "alice\tNODE\tv5litepod-8\tus-central1-a\tREADY\tidle\tSECONDS\tuntil DAY (1 d left)\t"
        "emulated, free (less than $0.01 so far on Google Cloud)\n"
    )
    (row,) = json.loads(cli("status", "--json").stdout)["slices"]
    assert " ".join(row) == (
        "name node project zone accelerator_type spot purpose lease state created_at deadline ends_at hold_until "
        "down_at in_use usd_per_hour usd_so_far budget_usd mode emulated"
    )


def test_list_and_show_of_a_run(cli: Cli) -> None:
    cli("run", cli.job(JOB))
    assert plain(cli("list").stdout) == "RUN\tdemo\tsucceeded\tDAY\tSECONDS\temulated\n"
    shown = plain(cli("show", "demo").stdout)
    assert "run      RUN · demo · succeeded · SECONDS · emulated\n" in shown
    assert "story    DAY  proven gone: get 404, complete list without it, create settled\n" in shown
    assert " ".join(cli.only_run()) == (
        "run name state rc detail cloud job spec created_at ended_at directory lease story figures metrics files"
    )


def test_logs_of_a_run(cli: Cli) -> None:
    cli("run", cli.job(JOB))
    assert cli("logs", "demo").stdout == "worker0 | hi\n"
    assert cli("logs", "demo", "-f", "--worker", "0").stdout == "hi\n"
    assert cli("logs", "demo", "--json").stdout == '{"worker": 0, "line": "hi"}\n'
    missing = cli("logs", "demo", "--worker", "5")
    assert missing.returncode == 64 and "has no log of worker 5" in missing.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "../../x"], 64, "there is no run '../../x'"),
        (["run", "missing.yaml"], 64, "missing.yaml: there is no such file"),
        (["up", "Bad_Name"], 64, "'Bad_Name' is not a job name"),
        (["up", "--zone", "us-centrall1"], 64, "'us-centrall1' is not a zone or region with TPUs"),
        (["up", "--accelerator", "v99-8"], 64, "'v99-8' is not a known accelerator type"),
        (["up", "--ttl", "0"], 64, "--ttl 0: "),
        (["up", "--cloud", "azure"], 64, "azure"),
        (["stop", "nobody"], 64, "there is no slice named 'nobody'"),
        (["ssh"], 64, "there is no slice"),
        (["nonsense"], 64, "No such command 'nonsense'"),
        (["up", "--project", "-oProxyCommand=x"], 64, "-oProxyCommand=x"),
    ],
)
def test_a_mistake_gets_a_line_a_code_and_no_traceback(cli: Cli, words: list[str], code: int, said: str) -> None:
    done = cli(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (cli.directory / "state" / "emulator").exists(), "nothing was created"
