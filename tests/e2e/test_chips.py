"""A job that does not use its TPU is named: from the files that stand for an emulated worker's chips to the log, status, and page."""

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cli_fixture import Tpujob
from tests.waiting import HANG_S, until

WAIT = 'while [ ! -e ~/{0} ]; do sleep 0.1; done'
OPEN = 'exec 4<"$TPUJOB_EMULATED_CHIPS/accel0"'
JOB = "name: mine\ntpu: {{zone: us-central1-a, accelerator: {kind}}}\ncommand: |\n  {command}\n"
# Process 0 listens, and the others connect to it, as those of a job that is one world do.
WORLD = """python3 -c '
import os, socket, time
chip = open(os.environ["TPUJOB_EMULATED_CHIPS"] + "/accel0")
host, port = os.environ["TPUJOB_COORDINATOR"].split(":")
if os.environ["TPUJOB_WORKER"] == "0":
    server = socket.create_server((host, int(port)))
    ends = [server.accept() for _ in range(int(os.environ["TPUJOB_WORKERS"]) - 1)]
else:
    while True:
        try:
            end = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.1)
while not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.1)
'""".replace("\n", "\n  ")


@pytest.fixture
def chips(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Tpujob:
    """Workers have chips, and the five minutes are three seconds."""
    monkeypatch.setenv("TPUJOB_EMULATED_SPEED", "100")
    tpujob.settings(chips=True)
    return tpujob


def job(cli: Tpujob, *commands: str, kind: str = "v5litepod-8") -> str:
    return cli.job(JOB.format(kind=kind, command="\n  ".join(commands)))


def start(cli: Tpujob, job: str) -> subprocess.Popen[str]:
    return cli.start("run", job, stderr=subprocess.STDOUT)


def touch(cli: Tpujob, name: str) -> None:
    for home in cli.state_dir.glob("vms/*/worker*/home"):
        (home / name).touch()


def looking(cli: Tpujob) -> list[psutil.Process]:
    places = {str(home) for home in cli.state_dir.glob("vms/*/worker*/home")}
    return [p for p in psutil.process_iter(["cmdline", "environ"]) if "chips" in (p.info["cmdline"] or ()) and (p.info["environ"] or {}).get("HOME") in places]


def test_a_job_that_opens_no_chip_is_named_with_its_cost_until_it_does(chips: Tpujob) -> None:
    process = start(chips, job(chips, WAIT.format("open"), OPEN, WAIT.format("go")))
    assert process.stdout is not None
    line = next(line for line in process.stdout if "no process holds a TPU chip" in line)
    assert "worker0 (1 of 1): no process holds a TPU chip 3 s after the job began, $0." in line and "`jax[tpu]`" in line
    assert "no process holds a TPU chip" in chips("status").stdout
    touch(chips, "open")
    until(lambda: "TPU chip" not in chips("status").stdout)
    until(lambda: not looking(chips), "the end of the look")
    touch(chips, "go")
    assert "no process holds" not in process.communicate(timeout=HANG_S)[0] and process.returncode == 0
    (page,) = Path("runs").glob("*/report.html")
    assert "no process holds a TPU chip 3 s after the job began; the run: $0." in page.read_text()


def test_a_chip_that_an_earlier_process_holds_is_named_at_once_with_the_process(chips: Tpujob) -> None:
    assert chips("up", "mine", "--zone", "us-central1-a").returncode == 0
    leftover = 'exec 4<"$TPUJOB_EMULATED_CHIPS/accel0"; nohup sleep 1234 </dev/null >/dev/null 2>&1 &'
    assert chips("ssh", "mine", "--", leftover).returncode == 0
    process = start(chips, job(chips, WAIT.format("go")))
    assert process.stdout is not None
    line = next(line for line in process.stdout if "the TPU is in use" in line)
    assert "(sleep 1234) holds a chip; what opens it fails. hint: `sudo kill " in line
    until(lambda: "(sleep 1234) holds a chip, $0." in chips("status").stdout)
    touch(chips, "go")
    process.communicate(timeout=HANG_S)


def test_workers_that_are_connected_to_no_other_are_named(chips: Tpujob) -> None:
    process = start(chips, job(chips, OPEN, WAIT.format("go"), kind="v5litepod-16"))
    chips.until("worker0 to worker3 (4 of 4): holds its chips for 3 s, connected to no other worker", process)
    touch(chips, "go")
    process.communicate(timeout=HANG_S)


def test_workers_of_one_world_are_not_looked_at_any_more(chips: Tpujob) -> None:
    process = start(chips, job(chips, WORLD, kind="v5litepod-16"))
    until(lambda: len(looking(chips)) == 4, "the looks to begin")
    until(lambda: not looking(chips), "the end of the looks")
    touch(chips, "go")
    assert "alone" not in process.communicate(timeout=HANG_S)[0] and process.returncode == 0
    assert not [*Path("runs").glob("*/worker0/artifacts/tpu-metrics.jsonl")]
