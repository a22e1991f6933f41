"""Whom a message goes to: the receiver of a job, or that of the settings; and how its address is found when it is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.job.rules import notify as rules
from orchestrator.promise.lease.run_and_attempt import RunRecord
from orchestrator.promise.lease.run_spec import NotifyWish

OF_THE_SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class Receiver:
    """An address, or a command for the shell."""

    url: str | None = field(default=None, repr=False)
    command: str | None = None

    @property
    def shown(self) -> str:
        """What messages call it: of an address the host alone."""
        return "the command of `notify:`" if self.url is None else str(urlsplit(self.url).hostname)


def receiver_of(run: RunRecord | None, own: NotifyWish | None, event: str) -> str | None:
    """Return where the receiver of this event is found: a key of `find`; None: nobody is told. `own`: of the settings."""
    asked = None if run is None else run.spec.notify
    on = next((wish.on for wish in (asked, own) if wish is not None and wish.on is not None), rules.EVENTS)
    if event not in on:
        return None
    if run is not None and asked is not None and asked.receives:
        return json.dumps({"url": asked.url, "command": asked.command})
    return OF_THE_SETTINGS if own is not None and own.receives else None


def find(key: str, own: NotifyWish | None, environ: Mapping[str, str]) -> Receiver:
    """Return the receiver with its address. Raises ConfigError while it cannot be found, such as without its variable."""
    if key == OF_THE_SETTINGS:
        if own is None or not own.receives:
            raise ConfigError("the settings have no `notify:` any more")
        wish = own
    else:
        wish = NotifyWish(**json.loads(key))
    if wish.command is not None:
        return Receiver(command=wish.command)
    for url in addresses(wish, environ):
        if problem := rules.url_problem(url):
            raise ConfigError(f"the address of `notify:` {problem}")
        return Receiver(url)
    raise ConfigError(f"the variable {rules.variable_of(wish.url)}, which has the address, is not set here")


def addresses(wish: NotifyWish, environ: Mapping[str, str]) -> list[str]:
    """Return the address of the receiver, from its variable if it is there: a secret. Empty: it is not, or a command."""
    variable = rules.variable_of(wish.url)
    url = wish.url if variable is None else environ.get(variable, "").strip()
    return [url] if url else []
