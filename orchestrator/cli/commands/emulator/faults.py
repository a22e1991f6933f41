"""`tpujob emulator fault|requests|preempt|vanish|put|worker`: rehearse disasters, and see what was sent. docs/emulator.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.options import Json

fault = typer.Typer(help="Faults: what goes wrong, at which calls.", no_args_is_help=True, rich_markup_mode=None)
Node = Annotated[str, typer.Argument(help="The node's id, or its full name.")]


def register(app: typer.Typer) -> None:
    app.add_typer(fault, name="fault")
    for command in (requests, preempt, maintain, vanish, put, worker):
        app.command(command.__name__)(command)


def directory() -> Path:
    import os

    from orchestrator import settings

    return settings.open_state_dir(settings.state_dir(os.environ)) / "emulator"


def ask(method: str, path: str, body: Any = None) -> Any:
    """The running daemon's answer; it is started if there is none."""
    from orchestrator.emulator.daemon import control
    from orchestrator.errors import UserError

    try:
        return control.request(control.ensure_running(directory()), method, f"/_emulator/{path}", body)
    except control.DaemonRefused as error:
        raise UserError(error.message, hint="see docs/emulator.md") from error


@fault.command("add")
def add(
    kind: Annotated[str, typer.Argument(help="What goes wrong: status, lost_reply, drop, hidden, stuck, …")],
    parameters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="The kind's parameters: seconds=3, status=429."),
    ] = None,
    operation: Annotated[
        str | None, typer.Option("--on", help="At which calls: nodes.delete, nodes.*; by default all of this kind.")
    ] = None,
    calls: Annotated[str | None, typer.Option("--calls", help="Which of them, from 1: 2 or 1,3-5,9-.")] = None,
    first: Annotated[int | None, typer.Option("--first", help="The first so many of them.")] = None,
    probability: Annotated[float | None, typer.Option("--probability", help="Each with this probability.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Another sequence of draws for --probability.")] = None,
    from_s: Annotated[float | None, typer.Option("--from", help="Not before so many seconds from now.")] = None,
    until_s: Annotated[float | None, typer.Option("--until", help="No longer than so many seconds from now.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="Only nodes with such an id (a glob).")] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Only in such a zone (a glob).")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only nodes in this state.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", metavar="client|vm", help="Only calls of these.")] = None,
    as_json: Json = False,
) -> None:
    """Let something go wrong from now on, until it is cleared. Kinds and parameters: docs/emulator.md."""
    when = {"calls": calls, "first": first, "probability": probability, "seed": seed}
    when |= {"from_s": from_s, "until_s": until_s}
    wanted = {
        "kind": kind,
        "operation": operation,
        "caller": caller,
        "match": _given({"node": node, "zone": zone, "state": state}),
        "when": _given(when),
    }
    _show(ask("POST", "faults", _given(wanted) | _parameters(parameters or []))["faults"], as_json)


@fault.command("load")
def load(
    path: Annotated[Path, typer.Argument(help="A JSON file with one fault, a list of them, or - for stdin.")],
    as_json: Json = False,
) -> None:
    """Add the faults of a file, all of them or none."""
    import json
    import sys

    from orchestrator.errors import UserError

    try:
        data = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    rows = data["faults"] if isinstance(data, dict) and "faults" in data else data
    _show(ask("POST", "faults", {"faults": rows if isinstance(rows, list) else [rows]})["faults"], as_json)


@fault.command("list")
def list_faults(as_json: Json = False) -> None:
    """The faults there are, and how many calls each of them met and spoiled."""
    _show(ask("GET", "faults")["faults"], as_json)


@fault.command("clear")
def clear(ids: Annotated[list[str] | None, typer.Argument(help="Which ones, by id; by default all.")] = None) -> None:
    """Remove faults: the emulator behaves again. What they did to nodes stays."""
    from urllib.parse import quote

    from orchestrator.cli.console import emit

    answers = [ask("DELETE", f"faults/{quote(name, safe='')}") for name in ids] if ids else [ask("DELETE", "faults")]
    emit(f"cleared {sum(answer['cleared'] for answer in answers)}")


