"""How the emulated cloud behaves: what fails, what becomes of a node, which capacity there is; see docs/emulator.md."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import yaml

from orchestrator.api.session.arguments import seconds
from orchestrator.cli import completion
from orchestrator.cli.commands.emulator.daemon import ask
from orchestrator.cli.console.output import emit, emit_result
from orchestrator.cli.options import Argument, Json, Option
from orchestrator.errors import UserError
from orchestrator.text.parsing import text_of
from orchestrator.text.units import format_duration


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
        data = json.loads(_text(path))
    except ValueError as error:
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
    at = datetime.fromtimestamp(row["at"]).strftime("%H:%M:%S.%f")[:-3]  # local time
    outcome = str(row["status"] or ("..." if row["seconds"] is None else "no reply"))
    return "\t".join((at, row["caller"], outcome, row["method"], row["path"], *row["faults"], *notes))


Node = Annotated[str, Argument(help="The node's id, or its full name.", autocompletion=completion.nodes)]
Notice = Annotated[
    str | None, Option("--notice", metavar="DURATION", help="Announce it to the VMs this long before: 30s.")
]


def preempt(node: Node, notice: Notice = None) -> None:
    """Preempt a node as Google preempts spot capacity: PREEMPTED, still listed, not billed, its hosts off."""
    _act(node, "preempt", given({"notice_s": _seconds("--notice", notice)}))


def maintain(
    node: Node,
    notice: Notice = None,
    lasts: Annotated[str | None, Option("--lasts", metavar="DURATION", help="How long the hosts are off: 10s.")] = None,
    scheduled: Annotated[bool, Option("--scheduled", help="Scheduled maintenance, not an emergency.")] = False,
) -> None:
    """Start a maintenance event: announced to the VMs and in the API, then the hosts go off and boot again."""
    seconds = {"notice_s": _seconds("--notice", notice), "lasts_s": _seconds("--lasts", lasts)}
    _act(node, "maintain", given(seconds) | {"kind": "SCHEDULED" if scheduled else "UNSCHEDULED"})


def vanish(node: Node) -> None:
    """Delete a node as another user would: the API no longer shows it."""
    _act(node, "vanish")


def put(
    node: Node,
    state: Annotated[str, Argument(help="READY, STOPPED, REPAIRING, UNKNOWN, TERMINATED, HIDDEN, PREEMPTED.")],
    lasts: Annotated[str | None, Option("--for", metavar="DURATION", help="READY again after this: 20s.")] = None,
) -> None:
    """Put a node into a state, as a failing host does."""
    _act(node, "put", given({"lasts_s": _seconds("--for", lasts)}) | {"state": state.upper()})


def worker(
    node: Node,
    index: Annotated[int, Argument(min=0, help="Worker index, from 0.")],
    condition: Annotated[
        str, Argument(metavar="well|refusing|silent|frozen|upgrading", help="Its condition from now on.")
    ],
) -> None:
    """Make one worker refuse or ignore SSH connections, or freeze its whole machine."""
    _act(node, "worker", {"worker": index, "condition": condition})


def _act(node: str, action: str, body: Any = None) -> None:
    reply = ask("POST", f"nodes/{quote(node, safe='/')}:{action}", body)
    emit(f"{reply['name']}\t{reply['state']}")


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else seconds(option, text, "0s", "30d")


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
    _show_supply(ask("POST", "capacity", row, start=True), as_json)


def list_capacity(as_json: Json = False) -> None:
    """List what was set. Of the entries that match and hold, the last one decides."""
    _show_supply(ask("GET", "capacity"), as_json)


def clear_capacity() -> None:
    """Remove every limit: there is enough of everything."""
    _show_supply(ask("DELETE", "capacity"), as_json=False)


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(_text(path))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {error}") from error


def _text(path: Path) -> str:
    """Return the text of a file, or of stdin for `-`. Raises UserError; ValueError for what is no text."""
    try:
        return sys.stdin.read() if str(path) == "-" else text_of(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", hint="name another file") from error


def _show_supply(reply: dict[str, Any], as_json: bool) -> None:
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
