"""`tpujob install-gc`: a timer of this machine that finishes its teardowns, also after a crash or a reboot."""

from typing import Annotated

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Option
from orchestrator.client.guarantee import timers as client
from orchestrator.core.text.units import parse_duration
from orchestrator.errors import UserError

SHORTEST_S, LONGEST_S = 60, 86400


def install_gc(
    every: Annotated[str, Option("--every", metavar="DURATION", help="How often, such as 5m or 1h.")] = "5m",
    show: Annotated[bool, Option("--print", help="Print what would be written, and write nothing.")] = False,
    uninstall: Annotated[bool, Option("--uninstall", help="Remove the timer.")] = False,
) -> None:
    """Install a timer that runs `tpujob gc --local` every few minutes: a systemd timer, a launchd agent or a cron line.

    It keeps today's state directory, cloud and project, whatever the environment is later.
    """
    if uninstall:
        removed = client.uninstall()
        emit(f"removed: {', '.join(removed)}" if removed else "none was installed")
        return
    every_s = seconds(every)
    if show:
        for where, text in client.preview(every_s).items():
            emit(f"# {where}")
            emit(text)
        return
    timer = client.install(every_s)
    emit(f"installed: {timer.summary}, every {every}")
    for where in timer.written:
        console().notice("wrote", where)
    if timer.ends_at_logout:
        console().notice("note", "it runs while you are logged in; `loginctl enable-linger` keeps it running")


def seconds(text: str) -> int:
    """Return the seconds of `--every`. Raises UserError unless they are whole minutes up to 1h or whole hours up to 24h."""
    try:
        every_s = parse_duration(text, "1m", "24h")
    except ValueError as error:
        raise UserError(f"--every: {text!r}: {error}") from error
    if not SHORTEST_S <= every_s <= LONGEST_S or every_s % 60 or (every_s > 3600 and every_s % 3600):
        raise UserError(
            f"--every: {text!r} must be whole minutes up to 1h, or whole hours up to 24h", hint="5m is usual"
        )
    return int(every_s)
