"""Connect to a cloud without a ledger and without google-cloud-tpu: enough to ask and to delete."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import places, settings
from orchestrator.core.text.redaction import Redactor
from orchestrator.emulator.daemon import control
from orchestrator.errors import CloudUnavailable
from orchestrator.places.desk import Address
from orchestrator.places.google.credentials import read_token
from orchestrator.settings import Target


def connect(target: Target, secrets: Redactor, cloud: str | None = None) -> Any:
    """Return the light client of the target's cloud, or of another one; start the embedded emulator where that is the target.

    `secrets` learns the emulator's token. Raises AuthError without credentials, CloudUnavailable when the emulator does not
    start, ConfigError for an unusable state directory.
    """
    cloud = cloud or target.kind
    return places.place_of(cloud).open_cloud(_Lines(target, secrets), cloud)


@dataclass(slots=True)
class _Lines:
    target: Target
    secrets: Redactor
    light: bool = True

    def address(self, cloud: str) -> Address:
        if not places.is_emulated(cloud):
            return Address(self.target)
        if self.target.endpoint is not None:
            self.secrets.add(read_token(self.target.token_file))
            return Address(self.target)
        endpoint = embedded_emulator(settings.open_state_dir(settings.state_dir(os.environ)) / "emulator")
        self.secrets.add(endpoint.token)
        return Address(self.target, endpoint.url, endpoint.token)


def embedded_emulator(directory: Path) -> control.Endpoint:
    """Return the endpoint of the emulator in this directory; start it if it is not running. Raises CloudUnavailable."""
    try:
        return control.ensure_running(directory)
    except RuntimeError as error:
        raise CloudUnavailable(str(error), hint=f"its log is {directory / 'daemon.log'}") from error
