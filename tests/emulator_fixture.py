"""A running emulator for tests: `emulator`, a daemon of the test's own, and `shared_emulator`, one for the whole session.

Both provision and delete without delay. When they end, no process of theirs may be left: the fixture itself checks it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.emulator.daemon import control
from orchestrator.emulator.daemon.control import Endpoint

NO_DELAYS = {"provision_s": 0, "stop_s": 0, "start_s": 0, "delete_s": 0}


@dataclass(frozen=True)
class Emulator:
    """A daemon and its admin paths."""

    endpoint: Endpoint
    state_dir: Path

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def token(self) -> str:
        return self.endpoint.token

    def request(self, method: str, path: str, body: Any = None) -> Any:
        return control.request(self.endpoint, method, path, body)

    def status(self) -> dict[str, Any]:
        return self.request("GET", "/_emulator/status")

    def billing(self) -> dict[str, Any]:
        return self.request("GET", "/_emulator/billing")

    def processes(self) -> list[dict[str, Any]]:
        return self.request("GET", "/_emulator/processes")["nodes"]

    def patch_settings(self, **settings: Any) -> dict[str, Any]:
        return self.request("PATCH", "/_emulator/settings", settings)

    @contextmanager
    def settings(self, **settings: Any) -> Iterator[None]:
        """For a while: others share this daemon."""
        before = self.patch_settings()
        self.patch_settings(**settings)
        try:
            yield
        finally:
            self.patch_settings(**{name: before[name] for name in settings})

    def restarted(self) -> Emulator:
        """The daemon that runs now in the same directory, started if need be."""
        return Emulator(control.ensure_running(self.state_dir), self.state_dir)


@contextmanager
def running_emulator(state_dir: Path) -> Iterator[Emulator]:
    ends, lives = os.pipe()  # the daemon ends with this process, also where that is killed
    try:
        started = Emulator(control.ensure_running(state_dir, ends_with=ends), state_dir)
    finally:
        os.close(ends)
    try:
        started.patch_settings(**NO_DELAYS)
        yield started
    finally:
        control.stop(state_dir)
        os.close(lives)
        assert control.running(state_dir) is None
        left = [process for process in psutil.process_iter() if _works_in(process, state_dir)]
        assert not left, f"processes outlived the emulator: {left}"


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """A daemon for one test alone."""
    with running_emulator(tmp_path / "emulator") as started:
        yield started


@pytest.fixture(scope="session")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One daemon for many tests; each takes node names (or a project) of its own."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as started:
        yield started


@pytest.fixture(autouse=True)
def left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever breaks something in the shared emulator mends it: the next test, in whatever order, finds it whole."""
    if "shared_emulator" not in request.fixturenames:
        yield
        return
    shared: Emulator = request.getfixturevalue("shared_emulator")
    found = _broken(shared)
    yield
    assert _broken(shared) == found


def _broken(emulator: Emulator) -> tuple[list[str], dict[str, Any]]:
    """The faults that are there, and the settings."""
    faults = emulator.request("GET", "/_emulator/faults")["faults"]
    return [row["id"] for row in faults], emulator.patch_settings()


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        words = [process.cwd(), *process.cmdline(), process.environ().get("HOME", "")]
    except (psutil.Error, OSError):
        return False
    return process.pid != os.getpid() and any(word.startswith(str(directory)) for word in words)
