"""`tpujob emulator …`: the embedded Cloud TPU by itself. What makes it misbehave is in `emulator_faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from orchestrator.cli import emulator_faults
from orchestrator.cli.options import Json

app = typer.Typer(
    help="The embedded Cloud TPU: start, stop, look at it, make it fail.", no_args_is_help=True, rich_markup_mode=None
)
emulator_faults.register(app)


def _directory() -> Path:
    return emulator_faults.directory()


@app.command("start")
def start() -> None:
    """Start it (other commands do so by themselves) and print the environment for gcloud."""
    from orchestrator.cli.talk import emit, talk
    from orchestrator.emulator import control

    directory = _directory()
    endpoint = control.ensure_running(directory)
    talk().say("emulator", f"running at {endpoint.url}, process {endpoint.pid}; for gcloud, set:")
    for name, value in control.gcloud_environment(endpoint, directory).items():
        emit(f"export {name}={value}")


@app.command("stop")
def stop() -> None:
    """Stop it, with every emulated VM and its processes."""
    from orchestrator.cli.talk import emit
    from orchestrator.emulator import control

    emit("stopped" if control.stop(_directory()) else "it was not running")


@app.command("status")
def status(as_json: Json = False) -> None:
    """Is it running, which nodes has it, and what does its billing meter say?"""
    from orchestrator.cli.talk import emit, emit_json
    from orchestrator.emulator import control

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
