"""The names of runs, sweeps and slices that this machine's ledger has, for the completion of a shell. Nothing is recovered."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from orchestrator import settings
from orchestrator.client.session import Session


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run, newest first, with the state of its last attempt."""

    id: str
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class KnownSlice:
    """A slice whose lease is open."""

    name: str
    node: str
    accelerator_type: str
    zone: str


def runs(begin: str, most: int) -> list[KnownRun]:
    """Return the newest runs whose name or id begins like that, `most` of them at most.

    Raises TpujobError for a ledger that cannot be read.
    """
    with _session() as session:
        every = session.ledger.runs() if session is not None else []
        found = [KnownRun(run.id, run.name, str(attempt.state)) for run, attempt in every]
        return [each for each in found if each.name.startswith(begin) or each.id.startswith(begin)][:most]


def sweeps() -> list[str]:
    """Return the names of the sweeps, newest first, each once."""
    with _session() as session:
        return list(dict.fromkeys(sweep.name for sweep in session.ledger.sweeps())) if session is not None else []


def slices() -> list[KnownSlice]:
    """Return the slices that are not proven absent."""
    with _session() as session:
        found = session.ledger.open_leases() if session is not None else []
        return [KnownSlice(each.handle, each.name.node, each.accelerator_type, each.name.zone) for each in found]


@contextmanager
def _session() -> Iterator[Session | None]:
    """Yield a session; None where there is no state directory, which a completion does not make."""
    if not settings.state_dir(os.environ).is_dir():
        yield None
        return
    with closing(Session.open(light=True)) as session:
        yield session
