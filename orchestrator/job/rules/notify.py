"""The rules of `notify:`, of a job or of the settings: who is told, and of what. Pure.

An address is a secret, so no message about one repeats it.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestrator.job.rules.env import ENV_REFERENCE
from orchestrator.text.names import for_display

EVENTS = ("started", "preempted", "restarted", "ended", "results-waiting", "cost-near", "teardown-unproven")
OFF = "off"
_FORMS = "expected an address, a mapping with `url:` or `command:`, or `off`"
_ADDRESS = re.compile(r"[!-~]{1,2000}")


def short_form(value: Any) -> Any:
    """Return the section that a value in place of it stands for: an address, or `off`. Raises ValueError."""
    if value is False or (isinstance(value, str) and value.strip().lower() == OFF):
        return {"on": []}
    if isinstance(value, str):
        return {"url": value}
    if value is None or isinstance(value, Mapping):
        return value
    raise ValueError(_FORMS)


def url(value: Any) -> str | None:
    """Return an address that messages can be sent to, or a reference to the variable that has it. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("expected an address as text")
    if problem := url_problem(value.strip()):
        raise ValueError(problem)
    return value.strip()


def url_problem(text: str) -> str | None:
    """Return why nothing is sent to this address; None: it is fine, or a reference to a variable."""
    if variable_of(text) is not None:
        return None
    if not _ADDRESS.fullmatch(text):
        return "is not an address: write https://… without blanks, or `${env:NAME}` for your variable that has it"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "is not an address that can be read: it has a wrong host or port"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "is not the address of a web server: write https://…, or `command:` for anything else"
    if parts.username is not None or parts.fragment:
        return "has a user name before its host, or a `#`; an address with a token in its path or query does"
    if parts.scheme == "http" and not _is_loopback(host):
        return "would send a secret address unencrypted; write https:// (http:// only leads to this machine)"
    return None


def variable_of(text: str | None) -> str | None:
    """Return the variable of yours that has the address; None: the text is the address."""
    found = ENV_REFERENCE.fullmatch(text or "")
    return found[1] if found else None


def command(value: Any) -> str | None:
    """Return a command for the shell. Raises ValueError."""
    if value is None or (isinstance(value, str) and value.strip() and "\0" not in value):
        return value
    raise ValueError("expected a command for the shell, as text")


def events(value: Any) -> tuple[str, ...] | None:
    """Return the events to tell of; none of them is `off`. Raises ValueError."""
    if value is None:
        return None
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list | tuple):
        raise ValueError(f"expected a list of {', '.join(EVENTS)}")
    for each in named:
        if each not in EVENTS:
            raise ValueError(f"`{for_display(str(each))}` is none of {', '.join(EVENTS)}")
    return tuple(dict.fromkeys(named))


def section_problem(section: Mapping[str, Any], *, of_a_job: bool) -> tuple[str, str] | None:
    """Return the key at which the section is wrong as a whole, and why. `of_a_job`: in a file that others read."""
    if section.get("url") is not None and section.get("command") is not None:
        return "command", "messages go to `url:` or to `command:`, not to both; remove one of them"
    address = section.get("url")
    if of_a_job and isinstance(address, str) and variable_of(address.strip()) is None:
        why = "is a secret, and files are shared; export it and write `notify: ${env:NAME}`"
        return "url", f"{why}, or put it into your settings (docs/notify.md)"
    if not of_a_job and not (address or section.get("command") or section.get("on") == []):
        return "", "needs an address or a `command:`; `off` tells nobody"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
