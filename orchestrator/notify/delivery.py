"""Delivery: one request to an address, or one call of a command. It says what came of it, and raises nothing.

The address is a secret: what this returns names its host alone. Redirections are not followed, since they would lead the
messages of this user to whoever answers. Proxies and certificates are those of the environment, as for Google's APIs.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.errors import TpujobError
from orchestrator.notify.messages import HEADERS, Message, payload, variables
from orchestrator.notify.receivers import Receiver
from orchestrator.places.google.fetch import connection_to, translated
from orchestrator.system import commands
from orchestrator.text.redaction import Redactor
from orchestrator.text.terminal import clean

TIMEOUT_S = 10.0
IN_ALL_S = 20.0  # for an answer that comes byte by byte
COMMAND_S = 30.0
MOST_AGAIN_S = 3600.0  # that a receiver may ask for
MOST_REPLY_BYTES = 300
PASSING = (408, 425, 429)  # with 5xx: worth another try


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of it. `final`: another try would end the same way. `again_s`: the receiver asks for that pause."""

    ok: bool
    said: str
    final: bool = False
    again_s: float | None = None


def deliver(receiver: Receiver, messages: Sequence[Message], secrets: Redactor) -> Delivery:
    """Send the messages as one. `secrets`: hidden in what is sent, and in what is said of it."""
    shape = secrets.hide_all(payload(messages))
    found: list[Delivery] = []

    def work() -> None:
        try:
            body = json.dumps(shape).encode()
            if receiver.url is not None:
                found.append(_post(receiver.url, body))
            else:
                found.append(_call(receiver, body, {k: secrets.hide(v) for k, v in variables(messages).items()}))
        except TpujobError as error:
            found.append(Delivery(False, error.message))
        except Exception as error:  # a bug must not end the process that tells the others
            found.append(Delivery(False, f"a bug in tpujob: {type(error).__name__}"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(IN_ALL_S if receiver.url is not None else COMMAND_S + TIMEOUT_S)
    done = found[0] if found else Delivery(False, f"{receiver.shown} did not answer in time")
    return Delivery(done.ok, secrets.hide(done.said), done.final, done.again_s)


def _post(url: str, body: bytes) -> Delivery:
    parts = urlsplit(url)
    host = parts.hostname or ""
    target = f"{parts.path or '/'}{'?' * bool(parts.query)}{parts.query}"
    with closing(connection_to(parts.scheme, parts.netloc, TIMEOUT_S, proxies=True)) as connection, translated(host):
        connection.request("POST", target, body, {**HEADERS, "User-Agent": "tpujob"})
        reply = connection.getresponse()
        status, after = reply.status, reply.getheader("Retry-After")
        text = clean(reply.read1(MOST_REPLY_BYTES)).strip() if status >= 400 else ""
    said = f"{host} answered {status}{f': {text}' if text else ''}"
    if status < 300:
        return Delivery(True, said)
    if status < 400:
        return Delivery(False, f"{said}: redirections are not followed; write the address that it leads to", final=True)
    return Delivery(False, said, final=status < 500 and status not in PASSING, again_s=_pause_s(after))


def _pause_s(after: str | None) -> float | None:
    """Return the seconds of a Retry-After, which is a number or a date; None without one that can be read."""
    if not after:
        return None
    try:
        pause_s = float(after) if after.strip().isdigit() else parsedate_to_datetime(after).timestamp() - time.time()
    except ValueError:
        return None
    return min(max(pause_s, 0.0), MOST_AGAIN_S)


def _call(receiver: Receiver, body: bytes, variables: Mapping[str, str]) -> Delivery:
    argv, environ = ["/bin/sh", "-c", str(receiver.command)], {**os.environ, **variables}
    try:
        rc, _, err = commands.run(
            argv, within_s=COMMAND_S, env=environ, stdin=body, stdout=subprocess.DEVNULL, cwd=Path.home()
        )
    except subprocess.TimeoutExpired:
        return Delivery(False, f"the command of `notify:` did not end within {COMMAND_S:.0f} s")
    if rc == 0:
        return Delivery(True, "the command of `notify:` succeeded")
    last = clean(err[-MOST_REPLY_BYTES:]).strip().rpartition("\n")[2]
    return Delivery(False, f"the command of `notify:` ended with {rc}{f': {last}' if last else ''}")
