"""The code and data of a job: what a run ships, what is left out, and both in words."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.text import names
from orchestrator.core.text.sizes import format_size
from orchestrator.core.text.terminal import printable
from orchestrator.places import is_emulated, traits_on
from orchestrator.places.preparation import checks, sources
from orchestrator.remote.shipping.shipment import Shipment, make_shipment, paced
from orchestrator.remote.shipping.tree import Survey, check_content, count, left_out_text, size_of

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.desk import Desk

NAMED, NAMED_IN_JSON = 4, 50  # of what is left out, the biggest


def survey_of(desk: Desk, spec: JobSpec, path: Path) -> Survey | None:
    """Return what a run of the job ships, and what is left out; None when there is nothing to ship.

    Raises UserError for what is refused. Files whose content may be a secret are looked at, and no others.
    """
    emulated = traits_on(spec.on).by_target and is_emulated(desk.target.kind)
    runs = desk.runs_directory  # in which others, such as TensorBoard, may write, too; what has no mark is older
    own = (desk.directory, *runs.glob("compare-*.html"), *(page.parent for page in runs.glob(f"*/{names.PAGE}")))
    found = sources.survey(spec, path, own_directories=own, emulated=emulated)
    checks.check_files(spec, found)
    if found is not None:
        check_content(found)
    return found


def told_shipment(desk: Desk, spec: JobSpec, path: Path, stack: ExitStack) -> Shipment | None:
    """Return what the job ships, once the biggest of what is left out is reported; None for nothing. Raises UserError."""
    found = survey_of(desk, spec, path)
    if found is not None and (text := left_out_text(found.left_out)):
        desk.reporter.notice("ship", text)
    return shipment_of(desk, found, stack)


def shipment_of(desk: Desk, found: Survey | None, stack: ExitStack) -> Shipment | None:
    """Return what was found to be shipped, with its contents as they are now; `stack` lets go of it. Raises UserError."""
    if found is None:
        return None
    progress = paced(lambda text: desk.reporter.progress("ship", f"reading the code: {text}"))
    shipment = make_shipment(found, desk.directory / "store", progress)
    stack.callback(shipment.release)
    return shipment


def ship_line(found: Survey) -> str:
    """Return what is shipped and left out as a sentence."""
    line = f"ships {count(found.files)}, {format_size(found.size_bytes)}"
    if not found.left_out:
        return line
    named = [
        f"{printable(one.path)}{'' if one.is_link else f' {size_of(one)}'} ({one.rule})"
        for one in found.left_out[:NAMED]
    ]
    more = f", and {len(found.left_out) - NAMED} more" if len(found.left_out) > NAMED else ""
    return f"{line}; left out: {', '.join(named)}{more}"


def ship_shape(found: Survey | None) -> dict[str, Any] | None:
    """Return the same as JSON values; None when there is nothing to ship."""
    if found is None:
        return None
    return {
        "files": found.files,
        "size_bytes": found.size_bytes,
        "left_out": [asdict(one) for one in found.left_out[:NAMED_IN_JSON]],
        "left_out_count": len(found.left_out),
        "left_out_bytes": sum(one.size_bytes for one in found.left_out),
    }
