"""A worker that dies in the middle of a job: it is named, and the others go on."""

import subprocess
import threading

import pytest

from tests.cli_fixture import Cli
from tests.waiting import HANG_S, until

JOB = """
name: silent
tpu: {accelerator: v5litepod-16, zone: us-central1-a}
command: |
  for i in $(seq 30); do echo "line $i"; sleep 0.5; done
  echo done > "$TPUJOB_ARTIFACTS/done"
"""


@pytest.mark.exhaustive
def test_a_worker_that_dies_is_named_and_holds_up_neither_logs_nor_collection(cli: Cli) -> None:
    run = cli.start("run", cli.job(JOB))
    errors: list[str] = []
    reader = threading.Thread(target=_read, args=(run, errors), daemon=True)
    reader.start()
    logged = lambda worker: "".join(path.read_text() for path in cli.directory.glob(f"runs/*/logs/worker{worker}.log"))  # noqa: E731
    until(lambda: "line 1\n" in logged(3), "the first line of worker3")
    (node,) = cli.alive()
    cli.admin("POST", f"nodes/{node}:worker", {"worker": 3, "condition": "frozen"})
    until(
        lambda: any("waiting for worker3 (1 of 4): nothing came for" in line for line in errors), "the name of worker3"
    )
    until(lambda: all("line 30\n" in logged(worker) for worker in range(3)), "the logs of the others")
    assert "line 30\n" not in logged(3)
    cli.admin("POST", f"nodes/{node}:worker", {"worker": 3, "condition": "well"})
    assert run.wait(HANG_S) == 0, errors
    reader.join()
    assert any("worker3 answers again" in line for line in errors)
    assert len(list(cli.directory.glob("runs/*/worker*/artifacts/done"))) == 4
    assert logged(3).splitlines() == [f"line {number}" for number in range(1, 31)]


def _read(process: subprocess.Popen[str], into: list[str]) -> None:
    assert process.stderr is not None and process.stdout is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()
    into.extend(iter(process.stderr.readline, ""))
