"""The Python API as its users meet it: the examples of docs/python-api.md, mypy, Ctrl-C, killed kernels, threads."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpujob as api
from orchestrator.promise.lease import periods
from tests import ROOT
from tests.cli_fixture import Cli, Tpujob
from tests.waiting import HANG_S, until

PAGE = ROOT / "docs" / "python-api.md"
FENCE = re.compile(r"^```python(?P<marks>[ \w]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
TRAIN = """
import json, os
with open(os.path.join(os.environ["TPUJOB_ARTIFACTS"], "metrics.json"), "w") as file:
    json.dump({"test_accuracy": 0.9}, file)
print("trained")
"""
JOB = "tpu:\n  accelerator: v5litepod-8\ncommand: python3 train.py\ncode: .\n"


def examples() -> list[object]:
    page = PAGE.read_text(encoding="utf-8")
    return [
        pytest.param(
            found["code"],
            id=f"line{page[: found.start()].count(chr(10)) + 1}",
            marks=[getattr(pytest.mark, name) for name in found["marks"].split()],
        )
        for found in FENCE.finditer(page)
    ]


def python(tpujob: Cli, code: str, **options: Any) -> subprocess.Popen[str]:
    """A fresh interpreter that runs the code, in the directory of the test unless `cwd` is another one."""
    return tpujob.start("-c", code, program=(sys.executable,), **options)


def succeeded(process: subprocess.Popen[str]) -> str:
    """Its stdout, once it has ended with 0."""
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    return out


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("code", examples())
def test_an_example_of_the_page_runs(tpujob: Tpujob, code: str) -> None:
    project = tpujob.directory / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (project / "job.yaml").write_text(JOB)
    (project / "example.py").write_text(code)  # a function's source is read from a file
    assert succeeded(
        tpujob.start("example.py", program=(sys.executable,), cwd=project, env={"TPUJOB_CLOUD": "emulated"})
    ).strip()
    assert tpujob.alive() == []


def test_the_page_names_every_method_and_none_that_does_not_exist() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Methods and commands")[2]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    methods = {name for name in vars(api.Client) if not name.startswith("_")}
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == methods


# -- types -------------------------------------------------------------------------------------------------------------

WRONG = """\
import tpujob
tpujob.Tpu(acclerator="v5e-8")
tpujob.Job(command=1)
tpujob.Train(optimizer="lion")
tpujob.Client(cloud="aws")
tpujob.Client().run("job.yaml")
tpujob.Client().slice("v5e-8").exec(["true"], workers="some")
tpujob.Nothing
cost: float = tpujob.Client().run(tpujob.Job(command="true")).cost_usd
tpujob.Job(command="true").command = "false"
tpujob.Notice("stage")
tpujob.function("v5e-8")(len)(1)
tpujob.function("v5e-8")(len).local()
found: str = tpujob.Client().call(len, "four")
tpujob.function(backend="gpu")
"""


@pytest.mark.ci
def test_mypy_accepts_a_user_of_the_api_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    user, wrong = ROOT / "tests" / "e2e" / "install" / "api_user.py", tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    argv = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run([*argv, str(user), str(wrong)], cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"(\w+)\.py:(\d+): error", done.stdout)
    assert done.returncode == 1 and [line for name, line in found if name == user.stem] == [], done.stdout + done.stderr
    assert {int(line) for name, line in found if name == "wrong"} == {*range(2, len(WRONG.splitlines()) + 1)}, (
        done.stdout
    )


# -- a slice, in whichever way its block ends --------------------------------------------------------------------------

BLOCK = """
import sys, threading, time
import tpujob
try:
    with tpujob.Client("emulated", on_event=lambda event: None).slice("v5litepod-8") as s:
        print("begun", s.name, flush=True)
        {inside}
finally:
    print("ended", flush=True)
