"""A running emulator for tests: `emulator`, a private daemon, and `shared_emulator`, one for the whole session.

Both provision and delete without delay. When they end, the fixture checks that none of their processes is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator import fixture
from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.daemon.control import DaemonRefused, Endpoint
from tests.waiting import until

Fault = Callable[..., str]


@dataclass(frozen=True)
class Emulator:
    """A daemon and its own paths."""

    endpoint: Endpoint
    state_dir: Path

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def token(self) -> str:
        return self.endpoint.token

    @property
    def trusted(self) -> Emulator:
        """The same daemon, asked as tpujob's own client: startup-scripts run."""
        return replace(self, endpoint=replace(self.endpoint, token=self.endpoint.tpujob_token))

    @property
    def published(self) -> fixture.TpuEmulator:
        """The same daemon, as the plugin gives it to tests of other projects."""
        return fixture.TpuEmulator(self.endpoint, self.state_dir)

    def for_gcloud(self, home: Path) -> dict[str, str]:
        """Return the environment of gcloud on this daemon: with files of its own, for scenarios run at the same time."""
        path = f"{control.ssh_programs(self.state_dir)}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "HOME": str(home), "CLOUDSDK_CONFIG": str(home / "gcloud")}
        return control.gcloud_environment(self.endpoint, self.state_dir) | own

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
        """Change settings for a block: other tests share this daemon."""
        before = self.patch_settings()
        self.patch_settings(**settings)
        try:
            yield
        finally:
            self.patch_settings(**{name: before[name] for name in settings})

    def kill(self) -> None:
        """Kill the daemon, as a power cut does."""
        psutil.Process(self.endpoint.pid).kill()
        until(lambda: control.running(self.state_dir) is None, "the end of a killed daemon")

    def restarted(self) -> Emulator:
        """Return the daemon that runs in the same directory; start one if there is none."""
        return Emulator(control.ensure_running(self.state_dir), self.state_dir)


@contextmanager
def running_emulator(state_dir: Path) -> Iterator[Emulator]:
    with fixture.running(state_dir) as started:
        yield Emulator(started.endpoint, state_dir)
    assert control.running(state_dir) is None
    left = [process for process in psutil.process_iter() if _works_in(process, state_dir)]
    assert not left, f"processes outlived the emulator: {left}"


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """A daemon for one test."""
    with running_emulator(tmp_path / "emulator") as started:
        yield started


@pytest.fixture(scope="session")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One daemon for many tests; each uses its own node names (or project)."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as started:
        yield started


@pytest.fixture(autouse=True)
def left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test restores the faults and settings of the shared emulator."""
    if "shared_emulator" not in request.fixturenames:
        yield
        return
    shared: Emulator = request.getfixturevalue("shared_emulator")
    found = _state(shared)
    yield
    assert _state(shared) == found


def _state(emulator: Emulator) -> tuple[list[str], dict[str, Any]]:
    """Return the ids of the faults, and the settings."""
    faults = emulator.request("GET", "/_emulator/faults")["faults"]
    return [row["id"] for row in faults], emulator.patch_settings()


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        paths = [process.cwd(), *process.cmdline(), process.environ().get("HOME", "")]
    except (psutil.Error, OSError):
        return False
    return process.pid != os.getpid() and any(path.startswith(str(directory)) for path in paths)


@pytest.fixture
def fault(shared_emulator: Emulator) -> Iterator[Fault]:
    """Adds a fault and returns its id. All are removed after the test."""
    added: list[str] = []

    def add(kind: str, **fields: Any) -> str:
        [row] = shared_emulator.request("POST", "/_emulator/faults", {"kind": kind, **fields})["faults"]
        added.append(row["id"])
        return added[-1]

    yield add
    for name in added:
        with contextlib.suppress(DaemonRefused):  # the test has cleared it
            shared_emulator.request("DELETE", f"/_emulator/faults/{name}")
