"""From Ctrl-C to the delete request: the time until it arrives on the wire, seen by a relay in front of the emulator.

Four moments, each again and again and never twice at the same instant of it. Every run must end with 130 and leave no node.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.processes import TIMEOUT_S
from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob, wait_for
from harness.witness import Witness

TARGET_S = 0.3
SHIPPED_BYTES = 32 << 20
BEGUN_BYTES = 1 << 20  # so much of it has arrived when Ctrl-C comes
STAGGER_S = 0.037  # each round presses so much later than the one before
JOBS = {
    "small": f"""\
name: talkative
tpu: {{accelerator: v5litepod-8, zone: {ZONE}}}
command: |
  while sleep 0.02; do echo "a line of the log"; done
""",
    "large": f"""\
name: bulky
tpu: {{accelerator: v5litepod-16, zone: {ZONE}}}
code: code
command: echo "the job has begun"
""",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """One run that is about to be interrupted."""

    here: Sandbox
    witness: Witness
    stdout: IO[bytes]


def while_creating(scene: Scene) -> None:
    wait_for("the CLI asks for the node that it created", lambda: scene.witness.seen("GET", "/nodes/"))


def while_create_is_unanswered(scene: Scene) -> None:
    wait_for("the create request", lambda: scene.witness.seen("POST", "nodeId="))


def while_shipping(scene: Scene) -> None:
    drafts = "vms/*/worker*/home/tpujob/store/drafts/*"

    def begun() -> bool:
        return sum(_size_bytes(path) for path in scene.here.emulator_directory.glob(drafts)) > BEGUN_BYTES

    wait_for("the code begins to arrive", begun)


def while_streaming(scene: Scene) -> None:
    for _ in range(3):
        line = scene.stdout.readline()
        assert line.startswith(b"worker0 | "), line


@dataclass(frozen=True, slots=True)
class Moment:
    name: str
    job: str
    arrived: Callable[[Scene], None]
    provision_s: float = 0.0
    unanswered: str = ""  # requests with this in them get no answer
    stagger_s: float = STAGGER_S


MOMENTS = (
    Moment("while the create call is unanswered", "small", while_create_is_unanswered, 60.0, "nodeId="),
    Moment("while the node is CREATING", "small", while_creating, 60.0),
    Moment("while 32 MiB are shipped to each of 4 workers", "large", while_shipping, stagger_s=0.002),
    Moment("while the job streams", "small", while_streaming),
)


def main() -> None:
    arguments = options(str(__doc__), rounds=9)
    report = Report(
        "interrupt.py",
        "Ctrl-C to the delete request on the wire",
        ["moment", "s", "target", "to the end of the process, s"],
    )
    with sandbox() as here:
        for name, text in JOBS.items():
            here.write(f"{name}.yaml", text)
        here.write("code/readme", "random bytes, so that gzip cannot make less of them")
        (here.directory / "code" / "bytes").write_bytes(os.urandom(SHIPPED_BYTES))
        measured: dict[str, list[tuple[float, float]]] = {moment.name: [] for moment in MOMENTS}
        for number in range(arguments.rounds):
            for moment in MOMENTS:
                measured[moment.name].append(_once(here, moment, number))
        for name, found in measured.items():
            delete_s = [each[0] for each in found]
            report.row(name, spread(delete_s, 3), verdict(delete_s, TARGET_S), spread([each[1] for each in found]))
    report.notes = [
        "SIGINT to `tpujob run`; the clock stops when the first byte of `DELETE …/nodes/…` reaches a relay.",
        f"Each round presses {STAGGER_S * 1000:.0f} ms later into the moment than the one before (2 ms while shipping).",
        "Every run counted here ended with exit code 130 and its node proven absent; the last column includes that proof.",
    ]
    report.publish(arguments)


def _once(here: Sandbox, moment: Moment, number: int) -> tuple[float, float]:
    """Seconds from the signal to the delete, and to the end of the process."""
    witness = Witness(here.emulator(provision_s=moment.provision_s).url)
    witness.withheld = lambda line: bool(moment.unanswered) and moment.unanswered in line
    environment = here.environment(
        TPUJOB_ENDPOINT=witness.url, TPUJOB_TOKEN_FILE=str(here.emulator_directory / "token")
    )
    with (here.directory / "stderr").open("w+b") as stderr:
        process = subprocess.Popen(
            tpujob("run", str(here.directory / f"{moment.job}.yaml")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            cwd=here.directory,
        )
        assert process.stdout is not None
        try:
            moment.arrived(Scene(here, witness, process.stdout))
            time.sleep(moment.stagger_s * number)
            assert witness.seen("DELETE") is None, "it deletes before Ctrl-C was pressed"
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=TIMEOUT_S)
            ended = time.monotonic()
        finally:
            process.kill()
            process.wait()
            witness.close()
        stderr.seek(0)
        said = stderr.read().decode()
    deleted = witness.seen("DELETE", "/nodes/")
    assert deleted is not None, said
    assert process.returncode == 130, f"{moment.name}: code {process.returncode}\n{said}"
    assert not here.nodes(), f"{moment.name}: the node is still there"
    if moment.arrived is while_shipping:
        assert b"the job has begun" not in out and "\nship " not in said, "it was shipped before Ctrl-C"
    return deleted.at - pressed, ended - pressed


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
