"""`tpujob emulator …`: the embedded Cloud TPU by itself.

What goes wrong there is in `emulator_faults`, what there is of it in `emulator_supply`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands.emulator import faults, supply
from orchestrator.cli.options import Json

if TYPE_CHECKING:
    from orchestrator.emulator.daemon.control import Endpoint

# Comments to the shell: `eval "$(tpujob emulator env)"` reads over them.
EXAMPLES = """\
# gcloud: gcloud compute tpus tpu-vm list --zone=-
# curl:   curl -H "Authorization: Bearer $(cat $TPUJOB_EMULATOR_TOKEN_FILE)" \\
#           $TPUJOB_EMULATOR_URL/v2/projects/emulated/locations/-/nodes
# python: TpuClient(transport="rest", credentials=Credentials(TOKEN), client_options={"api_endpoint": URL})
#         (over gRPC, with the async client, in pytest: docs/emulator.md)"""
app = typer.Typer(
    help="The embedded Cloud TPU: start, stop, look at it, make it fail.", no_args_is_help=True, rich_markup_mode=None
)
faults.register(app)
supply.register(app)


def _directory() -> Path:
    return faults.directory()


@app.command("up")
def up(
    grpc: Annotated[bool, typer.Option("--grpc", help="Speak gRPC, too, at a port of its own.")] = False,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=0, max=65535, help="That port; by default a free one.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="The port of REST; by default that of last time, or a free one."),
    ] = 0,
    lend_torch: Annotated[
        bool | None,
        typer.Option(
            "--lend-torch/--no-lend-torch",
            help="On nodes created from now on, `command:` jobs find this machine's torch, too; a TPU VM has none. "
            "It stays so until you say otherwise.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start it (other commands do so by themselves) and print the environment for gcloud, curl and Python."""
    from orchestrator.emulator.daemon import control
    from orchestrator.errors import UserError

    if lend_torch and importlib.util.find_spec("torch") is None:
        raise UserError(
            "--lend-torch: tpujob's Python environment has no torch",
            hint="pip install 'tpujob[local]' (in a checkout: pip install -e '.[local]')",
        )
    directory = _directory()
    endpoint = control.ensure_running(directory, port)
    if port not in (0, _port_of(endpoint.url)):
        raise UserError(
            f"The emulator is running at {endpoint.url} already.", hint="`tpujob emulator stop` first, its nodes stay"
        )
    try:
        if grpc or grpc_port:
            control.open_grpc(endpoint, grpc_port)
        if lend_torch is not None:
            control.request(endpoint, "PATCH", "/_emulator/settings", {"lend_torch": lend_torch})
    except control.DaemonRefused as error:
        hint = "an emulator that an older tpujob started knows less: `tpujob emulator stop` first, its nodes stay"
        raise UserError(error.message, hint=hint) from error
    _show_environment(endpoint, directory, as_json)


@app.command("env")
def env(as_json: Json = False) -> None:
    """Print the environment of the running one for gcloud, curl and Python: eval "$(tpujob emulator env)"."""
    from orchestrator.emulator.daemon import control
    from orchestrator.errors import UserError

    directory = _directory()
    endpoint = control.running(directory)
    if endpoint is None:
        raise UserError("The emulator is not running.", hint="`tpujob emulator up` starts it")
    _show_environment(endpoint, directory, as_json)


def _show_environment(endpoint: Endpoint, directory: Path, as_json: bool) -> None:
    import shlex

    from orchestrator.cli.console import console, emit, emit_json
    from orchestrator.emulator.daemon import control

    found = control.client_environment(endpoint, directory)
    path = str(control.ssh_programs(directory))
    if as_json:
        return emit_json({"url": endpoint.url, "pid": endpoint.pid, "environment": found, "path": path})
    console().say("emulator", f"running at {endpoint.url}, process {endpoint.pid}: a Cloud TPU that nobody pays for")
    if control.request(endpoint, "GET", "/_emulator/settings").get("lend_torch"):  # not in an older one
        words = "this machine's torch is lent to the commands of jobs; a TPU VM comes without it"
        console().say("emulator", f"{words} (`tpujob emulator up --no-lend-torch` ends that)")
    for name, value in found.items():
        emit(f"export {name}={shlex.quote(value)}")
    emit(f'export PATH={shlex.quote(path)}:"$PATH"  # gcloud\'s ssh and scp')
    emit(EXAMPLES)
    return None


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@app.command("stop")
def stop() -> None:
    """Stop it, with every emulated VM and its processes."""
    from orchestrator.cli.console import emit
    from orchestrator.emulator.daemon import control

    emit("stopped" if control.stop(_directory()) else "it was not running")


@app.command("status")
def status(as_json: Json = False) -> None:
    """Is it running, which nodes has it, and what does its billing meter say?"""
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.emulator.daemon import control

    endpoint = control.running(_directory())
    shape: dict[str, Any] = {"running": endpoint is not None}
    if endpoint is not None:
        shape |= {
            "url": endpoint.url,
            "pid": endpoint.pid,
            "billing": control.request(endpoint, "GET", "/_emulator/billing"),
        }
    if as_json:
        emit_json(shape)
    elif endpoint is None:
        emit("not running; commands start it when they need it")
    else:
        emit(f"running at {endpoint.url}, process {endpoint.pid} (emulated: nobody pays for any of this)")
        for row in shape["billing"]["nodes"]:
            state = "billing" if row["until"] is None else "ended"
            emit(f"{row['name']}\t{row['type']}\t{row['zone']}\t{state}\t{row['node_seconds']:.1f} s")
