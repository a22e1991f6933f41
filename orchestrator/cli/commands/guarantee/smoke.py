"""`tpujob smoke`: the life of slices on your own project, for little money, with a transcript to look at and to send in."""

import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from orchestrator.api.slices.offers import Offers
from orchestrator.cli import completion
from orchestrator.cli.console.output import console, emit_json, emit_wrapped, open_client
from orchestrator.cli.options import Cloud, Json, Option, Project
from orchestrator.drill.smoke import MOST_S, MOST_USD, Smoke, Step, Wish, most_usd
from orchestrator.errors import NOT_PROVEN, Interrupted, TpujobError, UserError
from orchestrator.promise.guardian_process import with_absolute_paths
from orchestrator.text.units import format_duration, format_usd
from orchestrator.traits import is_emulated


def smoke(
    accelerator: Annotated[
        str | None, Option(help="By default the cheapest that your project has.", autocompletion=completion.types)
    ] = None,
    zone: Annotated[
        str | None, Option(help="A zone or region; by default every one that has it.", autocompletion=completion.places)
    ] = None,
    spot: Annotated[bool, Option("--spot", help="Spot capacity: cheaper; a preemption fails the test.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask whether it may cost that.")] = False,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Prove tpujob on your own project: create, train, delete, gc and a watchdog at work, for at most $2 and 20 minutes.

    It writes a transcript of the calls to the API, in which names and secrets are replaced. Without a project it plays on
    the emulator. Ctrl-C at any moment deletes what there is. Exits with 75 unless everything is proven absent, else with 70
    if a step failed.
    """
    client = open_client(cloud, project)
    target = client.session.target
    emulated = is_emulated(target.kind)
    offers = client.offers(accelerator, zone=zone, refresh=not emulated)
    wish = choice(offers, spot=spot)
    price = f"{format_usd(wish.most_usd)} at most: {format_duration(MOST_S)} of {wish.accelerator} at "
    price += f"{format_usd(wish.usd_per_hour)} an hour ({offers.prices_as_of})"
    if emulated:
        console().notice("smoke", f"EMULATED Cloud TPU: it costs nothing; on Google Cloud {price}")
    else:
        ask(f"{target.project}: {price}. No slice that has a claim is touched", yes=yes)
    kept = client.session.directory / "smoke"
    kept.mkdir(mode=0o700, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=kept))
    interrupted: Interrupted | None = None
    with tempfile.TemporaryDirectory(prefix="tpujob-smoke-") as other:
        if emulated:  # the same cloud, seen from another machine
            emulator = client.session.directory.absolute() / "emulator"
            emulator.mkdir(mode=0o700, exist_ok=True)
            (Path(other) / "emulator").symlink_to(emulator)
        progress = partial(client.session.reporter.progress, "smoke")
        stop = partial(console().notice, "stop", "stopping: what there is is deleted, and its absence proven")
        signals: list[int] = []
        played = Smoke(wish, directory, Path(other), client.end_claim, _say(as_json), progress, stop, signals)
        _pass_to_commands(cloud, project, client.session.directory, played.transcript)
        played.transcript.touch(mode=0o600)
        _note_signals(signals)
        try:
            played.play()
        except Interrupted as error:
            interrupted = error
    if as_json:
        emit_json(_shape(wish, played))
    console().notice("wrote", f"{played.transcript}: names and secrets are replaced; look at it before you send it in")
    return verdict(played, interrupted)


def verdict(played: Smoke, interrupted: Interrupted | None) -> int:
    """Return the exit code; raise what interrupted it, if everything is proven absent."""
    if not played.steps[-1].ok:
        return NOT_PROVEN
    if interrupted is not None:
        raise interrupted
    return 0 if played.ok else TpujobError.exit_code


def choice(offers: Offers, *, spot: bool) -> Wish:
    """Return the cheapest type of one host, and its zones. Raises UserError if it may cost too much, or none is known."""
    rows = offers.in_project if offers.availability is None else [row for row in offers.rows if row.has]
    rows = [row for row in rows if row.kind and row.kind.hosts == 1 and row.price(spot=spot) is not None]
    if not rows:
        raise UserError("no type of one host with a known price is offered there", hint="`tpujob offers` lists them")
    least = min(rows, key=lambda row: (row.rank(spot=spot), row.kind.chips if row.kind else 0, row.accelerator))
    if (usd := most_usd(least.rank(spot=spot))) > MOST_USD:
        may = f"{least.accelerator} may cost {format_usd(usd)}, and this promises {format_usd(MOST_USD)} at most"
        raise UserError(
            may, hint="`--accelerator` names a smaller type, `--zone` a cheaper zone, `--spot` takes spot capacity"
        )
    same = [row for row in rows if row.accelerator == least.accelerator and most_usd(row.rank(spot=spot)) <= MOST_USD]
    if usd == 0.0:  # what is granted in one zone is paid for in the others
        same = [row for row in same if row.price(spot=spot) == 0.0]
    return Wish(least.accelerator, tuple(row.zone for row in same), max(row.rank(spot=spot) for row in same), spot)


def ask(what: str, *, yes: bool) -> None:
    """Say what it may cost, and ask. Raises UserError unless the person agrees, or has agreed."""
    console().notice("smoke", what)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("it costs money, and there is no terminal on which to ask", hint="`--yes` agrees")
    console().quiet()
    if not typer.confirm("Go on?", err=True):
        raise UserError("nothing was created")


def _say(as_json: bool) -> Any:
    def say(step: Step) -> None:
        if not as_json:
            verdict = step.name if step.ok else f"{step.name} FAILED"
            emit_wrapped([f"{verdict} · {step.what} · {format_duration(step.seconds)}"], indent=3)

    return say


def _shape(wish: Wish, played: Smoke) -> dict[str, Any]:
    return {
        "ok": played.ok,
        "accelerator": wish.accelerator,
        "zones": wish.zones,
        "spot": wish.spot,
        "usd_at_most": round(wish.most_usd, 4),
        "steps": [
            {"step": each.name, "ok": each.ok, "seconds": round(each.seconds, 3), "what": each.what}
            for each in played.steps
        ],
        "transcript": str(played.transcript),
    }


def _pass_to_commands(cloud: str | None, project: str | None, state: Path, transcript: Path) -> None:
    """Set what the calls of this process and its commands, which run in another directory, go by."""
    given = {"TPUJOB_CLOUD": cloud, "TPUJOB_PROJECT": project, "TPUJOB_STATE_DIR": str(state.absolute())}
    os.environ.update({name: value for name, value in given.items() if value} | {"TPUJOB_TRANSCRIPT": str(transcript)})
    os.environ.update(with_absolute_paths(os.environ, str(Path.cwd())))


def _note_signals(arrived: list[int]) -> None:
    """Note signals, and interrupt nothing: the command that runs deletes its slice, and what is left is deleted after it."""

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup a closed terminal ends nothing. An ignored SIGINT would be one of the commands, too, which it has to end.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
