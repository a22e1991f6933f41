"""How sessions, and commands without a ledger, reach clouds: the client of each, the emulator that runs here, the guardian."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places, settings
from orchestrator.errors import CloudUnavailable, TpujobError
from orchestrator.places import google
from orchestrator.places.desk import Address, Emulator
from orchestrator.promise.lease.periods import is_emulated
from orchestrator.settings import Target
from orchestrator.system.lazy import Later
from orchestrator.text.redaction import Redactor

if TYPE_CHECKING:
    from cloud_tpu_emulator.daemon import control
    from orchestrator.api.session.reporter import Reporter
    from orchestrator.promise.guardian_process import Guardian
    from orchestrator.promise.lease.cloud_api import Cloud
else:
    control = Later("cloud_tpu_emulator.daemon.control")

OFF = ("off", "0", "no")


class Connections:
    """`directory`: the state directory. `light`: for a command that creates nothing."""

    def __init__(self, target: Target, directory: Path, reporter: Reporter, *, light: bool = False) -> None:
        self._target, self._directory, self._reporter, self.light = target, directory, reporter, light
        self._endpoint: control.Endpoint | None = None
        self._guardian: Guardian | None = None

    @property
    def guardian_words(self) -> str | None:
        """Return for messages what the guardian of this process will do; None if there is none."""
        log = self._directory / "guardian.log"
        if self._guardian is None or not self._guardian.waits:
            return None
        if not self._guardian.lives:
            return f"nothing now, guardian {self._guardian.pid} has ended (log: {log})"
        return f"guardian {self._guardian.pid}, once this command has ended (log: {log})"

    @property
    def emulator_directory(self) -> Path:
        """Return the state directory of the emulator that runs here."""
        return self._directory / "emulator"

    def connect(self, cloud: str) -> Cloud:
        """Return the client of a cloud. Raises CloudError, ConfigError."""
        return places.place_of(cloud).open_cloud(self, cloud)

    def address(self, cloud: str) -> Address:
        """Return where a cloud of slices answers; start the emulator for its own. Raises CloudError, ConfigError."""
        target = self._target
        if cloud != target.kind:
            target = replace(target, kind=cloud, timings=settings.timings_of(cloud, os.environ))
        if not is_emulated(cloud):
            return Address(target)
        if target.endpoint is None:
            endpoint = self._endpoint = embedded_emulator(self.emulator_directory)
            for token in (endpoint.token, endpoint.tpujob_token):
                self._reporter.secrets.add(token)
            return Address(target, endpoint.url, endpoint.tpujob_token)
        token = google.credentials.read_token(target.token_file)
        self._reporter.secrets.add(token)
        if not (self.light or token.startswith("tpujob-")):
            hint = "unless the emulator runs all startup-scripts; copy its file tpujob-token, too, or name that one"
            text = f"with {target.token_file}, the token of all clients, no watchdog starts on what is created"
            self._reporter.notice("warning", f"{text}, {hint}")
        return Address(target)

    def emulator(self, kind: str) -> Emulator | None:
        """Return where the emulated cloud answers, which is started if need be; None: the cloud is Google's."""
        if not is_emulated(kind):
            return None
        if is_emulated(self._target.kind) and self._target.endpoint is not None:
            google.credentials.read_token(self._target.token_file)  # raises if there is none
            return Emulator(self._target.endpoint, Path(str(self._target.token_file)).absolute())
        return Emulator(embedded_emulator(self.emulator_directory).url, self.emulator_directory / "token")

    def still_there(self, kind: str) -> bool:
        """Return whether the cloud is the one that was connected: the emulator may have ended, and another one begun."""
        if not is_emulated(kind) or self._endpoint is None:
            return True
        return control.running(self.emulator_directory) == self._endpoint

    def guardian(self) -> Callable[[], Guardian] | None:
        """Return what starts the guardian of this process; None where TPUJOB_GUARDIAN says off."""
        from orchestrator.promise import guardian_process  # only for what creates

        if os.environ.get("TPUJOB_GUARDIAN", "").lower() in OFF:
            return None

        def arm() -> Guardian:
            try:
                guardian = guardian_process.start_guardian(
                    self._directory, lambda text: self._reporter.notice("guardian", text)
                )
            except guardian_process.GuardianNotStarted as error:
                hint = "TPUJOB_GUARDIAN=off goes without: then only a later tpujob command releases what a killed one leaves"
                raise TpujobError(f"{error}; nothing was created", hint=hint) from error
            self._guardian = guardian
            return guardian

        return arm


def connect(target: Target, secrets: Redactor, cloud: str | None = None) -> Any:
    """Return the client of the target's cloud, or of another one; start the embedded emulator where that is the target.

    `secrets` learns the emulator's token. Raises AuthError without credentials, CloudUnavailable when the emulator does not
    start, ConfigError for an unusable state directory.
    """
    cloud = cloud or target.kind
    return places.place_of(cloud).open_cloud(_Lines(target, secrets), cloud)


@dataclass(slots=True)
class _Lines:
    """How a command without a session reaches the clouds."""

    target: Target
    secrets: Redactor
    light: bool = True

    def address(self, cloud: str) -> Address:
        if not is_emulated(cloud):
            return Address(self.target)
        if self.target.endpoint is not None:
            self.secrets.add(google.credentials.read_token(self.target.token_file))
            return Address(self.target)
        endpoint = embedded_emulator(own_emulator())
        self.secrets.add(endpoint.token)
        return Address(self.target, endpoint.url, endpoint.token)


def own_emulator() -> Path:
    """Return the state directory of this user's emulator; make the state directory around it. Raises ConfigError."""
    return settings.open_state_dir(settings.state_dir(os.environ)) / "emulator"


def embedded_emulator(directory: Path) -> control.Endpoint:
    """Return the endpoint of the emulator in this directory; start it if it is not running. Raises CloudUnavailable."""
    try:
        return control.ensure_running(directory)
    except RuntimeError as error:
        raise CloudUnavailable(str(error), hint=f"its log is {directory / 'daemon.log'}") from error
