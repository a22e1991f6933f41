"""`tpujob emulator up|env|status`: the daemon, and how the other commands of this package ask it."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any

from cloud_tpu_emulator.daemon import control
from orchestrator.api.session.connections import own_emulator
from orchestrator.cli.console.output import console, emit, emit_json, emit_result, emit_wrapped
from orchestrator.cli.console.tables import on_terminal, print_table
from orchestrator.cli.options import Json, Option
from orchestrator.errors import UserError

RUNS = "startup-scripts of all clients run on this machine"


def running() -> control.Endpoint:
    """Return the daemon that runs now. Raises UserError if none does."""
    endpoint = control.running(own_emulator())
    if endpoint is None:
        raise UserError("the emulator is not running", hint="`tpujob emulator up` starts it")
    return endpoint


def ask(method: str, path: str, body: Any = None, *, start: bool = False) -> Any:
    """Return the reply of the daemon's admin API. `start`: start the daemon if none runs.

    Raises UserError if none runs, or if it refuses.
    """
    endpoint = control.ensure_running(own_emulator()) if start else running()
    try:
        return control.request(endpoint, method, f"/_emulator/{path}", body)
    except control.DaemonRefused as error:
        raise UserError(error.message, hint="docs/emulator.md says what the emulator takes") from error


def up(
    grpc: Annotated[bool, Option("--grpc", help="Serve gRPC too, on a port of its own.")] = False,
    grpc_port: Annotated[
        int, Option("--grpc-port", min=0, max=65535, help="The gRPC port; by default a free one.")
    ] = 0,
    relay: Annotated[
        bool, Option("--relay", help="Serve the relay of IAP over TLS too, for `gcloud compute start-iap-tunnel`.")
    ] = False,
    port: Annotated[
        int, Option("--port", min=0, max=65535, help="The REST port; by default the one of last time, or a free one.")
    ] = 0,
    lend_torch: Annotated[
        bool | None,
        Option(
            "--lend-torch/--no-lend-torch",
            help="On nodes created from now on, `command:` jobs can import this machine's torch; a TPU VM has none. "
            "The setting stays until it is changed.",
        ),
    ] = None,
    startup_scripts: Annotated[
        bool | None,
        Option(
            "--startup-scripts/--no-startup-scripts",
            help="Run the startup-scripts of nodes that gcloud and other clients create, as you, on this machine. "
            "The setting stays until it is changed.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the emulator and print the environment for gcloud, curl and Python. Other commands start it when they need it."""
    if lend_torch and importlib.util.find_spec("torch") is None:
        raise UserError(
            "--lend-torch: tpujob's Python environment has no torch",
            hint="pip install -e '.[local]' in the checkout; docs/install.md has the other ways",
        )
    state = own_emulator()
    endpoint = control.ensure_running(state, port)
    if port not in (0, int(endpoint.url.rpartition(":")[2])):
        raise UserError(
            f"the emulator is already running at {endpoint.url}", hint="`tpujob emulator stop` first; its nodes stay"
        )
    try:
        has_changed = control.open_more(
            endpoint,
            grpc=grpc,
            grpc_port=grpc_port,
            relay=relay,
            lend_torch=lend_torch,
            startup_scripts=startup_scripts,
        )
    except control.DaemonRefused as error:
        hint = "an emulator of an older tpujob does not know this: `tpujob emulator stop` first; its nodes stay"
        raise UserError(error.message, hint=hint) from error
    # Who changes a setting by hand asks for no environment; a shell that evaluates the output does.
    _show_environment(endpoint, state, as_json, only_notices=has_changed and on_terminal())


def env(as_json: Json = False) -> None:
    """Print the environment of the running emulator: eval "$(tpujob emulator env)"."""
    _show_environment(running(), own_emulator(), as_json)


def status(as_json: Json = False) -> None:
    """Show whether the emulator runs, its nodes, and its billing meter."""
    endpoint = control.running(own_emulator())
    if endpoint is None:
        emit_result({"running": False}, ["not running; commands start it when they need it"], as_json=as_json)
        return
    billing, found = (control.request(endpoint, "GET", f"/_emulator/{what}") for what in ("billing", "status"))
    lines = [f"running at {endpoint.url}, process {endpoint.pid} (emulated: nothing here costs money)"]
    why = found.get("unsaved_because") or None
    if why is not None:
        lines.append(f"its state cannot be saved ({why}), so it refuses every call: make room for {found['state_dir']}")
    runs = bool(found["settings"].get("client_startup_scripts"))
    lines.append(RUNS if runs else "startup-scripts of other clients than tpujob do not run on this machine")
    scripts = {row["uid"]: row["startup_script"] for row in found["nodes"] if row.get("startup_script")}
    shape = {"running": True, "url": endpoint.url, "pid": endpoint.pid, "client_startup_scripts": runs}
    shape |= {
        "unsaved_because": why,
        "startup_scripts_off": [row["name"] for row in found["nodes"] if row["uid"] in scripts],
        "billing": billing,
    }
    if as_json:
        emit_json(shape)
        return
    emit_wrapped(lines)
    rows = [_row(row, [scripts.get(row["uid"], "")] if scripts else []) for row in billing["nodes"]]
    head = ["NODE", "TYPE", "ZONE", "STATE", "BILLED", *(["STARTUP-SCRIPT"] if scripts else [])]
    if rows:
        print_table(head, rows, right=[4], states=[3], shortens=[0], wraps=[5] if scripts else [])


def _row(row: dict[str, Any], more: list[str]) -> list[str]:
    """Return the cells of a node. On a terminal its id is enough, beside its zone."""
    name = row["name"].rpartition("/")[2] if on_terminal() else row["name"]
    state = "billing" if row["until"] is None else "ended"
    return [name, row["type"], row["zone"], state, f"{row['node_seconds']:.1f} s", *more]


def _show_environment(endpoint: control.Endpoint, state: Path, as_json: bool, *, only_notices: bool = False) -> None:
    if as_json:
        found, path = control.client_environment(endpoint, state), str(control.ssh_programs(state))
        emit_json({"url": endpoint.url, "pid": endpoint.pid, "environment": found, "path": path})
        return
    console().notice("emulator", f"at {endpoint.url}, process {endpoint.pid}: nothing here costs money")
    settings_now = control.request(endpoint, "GET", "/_emulator/settings")
    if settings_now.get("client_startup_scripts"):
        console().notice("emulator", f"{RUNS} (`tpujob emulator up --no-startup-scripts` ends that)")
    if settings_now.get("lend_torch"):
        console().notice("emulator", "this machine's torch is lent to jobs; `--no-lend-torch` ends that")
    if not only_notices:
        emit(control.shell_lines(endpoint, state))
