"""The report pages of runs and sweeps: written when one ends, and by `tpujob report`. The pages are those of `report.page`.

What writes a page at the end of a run never raises: a report that is missing costs a line, not a result.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import private_files
from orchestrator.client.events import relative
from orchestrator.client.sweeps import progress
from orchestrator.errors import ConfigError, TpujobError, UnknownRun, UserError

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.run_and_attempt import RunRecord

NAME = "report.html"
TRACE = "trace.json"
NAMED = 4  # runs whose ids are in the name of a page; of more, the first ones and their number


@dataclass(frozen=True, slots=True)
class Page:
    """What a name or several mean: the runs, and where their page is by default. `title`: None for one run."""

    runs: tuple[str, ...]
    path: Path
    title: str | None = None


def write_report(session: Session, names: Sequence[str], out: Path | None = None) -> Path:
    """Write the page of these runs, or of the runs of a sweep, and return its path. Raises UnknownRun, ConfigError.

    Without `out`, the page of one run lies in its directory and that of several below the directory of all runs.
    """
    session.recover()
    page = find(session, names)
    path = (out or page.path).absolute()
    write(session, page, path, make_directory=out is None)
    return path


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises ConfigError."""
    try:
        _replace(path, text)
    except OSError as error:
        raise ConfigError(
            f"{relative(path)} cannot be written: {error.strerror or error}",
            hint="`--out FILE` writes it somewhere else",
        ) from error


def find(session: Session, names: Sequence[str]) -> Page:
    """Return what these names mean: runs as for `show`, and sweeps. Raises UnknownRun; UserError without a name."""
    ledger, runs = session.ledger, session.runs_directory
    if not names:
        raise UserError("no run is named", hint="`tpujob list` shows the runs of this machine")
    found: dict[str, Path] = {}
    for name in names:
        of_sweep = progress.runs_of(session, name)
        if of_sweep == []:
            raise UnknownRun(
                f"no variant of the sweep {name!r} was run yet", hint="`tpujob status` shows how far it is"
            )
        for each in [name] if of_sweep is None else of_sweep:
            run, _ = ledger.find_run(each)
            found[run.id] = Path(run.directory)
    ids = tuple(found)
    if len(names) == 1 and (sweeps := progress.find(session, names[0])):
        return Page(ids, runs / f"{sweeps[0].name}-{sweeps[0].id}" / NAME, sweeps[0].name)
    if len(ids) == 1:
        return Page(ids, found[ids[0]] / NAME)
    begin = "-".join(each[:4] for each in ids[:NAMED])
    more = f"-and-{len(ids) - NAMED}" if len(ids) > NAMED else ""
    return Page(ids, runs / f"compare-{begin}{more}.html", f"{len(ids)} runs")


def run_ended(session: Session, run: str, directory: Path) -> Path | None:
    """Write the page and the trace of a run that has ended or goes on, and return the path of the page; None without one."""
    with _only_a_warning(session):
        path = (directory / NAME).absolute()
        with suppress(UnknownRun):  # it ended before anything was written down
            write(session, Page((run,), path), path)
            return path
    return None


@contextmanager
def reported_if_it_raises(session: Session, run: RunRecord) -> Iterator[None]:
    """Write the page also of a run whose program ends with an error: nothing else does it in this process."""
    try:
        yield
    except BaseException:
        run_ended(session, run.id, Path(run.directory))
        raise


def sweep_ended(session: Session, name: str) -> Path | None:
    """Write the page of the newest sweep of this name and return its path; None without one."""
    with _only_a_warning(session):
        page = find(session, [name])
        write(session, page, page.path, make_directory=True)
        return page.path
    return None


@contextmanager
def _only_a_warning(session: Session) -> Iterator[None]:
    """Whatever goes wrong with a page is a warning. Ctrl-C leaves the page out: the run has its result by now."""
    try:
        yield
    except KeyboardInterrupt:
        session.reporter.notice("warning", "the report was left out: you pressed Ctrl-C")
    except Exception as error:
        what = error.message if isinstance(error, TpujobError) else f"{type(error).__name__}: {error}"
        session.reporter.notice("warning", f"the report was not written: {what}")


def write(session: Session, page: Page, path: Path, *, make_directory: bool = False) -> None:
    """Write a page, and with that of one run in its place the trace. Raises ConfigError."""
    from orchestrator.report.page import pages, run_data  # Jinja2, only where there is a page to write
    from orchestrator.report.page.trace import trace

    secrets, runs = session.reporter.secrets, []
    for each in page.runs:
        run, attempt = session.ledger.find_run(each)
        runs.append(run_data.read(session.ledger, run, attempt, session.now(run.cloud)))
    try:
        if make_directory:
            private_files.make_directory(path.parent)
        if page.title is not None:
            links = [_page_link(Path(data.report.directory), path.parent) for data in runs]
            text = pages.runs_page(runs, title=page.title, links=links, hide=secrets.hide)
        else:
            directory = Path(runs[0].report.directory)
            if path == page.path.absolute():
                # Perfetto shows the escapes of names as they are written.
                found = json.dumps(trace(runs[0], secrets.hide), separators=(",", ":"), ensure_ascii=False)
                _replace(directory / TRACE, found, private=True)
            has_trace = (directory / TRACE).exists()
            text = pages.run_page(runs[0], link=_link(directory, path.parent), hide=secrets.hide, trace=has_trace)
        _replace(path, text, private=path == page.path.absolute())
    except OSError as error:
        hint = "`--out FILE` writes it somewhere else"
        raise ConfigError(f"{relative(path)} cannot be written: {error.strerror or error}", hint=hint) from error


def _link(to: Path, seen_from: Path) -> str:
    """Return a relative link, which holds as long as both stay where they are to each other."""
    path = os.path.relpath(to.absolute(), seen_from.absolute())
    return urllib.parse.quote(path if path.startswith(".") else f"./{path}")


def _page_link(directory: Path, seen_from: Path) -> str:
    page = directory / NAME
    return _link(page, seen_from) if page.exists() else ""


def _replace(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file whole or not at all; a link that has its name is replaced, not followed. Raises OSError.

    `private`: for this user only; others have the mode of the user's own files.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    try:
        opened = private_files.open_file if private else open
        with opened(draft, "x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
