"""An emulated Cloud TPU for a program or a test suite: `running` starts one, `TpuEmulator` is what can be done with it.

The fixture of `pytest_plugin` is one for a single test: state in that test's own directory, free ports, no delays. At the end
it is stopped with every process of its VMs, even if the process that started it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
        from google.cloud import tpu_v2  # a second, which other clients do without
        from google.oauth2.credentials import Credentials  # with the client

        return tpu_v2.TpuClient(
            transport="rest", credentials=Credentials(self.token), client_options={"api_endpoint": self.url}
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials for grpc.secure_channel and grpc.aio.secure_channel: the token, without TLS."""
        import grpc  # few tests use gRPC

        return grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(self.token)
        )

    def environment(self) -> dict[str, str]:
        """Return variables for child processes, to be added to `os.environ`.

        In them `google.auth.default()` finds credentials, and programs that know only Google's address reach this emulator:
        a plain `TpuClient()`, over gRPC or REST, and `curl https://tpu.googleapis.com/…`. Google's other APIs are refused.
        gcloud, with its ssh and scp, and tpujob work on this emulator, too; tpujob has state of its own there.
        """
        path = f"{control.ssh_programs(self.state_dir)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {
            "TPUJOB_CLOUD": "emulated",
            "TPUJOB_ENDPOINT": self.url,
            "TPUJOB_TOKEN_FILE": str(self.state_dir / "tpujob-token"),
            "TPUJOB_STATE_DIR": str(self.state_dir / "tpujob"),
        }
        google = self._google()  # starts gRPC, whose address is one of the variables
        return control.client_environment(self.endpoint, self.state_dir) | google | own | {"PATH": path}

    def _google(self) -> dict[str, str]:
        """Return what makes programs of Google's libraries take this emulator for Google."""
        import certifi  # only for Google's own programs

        # It imports gRPC and Google's messages, which takes long on a busy machine.
        proxy = control.request(self.endpoint, "POST", "/_emulator/proxy", {}, control.START_TIMEOUT_S)
        trusted = self.state_dir / "trusted.pem"  # what was trusted before, and this emulator
        before = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or certifi.where()
        trusted.write_bytes(Path(before).read_bytes() + b"\n" + Path(proxy["authority"]).read_bytes())
        metadata = self.url.removeprefix("http://")
        bundles = "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": "",  # else it comes before the metadata server
            "NO_GCE_CHECK": "false",
            "GCE_METADATA_HOST": metadata,
            "GCE_METADATA_IP": metadata,
            **dict.fromkeys(("https_proxy", "HTTPS_PROXY", "grpc_proxy"), proxy["url"]),
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1"),
            **dict.fromkeys(bundles, str(trusted)),
        }

    def preempt(self, node: str, notice_s: float = 0) -> None:
        """Preempt a node, given by its id or full name; with a notice, its VMs hear of it that many seconds before.

        Raises DaemonRefused.
        """
        self._act(node, "preempt", notice_s=notice_s)

    def maintain(self, node: str, *, notice_s: float | None = None, lasts_s: float | None = None) -> None:
        """Announce maintenance of a node, and do it after the notice. By default the settings decide.

        Raises DaemonRefused.
        """
        self._act(node, "maintain", notice_s=notice_s, lasts_s=lasts_s)

    def put(self, node: str, state: str, lasts_s: float | None = None) -> None:
        """Put a node into a state, such as REPAIRING or TERMINATED; `lasts_s`: READY again after so many seconds.

        Raises DaemonRefused.
        """
        self._act(node, "put", state=state, lasts_s=lasts_s)

    def advance(self, seconds: float) -> None:
        """Let so much of the cloud's time pass at once: what is due happens. Processes on workers notice nothing."""
        self.call("POST", "/_emulator/clock", {"advance_s": seconds})

    def _act(self, node: str, action: str, **fields: Any) -> None:
        self.call("POST", f"/_emulator/nodes/{quote(node)}:{action}", fields)

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
