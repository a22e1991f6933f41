"""`tpujob emulator fault|requests`: what fails, at which calls, and what was sent. See docs/emulator.md."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from orchestrator.cli.commands.emulator.daemon import ask
from orchestrator.cli.console import emit, emit_result
from orchestrator.cli.options import Argument, Json, Option
from orchestrator.core.text.text_file import text_of
from orchestrator.errors import UserError


def add_fault(
    kind: Annotated[str, Argument(help="What fails: status, lost_reply, drop, hidden, stuck, …")],
    parameters: Annotated[
        list[str] | None,
        Argument(metavar="[NAME=VALUE]...", help="The kind's parameters: seconds=3, status=429, literal=@FILE."),
    ] = None,
    operation: Annotated[
        str | None,
        Option(
            "--on",
            metavar="OPERATION",
            help="At which calls: nodes.delete, nodes.*; by default all that the kind fits.",
        ),
    ] = None,
    calls: Annotated[str | None, Option("--calls", help="Which of these calls, from 1: 2 or 1,3-5,9-.")] = None,
    first: Annotated[int | None, Option("--first", metavar="N", help="The first N of these calls.")] = None,
    probability: Annotated[float | None, Option("--probability", help="Each call with this probability.")] = None,
    seed: Annotated[int | None, Option("--seed", help="Another sequence of draws for --probability.")] = None,
    from_s: Annotated[
        float | None, Option("--from", metavar="SECONDS", help="Begin this many seconds from now.")
    ] = None,
    until_s: Annotated[
        float | None, Option("--until", metavar="SECONDS", help="End this many seconds from now.")
    ] = None,
    node: Annotated[str | None, Option("--node", metavar="GLOB", help="Only nodes with such an id.")] = None,
    zone: Annotated[str | None, Option("--zone", metavar="GLOB", help="Only in such a zone.")] = None,
    state: Annotated[str | None, Option("--state", help="Only nodes in this state.")] = None,
    caller: Annotated[
        str | None, Option("--caller", metavar="client|vm", help="Only calls of clients, or of VMs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a fault; it stays until it is cleared. Kinds and parameters: docs/emulator.md."""
    when = {"calls": calls, "first": first, "probability": probability, "seed": seed}
    when |= {"from_s": from_s, "until_s": until_s}
    fault = {
        "kind": kind,
        "operation": operation,
        "caller": caller,
        "match": given({"node": node, "zone": zone, "state": state}),
        "when": given(when),
    }
    _show(ask("POST", "faults", given(fault) | _parameters(parameters or []))["faults"], as_json)


def load_faults(
    path: Annotated[
        Path, Argument(metavar="FILE", help="A JSON file with one fault or a list of faults; - reads stdin.")
    ],
    as_json: Json = False,
) -> None:
    """Add the faults of a file: all of them, or none if one is invalid."""
    try:
        data = json.loads(sys.stdin.read() if str(path) == "-" else text_of(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    rows = data["faults"] if isinstance(data, dict) and "faults" in data else data
    _show(ask("POST", "faults", {"faults": rows if isinstance(rows, list) else [rows]})["faults"], as_json)


def list_faults(as_json: Json = False) -> None:
    """List the faults, with how many calls each of them matched and spoiled."""
    _show(ask("GET", "faults")["faults"], as_json)


def clear_faults(
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Which faults; by default all.")] = None,
) -> None:
    """Remove faults: the emulator works again. What they did to nodes stays."""
    answers = [ask("DELETE", f"faults/{quote(name, safe='')}") for name in ids] if ids else [ask("DELETE", "faults")]
    emit(f"cleared {sum(answer['cleared'] for answer in answers)}")


def requests(
    node: Annotated[str | None, Option("--node", help="Only calls about this node.")] = None,
    last: Annotated[int, Option("--last", metavar="N", min=1, help="The newest N calls.")] = 50,
    as_json: Json = False,
) -> None:
    """List the newest calls to the emulated API: caller, reply, method, path, and the faults they met."""
    query = f"?{urlencode({'node': node})}" if node else ""
    rows = ask("GET", f"requests{query}")["requests"][-last:]
    emit_result(rows, map(_request_line, rows), as_json=as_json)


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that hold something."""
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    emit_result(rows, map(_fault_line, rows), as_json=as_json)


def _fault_line(row: dict[str, Any]) -> str:
    known = ("id", "kind", "operation", "caller", "match", "when", "added_at", "calls", "hits")
    limits = {"caller": row["caller"]} | row["match"] | row["when"]
    details = limits | {name: value for name, value in row.items() if name not in known and value != ""}
    text = " ".join(" ".join(f"{name}={value}".split()) for name, value in details.items() if value != "any")
    return f"{row['id']}\t{row['kind']}\t{row['operation']}\t{row['hits']} of {row['calls']} calls\t{text}"


def _parameters(pairs: list[str]) -> dict[str, Any]:
    """Return the values of NAME=VALUE pairs; one that is not JSON is a text; @FILE is that of a file. Raises UserError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"{pair!r} is not of the form NAME=VALUE")
        try:
            found[name] = text_of(Path(value[1:]).read_bytes()) if value[:1] == "@" else json.loads(value)
        except OSError as error:
            raise UserError(f"{value[1:]} cannot be read: {error.strerror}") from error
        except ValueError:
            found[name] = value
    return found


def _request_line(row: dict[str, Any]) -> str:
    notes = [row["note"]] if row.get("note") else []  # a daemon of an older tpujob has none
    return "\t".join(
        (_clock(row["at"]), row["caller"], _outcome(row), row["method"], row["path"], *row["faults"], *notes)
    )


def _outcome(row: dict[str, Any]) -> str:
    if row["status"] is not None:
        return str(row["status"])
    return "..." if row["seconds"] is None else "no reply"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S.%f")[:-3]  # local time
