"""A job that does not use its TPU is named, from the files that stand for an emulated worker's chips to log, status, page."""

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cli_fixture import Tpujob
from tests.waiting import HANG_S, until

GO = "while [ ! -e ~/go ]; do sleep 0.1; done"
WORKS = """echo '{"duty_cycle_percent":[7.5]}' >>"$TPUJOB_ARTIFACTS/tpu-metrics.jsonl"; """
OPEN = 'exec 4<"$TPUJOB_EMULATED_CHIPS/accel0"'
# The processes of worker 0 have a server, and those of the others a connection to it, as in a job that is one world.
WORLD = """
    port=${TPUJOB_COORDINATOR#*:}
    if [ $TPUJOB_WORKER = 0 ]; then python3 -m http.server --bind 127.0.0.1 $port >&2 & else
      until (exec 5<>/dev/tcp/127.0.0.1/$port) 2>&-; do sleep 0.1; done; exec 5<>/dev/tcp/127.0.0.1/$port; fi"""


@pytest.fixture
def chips(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Tpujob:
    """Workers have chips, and the five minutes are three seconds."""
    monkeypatch.setenv("TPUJOB_EMULATED_SPEED", "100")
    tpujob.settings(chips=True)
    return tpujob


def started(cli: Tpujob, *commands: str, kind: str = "v5litepod-8") -> subprocess.Popen[str]:
    command = "\n    ".join(commands)
    job = cli.job(f"name: mine\ntpu: {{zone: us-central1-a, accelerator: {kind}}}\ncommand: |\n    {command}\n")
    return cli.start("run", job, stderr=subprocess.STDOUT)


def line_of(process: subprocess.Popen[str], part: str) -> str:
    return next(line for line in process.stdout or () if part in line)


def touch(cli: Tpujob, name: str) -> None:
    for home in cli.state_dir.glob("vms/*/worker*/home"):
        (home / name).touch()


def looks() -> int:
    return sum("chips" in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize("use", [OPEN, WORKS])
def test_a_job_that_uses_no_chip_is_named_with_its_cost_until_it_does(chips: Tpujob, use: str) -> None:
    process = started(chips, GO.replace("go", "use"), use, GO)
    line = line_of(process, "no process holds a TPU chip")
    assert "worker0 (1 of 1): no process holds a TPU chip 3 s after the job began, $0." in line and "`jax[tpu]`" in line
    assert "no process holds a TPU chip 3 s after the job began, $0." in chips("status").stdout
    touch(chips, "use")
    until(lambda: "TPU chip" not in chips("status").stdout)
    touch(chips, "go")
    assert "no process holds" not in process.communicate(timeout=HANG_S)[0] and process.returncode == 0
    (page,) = Path("runs").glob("*/report.html")
    assert "no process holds" not in page.read_text(), "it has used it since"


@pytest.mark.ci
def test_a_chip_that_an_earlier_process_holds_is_named_at_once_with_the_process(chips: Tpujob) -> None:
    assert chips("up", "mine", "--zone", "us-central1-a").returncode == 0
    assert chips("ssh", "mine", "--", f"{OPEN}; nohup sleep 1234 </dev/null >/dev/null 2>&1 &").returncode == 0
    process = started(chips, GO)
    assert "(sleep 1234) holds a chip; what opens it fails. hint: `sudo kill " in line_of(process, "the TPU is in use")
    until(lambda: "(sleep 1234) holds a chip, $0." in chips("status").stdout)
    touch(chips, "go")
    process.communicate(timeout=HANG_S)


@pytest.mark.ci
def test_workers_that_are_connected_to_no_other_are_named_and_those_of_one_world_are_not(chips: Tpujob) -> None:
    process = started(chips, OPEN, WORKS, GO, kind="v5litepod-16")
    line_of(process, "worker0 to worker3 (4 of 4): holds its chips for 3 s, connected to no other worker")
    touch(chips, "go")
    process.communicate(timeout=HANG_S)
    (page,) = Path("runs").glob("*/report.html")
    assert "connected to no other worker: it seems to train alone; the run: $0." in page.read_text()
    process = started(chips, OPEN, WORLD, GO, kind="v5litepod-16")
    until(lambda: looks() == 4, "the looks")
    until(lambda: looks() == 0, "the end of the looks")
    touch(chips, "go")
    assert "alone" not in process.communicate(timeout=HANG_S)[0] and process.returncode == 0
