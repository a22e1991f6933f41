"""`tpujob logs`: what the workers wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Json, Worker

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.attempt import Attempt, RunRecord

POLL_S = 0.2


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: Worker = None,
    as_json: Json = False,
) -> None:
    """What the workers of a run wrote, as far as it arrived here."""
    from orchestrator.cli.session import open_session
    from orchestrator.errors import UnknownRun

    session = open_session()
    session.recover()
    found, attempt = session.ledger.find_run(run)
    if not stream(session, found, attempt, follow=follow, worker=worker, as_json=as_json):
        which = f"worker {worker}" if worker is not None else "any worker"
        raise UnknownRun(f"run {found.id} has no log of {which}", hint=f"its state is {attempt.state}")
    raise ExitCode(session.exit_code())


def stream(
    session: Session,
    found: RunRecord,
    attempt: Attempt,
    *,
    follow: bool,
    worker: int | None = None,
    as_json: bool = False,
) -> bool:
    """Print what is in the local log files, and what comes until the run ends. False: there is nothing at all."""
    from orchestrator.cli.console import emit
    from orchestrator.remote.ssh.terminal import LineSplitter

    directory = Path(found.directory) / "logs"
    splitters: dict[Path, LineSplitter] = {}
    offsets: dict[Path, int] = {}
    while True:
        # Asked before the files are read: what was written until then is in them.
        ended = attempt.state.ended or not session.locks.alive(attempt.id)
        for path in sorted(directory.glob("worker*.log"), key=lambda path: int(path.stem.removeprefix("worker"))):
            index = int(path.stem.removeprefix("worker"))
            if worker is not None and index != worker:
                continue
            splitter = splitters.setdefault(path, LineSplitter())
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                data = file.read()
                offsets[path] = file.tell()
            for line in (*splitter.feed(data), *(splitter.flush() if ended or not follow else ())):
                emit(_shown(index, line, worker, as_json))
        if ended or not follow:
            break
        time.sleep(POLL_S)
        _, attempt = session.ledger.find_run(found.id)
    return bool(splitters)


def _shown(index: int, line: str, only: int | None, as_json: bool) -> str:
    """One line: an object on a line of its own, or with its worker's name unless there is only one."""
    if as_json:
        return json.dumps({"worker": index, "line": line}, ensure_ascii=False)
    return line if only is not None else f"worker{index} | {line}"
