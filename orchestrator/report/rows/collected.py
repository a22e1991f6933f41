"""What is to be said of the results of a run beside its files: what lies under a safe name, and what is not here, with why.

`results.json` in the run's directory keeps it until the next collection; where there is nothing to say, there is no file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import traits
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.report.files.artifact_files import open_regular
from orchestrator.system import whole_file
from orchestrator.text import parsing
from orchestrator.text.terminal import spelled
from orchestrator.text.units import day_clock, format_size

if TYPE_CHECKING:
    from orchestrator.hosts.transfer.collect import CollectResult, Problem

NAME = "results.json"
SCHEMA = 1
MOST = 10_000  # of what is not here: a job may leave any number of links
MOST_SHOWN = 20
WITH_SLICE = "gone with its slice"


@dataclass(frozen=True, slots=True)
class ResultRemark:
    """A result with another name here than on its worker, or one that is not here.

    `kind`: renamed; missing: its slice is kept for it; left: so it is, but beside the artifacts; lost: refused, damaged or
    gone; note: no file, such as a link to a directory, or a file of which there is something to say; unmatched: a pattern of
    `artifacts:` for which there is no file; fetched: no file, but a directory to which `collect --to` brought some.
    """

    kind: str
    worker: int
    path: str  #: on the worker
    why: str  #: empty if it is renamed
    place: str  #: in the run's directory, if it is renamed; the absolute directory, if fetched; else empty
    size_bytes: int = 0  #: of what is left; 0 if that is unknown

    def __str__(self) -> str:
        if self.kind == "unmatched":
            return f"`artifacts: {spelled(self.path)}` matches no file"
        if self.kind == "fetched":
            return f"`collect --to {spelled(self.place)}` has brought what is there"
        return f"worker{self.worker}: {spelled(self.path)} {f'is {self.place}' if self.place else f'· {self.why}'}"


def keep(directory: Path, collected: CollectResult) -> tuple[ResultRemark, ...]:
    """Write down what is to be said of a collection, instead of what was said of an earlier one. Raises OSError.

    To which other directories files came is kept of the earlier ones, too.
    """
    renamed = [
        ResultRemark("renamed", file.worker, file.path, "", f"worker{file.worker}/{file.place}")
        for file in collected.files
        if file.place
    ]
    kinds = {"missing": collected.waiting, "lost": collected.refused + collected.broken}
    kinds |= {"left": collected.left, "note": collected.notes}
    left = [
        ResultRemark(kind, each.worker, each.path, each.why, "", each.size_bytes)
        for kind, every in kinds.items()
        for each in every
    ]
    unmatched = [ResultRemark("unmatched", 0, pattern, "", "") for pattern in collected.unmatched]
    elsewhere = [each for each in read(directory) if each.kind == "fetched"]
    return _write(directory, (*renamed, *elsewhere, *unmatched, *left[:MOST]))


def fetch(directory: Path, to: Path) -> None:
    """Write down that files come to another directory, before they do: what lies there is this run's. Raises OSError."""
    known, place = read(directory), ResultRemark("fetched", 0, "", "", str(to.resolve()))
    if place not in known:
        _write(directory, (*known, place))


def _write(directory: Path, remarks: tuple[ResultRemark, ...]) -> tuple[ResultRemark, ...]:
    if remarks:
        text = json.dumps({"schema": SCHEMA, "results": [asdict(each) for each in remarks]})
        whole_file.replace(directory / NAME, text)
    else:
        (directory / NAME).unlink(missing_ok=True)
    return remarks


def read(directory: Path, lease: Lease | None = None) -> tuple[ResultRemark, ...]:
    """Return what was written down last; empty where there is nothing, or nothing that can be read.

    `lease`: of the slice that has the rest. Once it is proven gone, so is the rest; but a cluster's bucket may have it.
    """
    lost: dict[str, str] = {}
    if lease is not None and lease.state is LeaseState.GONE and not traits.traits_of(lease.cloud).results_stay:
        lost = {"kind": "lost", "why": f"{WITH_SLICE} at {day_clock(lease.gone_at)}"}
    file = open_regular(directory / NAME)
    if file is None:
        return ()
    with file:
        try:
            found: Any = parsing.loads(file.read())
            rows = found["results"] if found["schema"] == SCHEMA else ()
            return tuple(ResultRemark(**(row | lost if row["kind"] in ("missing", "left") else row)) for row in rows)
        except (ValueError, KeyError, TypeError):
            return ()


def lines(remarks: Sequence[ResultRemark]) -> list[tuple[str, str]]:
    """Return a kind and a sentence for each of the first ones, and one for the others."""
    left = [each for each in remarks if each.kind == "left" or each.why.startswith(WITH_SLICE)]
    remarks = [each for each in remarks if each.kind != "left" and not each.why.startswith(WITH_SLICE)]
    found = [(left[0].kind, line) for line in left_lines(left)]
    found += [("warning" if each.kind == "unmatched" else each.kind, str(each)) for each in remarks[:MOST_SHOWN]]
    if len(remarks) > MOST_SHOWN:
        found.append(("results", f"{len(remarks) - MOST_SHOWN:,} more are in {NAME}, and in `show --json`"))
    return found


def left_lines(left: Sequence[ResultRemark | Problem]) -> list[str]:
    """Return a line for each directory, or single file, of what lies beside the artifacts and is not here."""
    groups: dict[str, list[ResultRemark | Problem]] = {}
    for each in left:
        top, _, rest = each.path.removeprefix("work/").partition("/")
        groups.setdefault(f"{top}/" if rest else top, []).append(each)
    found = []
    for name, group in list(groups.items())[:MOST_SHOWN]:
        size, workers = format_size(sum(each.size_bytes for each in group)), len({each.worker for each in group})
        where = f"{workers} workers" if workers > 1 else f"worker{group[0].worker}"
        count = f"{len(group):,} files, " if len(group) > 1 else ""
        size = f"{count}{size} " if any(each.size_bytes for each in group) else ""
        why = {each.why for each in group if "come by themselves" not in each.why}
        name = group[0].path.removeprefix("work/") if len(group) == 1 else name  # noqa: PLW2901
        found.append(f"{spelled(name)} ({size}on {where}{f': {why.pop()}' if len(why) == 1 else ''})")
    if len(groups) > MOST_SHOWN:
        found.append(f"{len(groups) - MOST_SHOWN:,} more, which {NAME} and `show --json` list")
    return found
