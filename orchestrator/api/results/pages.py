"""The report pages of runs and sweeps: written when one ends, and by `tpujob report`. The pages are those of `report.page`.

What writes a page at the end of a run never raises: a report that is missing costs a line, not a result.
"""

import json
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import places
from orchestrator.api.session import lookup
from orchestrator.api.session.events import relative
from orchestrator.api.session.session import Session
from orchestrator.errors import ConfigError, TpujobError, UnknownRun, UserError
from orchestrator.hosts.shipping.ignore import mark_run
from orchestrator.promise.lease.run_and_attempt import RunRecord
from orchestrator.system import private_files, whole_file
from orchestrator.system.lazy import Later
from orchestrator.text.names import PAGE

if TYPE_CHECKING:
    from orchestrator.report.page import pages, timeline
else:  # Jinja2, only where there is a page
    pages, timeline = Later("orchestrator.report.page.pages"), Later("orchestrator.report.page.timeline")

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
    if out is None and page.title is None and not page.path.parent.is_dir():
        hint = "`--out FILE` writes a page of what the ledger knows"
        raise UserError(f"{page.path.parent}, the directory of the run, is not there any more", hint=hint)
    path = (out or page.path).absolute()
    write(session, page, path, make_directory=out is None, named=out is not None)
    return path


def live_page(session: Session, name: str, *, awaited: bool = False) -> str:
    """Return the page of the run of this id as it is served: it renews itself while the run goes on. Raises UnknownRun.

    `awaited`: it goes on, whether or not its last attempt does.
    """
    run, attempt = session.ledger.run(name)
    session.know_secrets(run)
    data = timeline.read(session.ledger, run, attempt, session.now(run.cloud))
    return pages.run_page(data, link=".", hide=session.reporter.secrets.hide, trace=False, live=True, awaited=awaited)


def write_file(path: Path, text: str, option: str = "--out") -> None:
    """Write a file that the user named, by this option. Raises ConfigError."""
    with _refused(path, option):
        whole_file.write(path, text)


@contextmanager
def _refused(path: Path, option: str = "--out") -> Iterator[None]:
    try:
        if path.is_dir():  # so is an empty name
            raise UserError(f"{option} has to name a file, and {relative(path)} is a directory")
        yield
    except OSError as error:
        hint = f"`{option} FILE` writes it somewhere else"
        raise ConfigError(f"{relative(path)} cannot be written: {error.strerror or error}", hint=hint) from error


def find(session: Session, names: Sequence[str]) -> Page:
    """Return what these names mean: runs as for `show`, and sweeps. Raises UnknownRun; UserError without a name."""
    runs = session.runs_directory
    if not names:
        raise UserError("no run is named", hint="`tpujob list` shows the runs of this machine")
    meant = [lookup.runs_of(session, name) for name in names]
    found = {run.id: Path(run.directory) for _, pairs in meant for run, _ in pairs}
    ids, sweep = tuple(found), meant[0][0]
    if len(names) == 1 and sweep is not None:
        return Page(ids, runs / f"{sweep.name}-{sweep.id}" / PAGE, sweep.name)
    if len(ids) == 1:
        return Page(ids, found[ids[0]] / PAGE)
    begin = "-".join(each[:4] for each in ids[:NAMED])
    more = f"-and-{len(ids) - NAMED}" if len(ids) > NAMED else ""
    return Page(ids, runs / f"compare-{begin}{more}.html", f"{len(ids)} runs")


def of_another_process(session: Session, run: RunRecord) -> None:
    """Write the page of a run whose process was killed, and tidy up after it, as that process would have done."""
    run_ended(session, run.id, Path(run.directory))
    places.place_of(run.cloud).tidy(session, run)


def run_ended(session: Session, run: str, directory: Path) -> Path | None:
    """Write the page and the trace of a run that has ended or goes on, and return the path of the page; None without one."""
    with _only_a_warning(session):
        path = (directory / PAGE).absolute()
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


def sweep_ended(session: Session, sweep_id: str) -> Path | None:
    """Write the page of a sweep and return its path; None without one."""
    with _only_a_warning(session):
        page = find(session, [sweep_id])
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
        what = error.message if isinstance(error, TpujobError) else getattr(error, "strerror", None)
        what = what or "a bug in tpujob; `tpujob report` writes it, or keeps the traceback"
        session.reporter.notice("warning", f"the report was not written: {what}")


def write(session: Session, page: Page, path: Path, *, make_directory: bool = False, named: bool = False) -> None:
    """Write a page, and with that of one run in its place the trace. `named`: by the user. Raises ConfigError."""
    secrets, runs = session.reporter.secrets, []
    for each in page.runs:
        run, attempt = session.ledger.run(each)
        session.know_secrets(run)
        runs.append(timeline.read(session.ledger, run, attempt, session.now(run.cloud)))
    with _refused(path):
        if make_directory:
            private_files.make_directory(path.parent)
            if path.name == PAGE:  # of a sweep
                mark_run(path.parent)
        if page.title is not None:
            own = [Path(data.report.directory) / PAGE for data in runs]
            links = [_link(each, path.parent) if each.exists() else "" for each in own]
            text = pages.runs_page(runs, title=page.title, links=links, hide=secrets.hide)
        else:
            directory = Path(runs[0].report.directory)
            if path == page.path.absolute():
                # Perfetto shows the escapes of names as they are written.
                found = json.dumps(timeline.trace(runs[0], secrets.hide), separators=(",", ":"), ensure_ascii=False)
                whole_file.replace(directory / TRACE, found)
            has_trace = (directory / TRACE).exists()
            text = pages.run_page(runs[0], link=_link(directory, path.parent), hide=secrets.hide, trace=has_trace)
        (whole_file.write if named else whole_file.replace)(path, text)


def _link(to: Path, seen_from: Path) -> str:
    """Return a relative link, which holds as long as both stay where they are to each other."""
    path = os.path.relpath(to.absolute(), seen_from.absolute())
    return urllib.parse.quote(path if path.startswith(".") else f"./{path}")
