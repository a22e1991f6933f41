"""`tpujob drill`: ten disasters on a private emulator, each held to what docs/guarantee.md promises."""

import signal
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from orchestrator.cli.console.output import console, emit_json, emit_wrapped
from orchestrator.cli.options import Json, Option
from orchestrator.drill.runner import DISASTERS, Finding, formula, run_all, symbolic
from orchestrator.errors import Interrupted, TpujobError, UserError
from orchestrator.text.units import format_duration


def drill(
    only: Annotated[list[int] | None, Option("--only", metavar="N", help="Only this disaster, by number.")] = None,
    as_json: Json = False,
) -> int:
    """Rehearse ten disasters on a private emulator: what is killed, what deletes the slice, and within which bound."""
    wanted = [each for each in DISASTERS if not only or each.number in only]
    if only and len(wanted) < len(set(only)):
        raise UserError(f"the disasters are numbered from 1 to {len(DISASTERS)}")
    _handle_signals()
    speeds = " to ".join(f"{speed:.0f}" for speed in sorted({each.speed for each in wanted}))
    console().notice("drill", f"EMULATED Cloud TPU: claims are judged {speeds} times faster than on Google Cloud")
    began, findings = time.monotonic(), []
    with (
        tempfile.TemporaryDirectory(prefix="tpujob-drill-") as directory,
        closing(run_all(wanted, Path(directory))) as arriving,
    ):
        for finding in arriving:
            findings.append(finding)
            if not as_json:
                emit_wrapped([line(finding)], indent=3)
    if as_json:
        emit_json(
            [as_json_object(finding) for finding in sorted(findings, key=lambda finding: finding.disaster.number)]
        )
    broken = [finding for finding in findings if not finding.ok]
    kept = f"{len(findings) - len(broken)} of {len(findings)} promises kept"
    left = "" if broken else ", nothing left behind"
    took = format_duration(time.monotonic() - began)
    console().notice("drill", f"{kept}{left} · {took} · what is promised, and what is not: docs/guarantee.md")
    return TpujobError.exit_code if broken else 0


def line(finding: Finding) -> str:
    """Return the line of one disaster."""
    disaster, bound = finding.disaster, finding.disaster.bound
    billed = "never came to its end" if finding.unclaimed_s is None else f"billed unclaimed {finding.unclaimed_s:.1f} s"
    google = symbolic(disaster.bound_on_google)
    return " · ".join(
        (
            f"{disaster.number:>2} {disaster.name}",
            disaster.broken,
            f"ended by {finding.ended_by}",
            billed,
            f"bound {format_duration(bound.seconds)} = {formula(bound)} (on Google Cloud {google})",
            "ok" if finding.ok else f"BROKEN: {finding.problem}",
        )
    )


def as_json_object(finding: Finding) -> dict[str, Any]:
    """Return the JSON object of one disaster."""
    disaster, bound = finding.disaster, finding.disaster.bound
    return {
        "number": disaster.number,
        "name": disaster.name,
        "broken": disaster.broken,
        "ended_by": finding.ended_by,
        "unclaimed_s": finding.unclaimed_s,
        "bound_s": bound.seconds,
        "formula": formula(bound),
        "on_google_cloud": symbolic(disaster.bound_on_google),
        "speed": disaster.speed,
        "ok": finding.ok,
        "problem": finding.problem,
    }


def _handle_signals() -> None:
    """Unwind at the first signal, so that every sandbox is removed. Children start with the default handlers."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def arrived(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, lambda number, frame: None)
        console().notice("drill", "stopping: every process and every emulator that this drill started is ended")
        raise Interrupted(number)

    for number in numbers:
        signal.signal(number, arrived)
