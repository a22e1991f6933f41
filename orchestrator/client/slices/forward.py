"""Ports of a worker on this machine, as long as they are wanted and the slice exists: `tpujob forward`, `Client.forward`."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from orchestrator.client import lookup
from orchestrator.client.session import Session
from orchestrator.client.slices.shell import Shell, open_shell
from orchestrator.core.lease.cloud_api import SliceState
from orchestrator.engine.effects.cloud import Get
from orchestrator.engine.runtime.retry import until
from orchestrator.errors import CloudError, UnknownRun, UserError
from orchestrator.remote.fleet.forward import Forwarded

LOOK_S, ASK_S = 0.5, 60.0  # between two looks at the ledger, and two questions to the API
PORT = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class PortWish:
    """A port of the worker. `local`: the port here; None: the same one, or another if that is in use."""

    port: int
    local: int | None = None


def port_wish(text: str) -> PortWish | None:
    """Return what `PORT` or `LOCAL:PORT` asks for; None if it is neither. Raises UserError for a number that is no port."""
    found = PORT.fullmatch(text)
    if found is None:
        return None
    local, port = (None if number is None else int(number) for number in found.groups())
    if any(number is not None and not 1 <= number <= MAX_PORT for number in (local, port)):
        raise UserError(f"{text} is no port", hint=f"ports are numbers from 1 to {MAX_PORT}")
    assert port is not None, "the expression has it"
    return PortWish(port, local)


@contextmanager
def forwarding(
    session: Session, name: str | None, wishes: Sequence[PortWish], worker: int = 0
) -> Iterator[tuple[Shell, list[Forwarded]]]:
    """Forward ports of a worker of a slice, or of the slice of a run, for a block. Without wishes: the `ports:` of the run.

    Raises UserError for what there is not, and for a `local` port that is in use; Unreachable and TunnelRefused.
    """
    shell = open_shell(session, name)
    wishes = wishes or [PortWish(port) for port in _ports_of_run(session, shell.lease.run, name)]
    if not wishes:
        raise UserError("there is no port to forward", hint=f"`tpujob forward {shell.lease.handle} 6006`")
    shell.host(worker)
    try:
        shell.fleet.reach(worker)
        yield shell, [_forward(shell, wish, worker) for wish in wishes]
    finally:
        shell.fleet.cancel()


def wait_for_end(session: Session, shell: Shell) -> str:
    """Wait until the slice is released or gone, and return which."""
    ask_at = time.monotonic() + ASK_S
    while True:
        time.sleep(LOOK_S)
        if session.ledger.lease(shell.lease.id).down_at is not None:
            return f"{shell.lease.handle} is being released"
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + ASK_S
            with suppress(CloudError):  # which proves nothing; the connection may be fine
                view = session.run(until(0.0, Get(shell.lease.name)))
                if view is None or view.state is not SliceState.READY:
                    return f"{shell.lease.handle} is {view.native_state if view else 'gone'}"


def _ports_of_run(session: Session, *names: str | None) -> list[int]:
    for name in names:
        with suppress(UnknownRun):
            if name is not None:
                return list(lookup.run(session, name)[0].spec.ports)
    return []


def _forward(shell: Shell, wish: PortWish, worker: int) -> Forwarded:
    try:
        return shell.fleet.forward(wish.port, worker, wish.local)
    except OSError as error:
        where = f"port {wish.local or wish.port} of this machine"
        raise UserError(f"{where} cannot be had: {error.strerror}", hint="`PORT` alone takes a free one") from error
