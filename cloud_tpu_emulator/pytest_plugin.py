"""An emulated Cloud TPU for any test suite: `pytest_plugins = ["cloud_tpu_emulator.pytest_plugin"]` in a conftest.py.

The fixture `tpu_emulator` is a private emulator for one test: state in that test's own directory, free ports, no delays.
Afterwards it is stopped with every process of its VMs, even if pytest is killed. `running` makes one for any other scope.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.daemon.control import Endpoint
from orchestrator.system import fork

if TYPE_CHECKING:
    import grpc
    from google.cloud import tpu_v2

AT_ONCE = {"provision_s": 0, "stop_s": 0, "start_s": 0, "delete_s": 0}


@dataclass(frozen=True)
class TpuEmulator:
    """A running emulator. A client of the REST API needs `url` and `token`."""

    endpoint: Endpoint
    state_dir: Path
    project: str = "emulated"  # any other project works, too

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.endpoint.url

    @property
    def token(self) -> str:
        """The bearer token."""
        return self.endpoint.token

    @cached_property
    def grpc_target(self) -> str:
        """HOST:PORT of its gRPC server, which the first use of this property starts."""
        return control.open_grpc(self.endpoint)

    def client(self) -> tpu_v2.TpuClient:
        """Return a client of google-cloud-tpu over REST."""
        from google.cloud import tpu_v2
        from google.oauth2.credentials import Credentials

        return tpu_v2.TpuClient(
            transport="rest", credentials=Credentials(self.token), client_options={"api_endpoint": self.url}
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials for grpc.secure_channel and grpc.aio.secure_channel: the token, without TLS."""
        import grpc

        return grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(self.token)
        )

    def environment(self) -> dict[str, str]:
        """Return variables for child processes, to be added to `os.environ`.

        gcloud, with its ssh and scp, and tpujob work on this emulator in them; tpujob has state of its own there.
        """
        path = f"{control.ssh_programs(self.state_dir)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {
            "TPUJOB_CLOUD": "emulated",
            "TPUJOB_ENDPOINT": self.url,
            "TPUJOB_TOKEN_FILE": str(self.state_dir / "tpujob-token"),
            "TPUJOB_STATE_DIR": str(self.state_dir / "tpujob"),
        }
        return control.client_environment(self.endpoint, self.state_dir) | own | {"PATH": path}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call a path of the API, or of the emulator (`/_emulator/…`, docs/emulator.md). Return the decoded JSON.

        Raises DaemonRefused.
        """
        return control.request(self.endpoint, method, path, body)

    def settings(self, **settings: Any) -> dict[str, Any]:
        """Change these settings, and return all of them. Raises DaemonRefused."""
        changed: dict[str, Any] = self.call("PATCH", "/_emulator/settings", settings)
        return changed

    def fault(self, kind: str, **fields: Any) -> str:
        """Add a fault, and return its id. Raises DaemonRefused."""
        return str(self.call("POST", "/_emulator/faults", {"kind": kind, **fields})["faults"][0]["id"])

    def requests(self) -> list[dict[str, Any]]:
        """Return the request log: every call to the API, with its caller and its status."""
        found: list[dict[str, Any]] = self.call("GET", "/_emulator/requests")["requests"]
        return found

    def billing(self) -> list[dict[str, Any]]:
        """Return the bills of all nodes. If `until` is None in one of them, a TPU is still billed."""
        found: list[dict[str, Any]] = self.call("GET", "/_emulator/billing")["nodes"]
        return found


@contextmanager
def running(state_dir: Path, **settings: Any) -> Iterator[TpuEmulator]:
    """Run an emulator with this state directory until the end of the block, or of this process."""
    reading_end, writing_end = fork.pipe()  # the daemon ends with the block or with this process
    try:
        started = TpuEmulator(control.ensure_running(state_dir, ends_with=reading_end), state_dir)
    finally:
        os.close(reading_end)
    try:
        started.settings(**AT_ONCE | settings)
        yield started
    finally:
        try:
            control.stop(state_dir)
        finally:
            writing_end.close()


@pytest.fixture
def tpu_emulator(tmp_path: Path) -> Iterator[TpuEmulator]:
    """A private emulated Cloud TPU for this test (docs/emulator.md)."""
    with running(tmp_path / "tpu-emulator") as started:
        yield started