"""


@pytest.mark.ci
@pytest.mark.parametrize(("inside", "code", "error"), [
    ("pass", 0, ""), ("1 / 0", 1, "ZeroDivisionError"), ("sys.exit(7)", 7, ""),
    ("s.exec('exit 4', check=True)", 1, "CommandFailed"), ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
])  # fmt: skip
def test_a_slice_is_absent_however_its_block_ends(tpujob: Tpujob, inside: str, code: int, error: str) -> None:
    process = python(tpujob, BLOCK.format(inside=inside))
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode in (code, 128 - code), err
    assert error in err
    assert "begun tpujob-" in out and "ended" in out
    assert tpujob.lived() == 1 and tpujob.alive() == []
    (lease,) = tpujob.leases()
    assert lease.gone_at is not None
    assert not any((tpujob.own_state / "leases").iterdir()), "its keys open nothing any more"


def test_ctrl_c_while_the_slice_is_created_ends_in_a_proven_release(cli: Cli) -> None:
    cli.settings(provision_s=600)
    process = python(cli, BLOCK.format(inside="pass"))
    until(cli.alive, "a slice that is being created")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert "begun" not in out and "ended" in out
    assert "KeyboardInterrupt" in err
    assert cli.alive() == []


def test_ctrl_c_in_a_run_raises_interrupted_with_the_result_of_a_proven_release(tpujob: Tpujob) -> None:
    code = """
import tpujob
job = tpujob.Job(command="echo begun; sleep 600", tpu=tpujob.Tpu(accelerator="v5litepod-8"))
try:
    tpujob.Client("emulated", on_event=lambda e: isinstance(e, tpujob.LogLines) and print(*e.lines, flush=True)).run(job)
except tpujob.Interrupted as error:
    print(error.result.state, error.result.released, error.exit_code)
"""
    process = python(tpujob, code)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert succeeded(process) == "interrupted True 130\n"
    assert tpujob.lived() == 1 and tpujob.alive() == []


@pytest.mark.ci
def test_a_program_that_ends_without_leaving_the_block_releases_the_slice(tpujob: Tpujob) -> None:
    """As a notebook does whose cell called `__enter__`, and whose kernel is shut down."""
    code = "import tpujob; s = tpujob.Client('emulated').slice('v5litepod-8').__enter__(); print(s.name)"
    succeeded(python(tpujob, code))
    assert tpujob.lived() == 1 and tpujob.alive() == []


FORKING = """
import os, sys, time
import tpujob
with tpujob.Client("emulated").slice("v5litepod-8") as s:
    if os.fork() == 0:
        try:
            s.exec("true")
        except tpujob.UserError as error:
            print(error, flush=True)
        {child}
    {parent}
    print(s.exec("echo still here")[0].output, end="", flush=True)
