"""`tpujob emulator rehearse|capacity …`: what the emulated cloud has for whom, and in time. docs/emulator.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.emulator.faults import ask
from orchestrator.cli.options import Json

capacity = typer.Typer(
    help="Capacity: how many chips there are, where, and when.", no_args_is_help=True, rich_markup_mode=None
)
EVERYTHING, NOTHING = "all", "none"


def register(app: typer.Typer) -> None:
    app.add_typer(capacity, name="capacity")
    app.command("rehearse")(rehearse)


def rehearse(
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A YAML or JSON file, or - for stdin.", show_default=False)
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="No limits and no faults any more; settings stay.")] = False,
    as_json: Json = False,
) -> None:
    """Begin a whole rehearsal, capacity, quota, preemptions, faults and settings, in place of the last one; or show it."""
    from orchestrator.errors import UserError

    if path is not None and end:
        raise UserError("A file begins a rehearsal and --end ends it: give one of them.")
    if end:
        return _show_rehearsal(ask("DELETE", "rehearsal"), as_json)
    if path is None:
        return _show_rehearsal(ask("GET", "rehearsal"), as_json)
    return _show_rehearsal(ask("PUT", "rehearsal", _read(path)), as_json)


@capacity.command("set")
def set_capacity(
    place: Annotated[str, typer.Argument(metavar="ZONE/TYPE", help="Either may be a glob: us-*/v5litepod-8, */*.")],
    chips: Annotated[str, typer.Argument(metavar="CHIPS|none|all", help="How many there are at once.")],
    tier: Annotated[str, typer.Option("--tier", help="Only for on-demand, spot or flex-start.")] = "any",
    from_: Annotated[str | None, typer.Option("--from", help="Not before so long from now: 30s, 5m.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="No longer than so long from now.")] = None,
    as_json: Json = False,
) -> None:
    """From now on there are so many chips, or none; what was set last decides. A stockout of two minutes: none --until 2m."""
    from orchestrator.cli.options import duration
    from orchestrator.errors import UserError

    zone, slash, accelerator_type = place.partition("/")
    if not (zone and slash and accelerator_type):
        raise UserError(f"{place!r} is not of the form ZONE/TYPE.")
    if chips not in (EVERYTHING, NOTHING) and not (chips.isascii() and chips.isdigit()):
        raise UserError(f"{chips!r} is neither a number of chips nor {NOTHING} nor {EVERYTHING}.")
    row: dict[str, Any] = {"zone": zone, "type": accelerator_type, "tier": tier}
    row["chips"] = {NOTHING: 0, EVERYTHING: None}.get(chips, int(chips) if chips.isdigit() else 0)
    for name, option, text in (("from_s", "--from", from_), ("until_s", "--until", until)):
        if text is not None:
            row[name] = duration(option, text, least="0s", most="365d")
    _show_capacity(ask("POST", "capacity", row), as_json)


@capacity.command("list")
def list_capacity(as_json: Json = False) -> None:
    """What was set; the last that fits and holds decides."""
    _show_capacity(ask("GET", "capacity"), as_json)


@capacity.command("clear")
def clear_capacity() -> None:
    """Enough of everything again."""
    _show_capacity(ask("DELETE", "capacity"), as_json=False)


def _read(path: Path) -> Any:
    import sys

    import yaml

    from orchestrator.errors import UserError

    try:
        return yaml.safe_load(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {error}") from error


def _show_capacity(said: dict[str, Any], as_json: bool) -> None:
    from orchestrator.cli.console import emit, emit_json

    if as_json:
        return emit_json(said)
    for place in said["no_capacity"]:
        emit(f"{place}\tany\tnone\t(setting no_capacity)")
    for row in said["capacity"]:
        amount = "all" if row["chips"] is None else f"{row['used']} of {row['chips']} chips" if row["chips"] else "none"
        emit(f"{row['zone']}/{row['type']}\t{row['tier']}\t{amount}\t{_when(row)}")
    if not said["capacity"] and not said["no_capacity"]:
        emit("enough of everything")
    return None


def _when(row: dict[str, Any]) -> str:
    from orchestrator.core.text.durations import format_duration

    if not row["holds"] and row["age_s"] < row["from_s"]:
        return f"in {format_duration(row['from_s'] - row['age_s'])}"
    if not row["holds"]:
        return "over"
    left = "" if row["until_s"] is None else f" for {format_duration(row['until_s'] - row['age_s'])}"
    return f"now{left}"


def _show_rehearsal(said: dict[str, Any], as_json: bool) -> None:
    from orchestrator.cli.console import emit, emit_json

    if as_json:
        return emit_json(said)
    for name, rows in said.items():
        if name == "settings":
            continue
        if isinstance(rows, list):
            emit(f"{name}\t{len(rows)}")
        else:
            emit(f"{name}\t{rows}")
    return None
