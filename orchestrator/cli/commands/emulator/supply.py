"""`tpujob emulator rehearse|capacity`: which capacity the emulated cloud has, and when. See docs/emulator.md."""

import sys
from pathlib import Path
from typing import Annotated, Any

import yaml

from orchestrator.cli.commands.emulator.daemon import ask
from orchestrator.cli.console import emit_result
from orchestrator.cli.options import Argument, Json, Option
from orchestrator.client.arguments import seconds
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.text_file import text_of
from orchestrator.errors import UserError

EVERYTHING, NOTHING = "all", "none"


def rehearse(
    path: Annotated[Path | None, Argument(metavar="[FILE]", help="A YAML or JSON file; - reads stdin.")] = None,
    end: Annotated[bool, Option("--end", help="Remove limits and faults; settings stay.")] = False,
    as_json: Json = False,
) -> None:
    """Start a rehearsal from a file, or show the current one. It sets capacity, quota, preemptions, faults and settings."""
    if path is not None and end:
        raise UserError("a file begins a rehearsal, and --end ends it: give one of them")
    if end:
        reply = ask("DELETE", "rehearsal")
    elif path is None:
        reply = ask("GET", "rehearsal")
    else:
        reply = ask("PUT", "rehearsal", _read(path), start=True)
    counted = {name: len(value) if isinstance(value, list) else value for name, value in reply.items()}
    lines = [f"{name}\t{value}" for name, value in counted.items() if name != "settings"]
    emit_result(reply, lines, as_json=as_json)


def set_capacity(
    place: Annotated[str, Argument(metavar="ZONE/TYPE", help="Either may be a glob: us-*/v5litepod-8, */*.")],
    chips: Annotated[str, Argument(metavar="CHIPS|none|all", help="How many chips there are at once.")],
    tier: Annotated[str, Option("--tier", help="Only on-demand, spot or flex-start.")] = "any",
    from_: Annotated[
        str | None, Option("--from", metavar="DURATION", help="Begin this long from now: 30s, 5m.")
    ] = None,
    until: Annotated[str | None, Option("--until", metavar="DURATION", help="End this long from now.")] = None,
    as_json: Json = False,
) -> None:
    """Set how many chips there are. Of the entries that match, the last one decides."""
    zone, slash, accelerator_type = place.partition("/")
    if not (zone and slash and accelerator_type):
        raise UserError(f"{place!r} is not of the form ZONE/TYPE")
    if chips not in (EVERYTHING, NOTHING) and not (chips.isascii() and chips.isdigit()):
        raise UserError(f"{chips!r} is neither a number of chips nor {NOTHING} nor {EVERYTHING}")
    row: dict[str, Any] = {"zone": zone, "type": accelerator_type, "tier": tier}
    row["chips"] = {NOTHING: 0, EVERYTHING: None}.get(chips, int(chips) if chips.isdigit() else 0)
    for name, option, text in (("from_s", "--from", from_), ("until_s", "--until", until)):
        if text is not None:
            row[name] = seconds(option, text, "0s", "365d")
    _show(ask("POST", "capacity", row, start=True), as_json)


def list_capacity(as_json: Json = False) -> None:
    """List what was set. Of the entries that match and hold, the last one decides."""
    _show(ask("GET", "capacity"), as_json)


def clear_capacity() -> None:
    """Remove every limit: there is enough of everything."""
    _show(ask("DELETE", "capacity"), as_json=False)


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(sys.stdin.read() if str(path) == "-" else text_of(path.read_bytes()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {error}") from error


def _show(reply: dict[str, Any], as_json: bool) -> None:
    lines = [f"{place}\tany\tnone\t(setting no_capacity)" for place in reply["no_capacity"]]
    for row in reply["capacity"]:
        amount = "all" if row["chips"] is None else f"{row['used']} of {row['chips']} chips" if row["chips"] else "none"
        lines.append(f"{row['zone']}/{row['type']}\t{row['tier']}\t{amount}\t{_when(row)}")
    emit_result(reply, lines or ["enough of everything"], as_json=as_json)


def _when(row: dict[str, Any]) -> str:
    if not row["holds"] and row["age_s"] < row["from_s"]:
        return f"in {format_duration(row['from_s'] - row['age_s'])}"
    if not row["holds"]:
        return "over"
    left = "" if row["until_s"] is None else f" for {format_duration(row['until_s'] - row['age_s'])}"
    return f"now{left}"
