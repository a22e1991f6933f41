"""The real CLI inside the test's own process (`tpujob`), beside a running emulator whose meter says what was ever created."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app, talk
from orchestrator.engine.owners import FileOwners
from orchestrator.ledger.ledger import Ledger
from tests.cli_fixture import hear_signals, is_deaf, sandbox
from tests.emulator_fixture import Emulator, running_emulator


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class _Ended(BaseException):
    """In place of the end of this process."""


def _collect_locks(patch: pytest.MonkeyPatch) -> list[FileOwners]:
    made: list[FileOwners] = []

    def init(owners: FileOwners, directory: Path) -> None:
        original(owners, directory)
        made.append(owners)

    original = FileOwners.__init__
    patch.setattr(FileOwners, "__init__", init)
    return made


@dataclass
class Tpujob:
    """`tpujob(...)` is one command. The state directory, and with it the emulator, is shared by the tests of a module."""

    directory: Path
    emulator: Emulator
    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Said:
        def end(code: int) -> None:
            raise _Ended(code)

        self.capfd.readouterr()
        talk.talk.cache_clear()
        self.monkeypatch.setattr(sys, "argv", ["tpujob", *words])
        with self.monkeypatch.context() as patch:
            patch.setattr(os, "_exit", end)
            locks = _collect_locks(patch)
            try:
                app.main()
            except _Ended as ended:
                (code,) = ended.args
            for owners in locks:  # as the end of a process does
                for lock in list(owners._held):
                    owners.release(lock)
        out, err = self.capfd.readouterr()
        return Said(code, out, err)

    def start(self, *words: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[Any]:
        """The same as a process, for what one process cannot be asked: signals, streams, locales."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
        streams["preexec_fn"] = hear_signals if is_deaf() else None
        return subprocess.Popen([*before, sys.executable, "-m", "orchestrator.cli", *words], **streams)

    def job(self, text: str | bytes, name: str = "job.yaml") -> str:
        path = self.directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    @property
    def lived(self) -> int:
        """How many nodes there ever were."""
        return len(self.emulator.billing()["nodes"])

    @contextmanager
    def creating_nothing(self) -> Iterator[None]:
        before = self.lived
        yield
        assert self.lived == before, "something was created"

    @contextmanager
    def promising_nothing(self) -> Iterator[None]:
        """Not even an intent, in whichever cloud."""
        ledger = Ledger(self.emulator.state_dir.parent / "ledger.sqlite3")
        before = ledger.leases()
        with self.creating_nothing():
            yield
        assert ledger.leases() == before
        ledger.close()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Emulator]]:
    directory = tmp_path_factory.mktemp("state")
    directory.chmod(0o700)
    with running_emulator(directory / "emulator") as emulator:
        yield directory, emulator


@pytest.fixture
def tpujob(
    state: tuple[Path, Emulator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Tpujob:
    for name, value in {**sandbox(tmp_path), "TPUJOB_STATE_DIR": str(state[0])}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return Tpujob(tmp_path, state[1], monkeypatch, capfd)