def requests(
    node: Annotated[str | None, typer.Option("--node", help="Only calls about this node.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="At most so many, the newest.")] = 50,
    as_json: Json = False,
) -> None:
    """The newest calls to the emulated API: who made them, what they got, and which faults they met."""
    from urllib.parse import urlencode

    from orchestrator.cli.console import emit, emit_json

    query = f"?{urlencode({'node': node})}" if node else ""
    rows = ask("GET", f"requests{query}")["requests"][-last:]
    if as_json:
        return emit_json(rows)
    for row in rows:
        emit("\t".join((_clock(row["at"]), row["caller"], _outcome(row), row["method"], row["path"], *row["faults"])))
    return None


def preempt(
    node: Node,
    notice: Annotated[str | None, typer.Option("--notice", help="Its VMs are told so long before: 30s.")] = None,
) -> None:
    """Take a node away as Google takes spot capacity: PREEMPTED, still listed, not billed, its hosts off."""
    _act(node, "preempt", _given({"notice_s": _seconds("--notice", notice)}))


def maintain(
    node: Node,
    notice: Annotated[str | None, typer.Option("--notice", help="Announced so long before: 30s.")] = None,
    lasts: Annotated[str | None, typer.Option("--lasts", help="How long its hosts are off: 10s.")] = None,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="As announced long ago, not as an emergency.")] = False,
) -> None:
    """Maintenance of its hosts: announced to its VMs and in the API, then they go off, come back and boot again."""
    seconds = {"notice_s": _seconds("--notice", notice), "lasts_s": _seconds("--lasts", lasts)}
    _act(node, "maintain", _given(seconds) | {"kind": "SCHEDULED" if scheduled else "UNSCHEDULED"})


def vanish(node: Node) -> None:
    """Delete a node as somebody else would: at once nobody sees it any more."""
    _act(node, "vanish")


def put(
    node: Node,
    state: Annotated[str, typer.Argument(help="READY, STOPPED, REPAIRING, UNKNOWN, TERMINATED, HIDDEN, PREEMPTED.")],
    lasts: Annotated[str | None, typer.Option("--for", help="READY again after so long: 20s.")] = None,
) -> None:
    """Put a node into a state, as failures of hosts do: REPAIRING --for 20s."""
    _act(node, "put", _given({"lasts_s": _seconds("--for", lasts)}) | {"state": state.upper()})


def worker(
    node: Node,
    index: Annotated[int, typer.Argument(min=0, help="Worker index, from 0.")],
    condition: Annotated[str, typer.Argument(metavar="well|refusing|silent|frozen", help="How it is from now on.")],
) -> None:
    """Shut or silence the SSH door of one worker, or let its whole machine hang."""
    _act(node, "worker", {"worker": index, "condition": condition})


def _act(node: str, action: str, body: Any = None) -> None:
    from urllib.parse import quote

    from orchestrator.cli.console import emit

    said = ask("POST", f"nodes/{quote(node, safe='/')}:{action}", body)
    emit(f"{said['name']}\t{said['state']}")


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    from orchestrator.cli.console import emit, emit_json

    if as_json:
        return emit_json(rows)
    known = ("id", "kind", "operation", "caller", "match", "when", "added_at", "calls", "hits")
    for row in rows:
        given = {"caller": row["caller"]} | row["match"] | row["when"]
        details = given | {name: value for name, value in row.items() if name not in known and value != ""}
        words = " ".join(f"{name}={value}" for name, value in details.items() if value != "any")
        emit(f"{row['id']}\t{row['kind']}\t{row['operation']}\t{row['hits']} of {row['calls']} calls\t{words}")
    return None


def _parameters(words: list[str]) -> dict[str, Any]:
    """NAME=VALUE, where a value that reads as JSON is that, and anything else is a text."""
    import json

    from orchestrator.errors import UserError

    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"{word!r} is not of the form NAME=VALUE.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _seconds(option: str, text: str | None) -> float | None:
    from orchestrator.cli.options import duration

    return None if text is None else duration(option, text, least="0s", most="30d")


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _outcome(row: dict[str, Any]) -> str:
    if row["status"] is not None:
        return str(row["status"])
    return "..." if row["seconds"] is None else "no reply"


def _clock(at: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%H:%M:%S.%f")[:-3]  # the local time of whoever reads it