"""


def test_a_forked_child_that_leaves_the_block_takes_nothing_away(tpujob: Tpujob) -> None:
    code = FORKING.format(child="sys.exit(5)", parent="print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)")
    out = succeeded(python(tpujob, code)).splitlines()
    assert out == ["a forked child cannot use the slice of its parent", "5", "still here"]
    assert tpujob.lived() == 1 and tpujob.alive() == []


def test_down_in_another_process_ends_the_lending_and_the_block_hears_of_it(tpujob: Tpujob) -> None:
    code = BLOCK.format(inside="while True: s.exec('true', workers=0); time.sleep(0.05)")
    process = python(tpujob, code)
    assert process.stdout is not None and process.stdout.readline().startswith("begun")
    assert tpujob("down", "slice").returncode == 0
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert re.search(
        r"^orchestrator\.errors\.Vanished: .* was released by another tpujob command", err, re.MULTILINE
    ), err
    assert tpujob.alive() == []


# -- threads and events ------------------------------------------------------------------------------------------------


def test_runs_in_threads_of_one_process_are_independent(tpujob: Tpujob) -> None:
    clients = [api.Client("emulated"), api.Client("emulated")]

    def run(number: int) -> api.RunResult:
        job = api.Job(command=f"echo {number}", tpu=api.Tpu(accelerator="v5litepod-8"), name=f"job{number}")
        return clients[number % 2].run(job)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, range(3)))
    assert [result.name for result in results] == ["job0", "job1", "job2"]
    assert len({result.run for result in results}) == 3
    for number, result in enumerate(results):
        assert (result.directory / "logs" / "worker0.log").read_text() == f"{number}\n"
    assert tpujob.alive() == []


def test_an_exception_in_on_event_keeps_no_slice_alive_and_is_raised_at_the_end(tpujob: Tpujob) -> None:
    seen: list[api.Event] = []

    def careless(event: api.Event) -> None:
        seen.append(event)
        if isinstance(event, api.LogLines):
            raise ZeroDivisionError("in on_event")

    job = api.Job(command="echo one; sleep 1; echo two", tpu=api.Tpu(accelerator="v5litepod-8"))
    with pytest.raises(ZeroDivisionError, match="in on_event"):
        api.Client("emulated", on_event=careless).run(job)
    assert isinstance(seen[-1], api.LogLines)
    assert tpujob.lived() == 1 and tpujob.alive() == []


def test_a_run_that_another_object_followed_raises_the_same_error(tpujob: Tpujob) -> None:
    client = api.Client("emulated")
    with pytest.raises(api.PayloadFailed) as first:
        client.run(api.Job(command="exit 3", tpu=api.Tpu(accelerator="v5litepod-8"), name="failing"))
    with pytest.raises(api.PayloadFailed) as raised:
        client.get("failing").wait()
    run = client.get("failing").id
    for error in (first.value, raised.value):
        assert (error.rc, error.exit_code, error.message) == (3, 3, "the job failed on worker0 with code 3")
        assert error.hint == f"`tpujob logs {run} --worker 0` prints what worker0 wrote"
        assert (error.result.run, error.result.exit_code, error.result.error) == (run, 3, error)


def test_a_canceled_run_raises_canceled_where_it_is_waited_for(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    monkeypatch.setattr(periods, "GOOGLE", replace(periods.GOOGLE, poll_s=6.0))  # `submit` waits for the watchdog
    seen: list[api.Event] = []
    client = api.Client("emulated", on_event=seen.append)
    run = client.submit(api.Job(command="sleep 600", tpu=api.Tpu(accelerator="v5litepod-8")))
    left = seen[-1]
    assert isinstance(left, api.RunResult) and (left.state, left.detached) == ("running", True)
    assert left.exit_code is None and left.ended_at is None
    run.cancel()
    with pytest.raises(api.Canceled, match="canceled by `tpujob cancel`") as raised:
        run.wait()
    assert (raised.value.exit_code, raised.value.result.state) == (71, "canceled")
    assert raised.value.result.ended_at is not None


def test_a_job_in_python_that_ships_what_is_not_there_names_the_field(tpujob: Tpujob) -> None:
    with pytest.raises(api.JobSpecError, match=r"^code: /.*/src is not a directory; paths are relative to /") as raised:
        api.Client("emulated").plan(api.Job(command="true", code="src"))
    assert raised.value.hint is None
    with pytest.raises(api.JobSpecError, match=r"^env\.KEY: your variable NEVER_SET is not set"):
        api.Client("emulated").run(api.Job(command="true", env={"KEY": "${env:NEVER_SET}"}))


def test_a_run_is_found_again_and_nothing_is_printed(tpujob: Tpujob, capfd: pytest.CaptureFixture[str]) -> None:
    client = api.Client("emulated")
    result = client.run(api.Job(command="echo hello", tpu=api.Tpu(accelerator="v5litepod-8"), name="found"))
    run = client.get("found")
    assert (run.id, run.state) == (result.run, "succeeded")
    assert [(line.worker, line.text) for line in run.logs()] == [(0, "hello")]
    assert [summary.run for summary in client.runs()] == [result.run]
    assert client.show(run).state == "succeeded"
    run.cancel()  # it has ended: nothing happens
    with pytest.raises(api.UnknownRun):
        client.get("never")
    assert capfd.readouterr() == ("", "")
