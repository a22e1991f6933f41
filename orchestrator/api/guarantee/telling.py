"""`notify`: send a test message to a receiver and say what came back; and the health check of `doctor`."""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from pathlib import Path

from orchestrator import settings
from orchestrator.api.guarantee.health_checks import HealthCheck
from orchestrator.api.jobs import planning
from orchestrator.api.jobs.job import spec_of, sweep_of
from orchestrator.api.session.session import Session
from orchestrator.errors import TpujobError, UserError
from orchestrator.job.rules.notify import variable_of
from orchestrator.notify import receivers
from orchestrator.notify.delivery import deliver
from orchestrator.notify.messages import Message
from orchestrator.notify.outbox import Outbox
from orchestrator.notify.receivers import OF_THE_SETTINGS
from orchestrator.promise.lease.run_spec import NotifyWish
from orchestrator.system.user import user_name

NAME = "notify"
TOLD_S = 7 * 86400.0  # for so long doctor tells of what was given up


def send_test(session: Session, file: Path | None = None) -> str:
    """Send a test message to the receiver of the settings, or of a job file; return what came back.

    What waits for its next try is tried now, too. Raises UserError without a receiver, ConfigError for one that cannot be
    found, TpujobError if the message was not taken.
    """
    wish = session.target.notify if file is None else _of_the_job(session, file)
    if wish is None or not wish.receives:
        where = "the settings have no `notify:`" if file is None else f"nobody is told of {file}"
        raise UserError(f"{where} with an address or a command", hint="docs/notify.md shows how to name one")
    receiver = receivers.find(OF_THE_SETTINGS, wish, os.environ)
    session.reporter.secrets.add(*receivers.addresses(wish, os.environ))
    text = f"tpujob of {user_name()} says hello: this is how you are told what becomes of your runs"
    message = Message(f"test/{secrets.token_hex(4)}", "test", time.time(), text)
    done = deliver(receiver, (message,), session.reporter.secrets)
    session.notifier.hurry()
    if not done.ok:
        raise TpujobError(done.said, hint="docs/notify.md has what each receiver expects")
    return done.said


def check(session: Session) -> HealthCheck | None:
    """Return whether people are told what becomes of runs; None: nobody wants to be."""
    own = session.target.notify
    if own is None and not session.notifier.has_outbox:
        return None
    told = f"{_shown(own)}: `tpujob notify` sends a test message" if own is not None else "as the jobs say"
    if exposed := _exposed(own):
        return HealthCheck(
            NAME, False, f"{told}; other users can read the address in {exposed}", f"chmod 600 {exposed}"
        )
    try:
        outbox = Outbox(session.directory)
        problems = outbox.problems(time.time() - TOLD_S) if session.notifier.has_outbox else []
    except sqlite3.Error as error:
        return HealthCheck(NAME, False, f"what waits to be told cannot be read: {error}")
    if not problems:
        return HealthCheck(NAME, True, told)
    texts = [
        f"{each.count} message{'s'[: each.count > 1]} {'not delivered' if each.final else 'waiting'}: {each.why}"
        for each in problems
    ]
    fix = "`tpujob notify` tries again, and says what comes back"
    return HealthCheck(NAME, False, session.reporter.secrets.hide("; ".join(texts)), fix)


def _of_the_job(session: Session, file: Path) -> NotifyWish | None:
    found = planning.read(planning.JobRequest(file))
    spec = sweep_of(found).variants[0].spec if found.is_sweep else spec_of(found)
    planning.environment(spec, session.reporter)  # raises JobSpecError if its variable is not set
    if spec.notify is None or (spec.notify.on != () and not spec.notify.wish.receives):
        return session.target.notify
    return spec.notify.wish


def _shown(own: NotifyWish) -> str:
    try:
        return receivers.find(OF_THE_SETTINGS, own, os.environ).shown
    except TpujobError as error:
        return error.message


def _exposed(own: NotifyWish | None) -> Path | None:
    """Return the settings file, if an address is in it that other users can read."""
    path = settings.settings_path(os.environ)
    if own is None or own.url is None or variable_of(own.url) is not None:
        return None
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return path if mode & (stat.S_IRGRP | stat.S_IROTH) else None
