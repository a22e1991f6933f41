"""The commands of a machine that uses the toy place: `run_job`, the interpreter, a ledger, locks and the recovery, all real.

A process of its own forks each command, so that one costs no imports, and can be killed.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.api.jobs.log_output import JobOutput
from orchestrator.api.session.events import Event, LogLines
from orchestrator.api.session.reporter import Reporter
from orchestrator.places.place import STATES, Phase
from orchestrator.promise import obligations
from orchestrator.promise.effects.base import Lock, Report
from orchestrator.promise.effects.interpreter import Interpreter
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.effects.world import RealWorld
from orchestrator.promise.lease.cloud_api import SliceRequest, WorkerAddress
from orchestrator.promise.lease.lease import CANCEL, Lease, LeaseState, Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.recover import close_attempts, recover
from orchestrator.promise.release import release_all
from orchestrator.promise.standing import record_cancel
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from orchestrator.text import names
from orchestrator.text.redaction import Redactor
from tests.cli_fixture import hear_signals
from tests.places.toy.place import CAN, TRAITS, Place, ToyCloud, ToyCrew, ToyStay, serve

OWNER = "0wner0"


@dataclass(frozen=True, slots=True)
class Reach:
    """The way to the workers: each question is a connection."""

    place: Place

    def fleet(self, lease: Lease, workers: Sequence[WorkerAddress], notice: Any, now: Any) -> ToyCrew:
        return ToyCrew(self.place, tuple(workers))


def command(directory: Path, place: Place, verb: str) -> int:
    """Do what a `tpujob` command does; return its exit code."""
    job = json.loads((directory / "job.json").read_text())
    obligations.RELEASE_S = job["release_s"]
    reporter = Reporter(_show, Redactor([job["env"]["SECRET"]]))
    ledger = Ledger(directory / "ledger.sqlite3")
    clocks = Clocks(ledger)

    def report(told: Report) -> None:
        if not told.passing:
            print(told.stage, told.text, flush=True)

    world = RealWorld(
        "toy",
        clocks,
        ledger,
        FileLocks(directory / "locks"),
        report,
        None,
        lambda: ToyCloud(place),  # type: ignore[arg-type, return-value]
        Reach(place),  # type: ignore[arg-type]
        TRAITS.reached,
    )
    play = Interpreter(world).run
    play(_recovery())
    if verb == "cancel":
        play(record_cancel(ledger.runs()[0][0].id))
        play(release_all([(lease, CANCEL) for lease in ledger.open_leases()], CAN, budget_s=job["release_s"]))
    if verb not in ("run", "submit", "attach"):
        return 75 if any(lease.state is LeaseState.DOWN for lease in ledger.open_leases()) else 0
    outcome = play(_work(directory, ledger, clocks.now("toy"), job, reporter, verb))
    if outcome.error is not None:
        print(outcome.error.message)
    if outcome.released is not None and not outcome.released.gone:
        print("NOT VERIFIED GONE")
    return outcome.exit_code


def _show(event: Event) -> None:
    if isinstance(event, LogLines):
        print(*event.lines, sep="\n", flush=True)


async def _recovery() -> None:
    """What every command does first."""
    await close_attempts()
    await recover("toy", CAN, budget_s=20.0, look=True)
    await close_attempts()


async def _work(
    directory: Path, ledger: Ledger, now: float, job: dict[str, Any], reporter: Reporter, verb: str
) -> Outcome:
    lease, drafts = None, ()
    if verb == "attach":
        run, attempt = ledger.runs()[0]
        (lease,) = ledger.open_leases()
        await Lock(attempt.id)
    else:
        run_id, lease_id = (names.new_run_id(secrets.randbits(names.RUN_BITS)) for _ in range(2))
        run = RunRecord(run_id, "played", "job.json", "toy", now, str(directory / "runs" / run_id))
        attempt = Attempt(f"{run_id}-1", run_id)
        name = SliceName("toys", "here", names.node_name(OWNER, lease_id))
        asked = Lease(
            id=lease_id, handle="played", purpose=Purpose.RUN, cloud="toy", name=name, accelerator_type="cell",
            runtime_version="", spot=False, owner=OWNER, deadline=now + job["life_s"], created_at=now, run=run_id,
        )  # fmt: skip
        drafts = (Draft(asked, SliceRequest(name, "cell", "", manifests=(job,))),)  # type: ignore[assignment]
    output = JobOutput(Path(run.directory), reporter, anew=lease is not None)
    phases = tuple(Phase(each, STATES[each]) for each in ("setup", "main") if each == "main" or job["setup"])
    to_run = JobRun(
        run, attempt, ToyStay(drafts), phases, (), Path(run.directory), output, job["limit_s"], attached_to=lease,
        detach=verb == "submit",
    )  # fmt: skip
    outcome = await run_job(to_run, CAN)
    output.close()
    return outcome


class Machine:
    """Starts commands, and knows how they ended."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.codes: dict[int, int] = {}

    def start(self, directory: Path, verb: str, crash_at: str) -> int:
        """Fork a command; return its pid. What it says is in `<pid>.said`."""
        pid = os.fork()
        if pid:
            return pid
        hear_signals()
        out = os.open(directory / f"{os.getpid()}.said", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.environ["TPUJOB_CRASH_AT"] = crash_at
        code = 70
        try:
            code = command(directory, self.place, verb)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def code(self, pid: int) -> int | None:
        """Return the exit code of a command; None: it has not ended."""
        if pid not in self.codes:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                return None
            self.codes[pid] = os.waitstatus_to_exitcode(status)
        return self.codes[pid]


if __name__ == "__main__":
    serve(sys.argv[1], Machine(Place(sys.argv[2])))
