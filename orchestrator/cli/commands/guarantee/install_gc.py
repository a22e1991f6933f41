"""`tpujob install-gc`: a timer of this machine that finishes what was left, also after a crash or a reboot."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

import orchestrator

if TYPE_CHECKING:
    from orchestrator.client.guarantee.timers import Schedule

# What decides which cloud, which project and which state a command means, and how it gets there.
CARRIED = (
    *("TPUJOB_CLOUD", "TPUJOB_PROJECT", "TPUJOB_ZONE", "TPUJOB_ENDPOINT", "TPUJOB_TOKEN_FILE", "TPUJOB_EMULATED_SPEED"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CONFIG", "CLOUDSDK_ACTIVE_CONFIG_NAME"),
    *("CLOUDSDK_CORE_PROJECT", "XDG_CONFIG_HOME", "PYTHONPATH", "REQUESTS_CA_BUNDLE"),
    *("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)
SHORTEST_S, LONGEST_S = 60, 86400


def install_gc(
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often, such as 5m or 1h.")] = "5m",
    show: Annotated[bool, typer.Option("--print", help="Print what would be written, and write nothing.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take it away again.")] = False,
) -> None:
    """Have this machine run `tpujob gc --local` every few minutes: a systemd timer, a launchd agent or a cron line.

    It keeps today's state directory, cloud and project, whatever the environment will be then.
    """
    from orchestrator.cli.console import console, emit
    from orchestrator.client.guarantee import timers
    from orchestrator.client.guarantee.timers import lingers

    if uninstall:
        removed = [timer.kind for timer in timers.every(os.environ, sys.platform) if timer.remove()]
        emit(f"removed: {', '.join(removed)}" if removed else "none was installed")
        return
    wanted = schedule(every, os.environ)
    timer = timers.choose(os.environ, sys.platform)
    if show:
        for where, text in timer.written(wanted).items():
            emit(f"# {where}")
            emit(text)
        return
    timer.install(wanted)
    for other in timers.every(os.environ, sys.platform):
        if other.kind != timer.kind:
            other.remove()  # of an earlier time, when this machine had no better one
    emit(f"installed: {timer.present() or timer.kind}, every {every}")
    for where in timer.written(wanted):
        console().notice("wrote", where)
    if timer.kind == timers.Systemd.kind and not lingers():
        console().notice("note", "it runs while you are logged in; `loginctl enable-linger` lets it run always")


def schedule(every: str, environ: Mapping[str, str]) -> Schedule:
    from orchestrator import settings
    from orchestrator.client.guarantee.timers import Schedule
    from orchestrator.errors import ConfigError

    state = settings.state_dir(environ)
    carried = {name: environ[name] for name in CARRIED if environ.get(name)}
    carried = {"TPUJOB_STATE_DIR": str(state)} | carried
    for name, value in carried.items():
        if "\n" in value or "\0" in value:
            raise ConfigError(f"{name} spans several lines and cannot be carried into a timer")
    return Schedule(
        argv=(sys.executable, "-m", "orchestrator.cli", "gc", "--local", "--quiet"),
        environ=carried,
        directory=orchestrator.ROOT,
        every_s=_seconds(every),
        log=settings.open_state_dir(state) / "gc.log",
    )


def _seconds(text: str) -> int:
    from orchestrator.core.text.durations import parse_duration
    from orchestrator.errors import UserError

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"--every: {text!r}: {error}") from error
    if not SHORTEST_S <= seconds <= LONGEST_S or seconds % 60 or (seconds > 3600 and seconds % 3600):
        raise UserError(
            f"--every: {text!r} must be whole minutes up to 1h, or whole hours up to 24h", hint="5m is usual"
        )
    return int(seconds)
