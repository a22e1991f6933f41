"""Connect to a target's cloud without a ledger and without google-cloud-tpu: enough to ask and to delete."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator import places, settings
from orchestrator.core.text.redaction import Redactor
from orchestrator.emulator.daemon import control
from orchestrator.errors import CloudUnavailable
from orchestrator.places.tpu.api.connect import connect_light, read_token
from orchestrator.places.tpu.api.light_client import LightApi
from orchestrator.settings import Target


def connect(target: Target, secrets: Redactor) -> LightApi:
    """Return the client of the target's cloud; start the embedded emulator where that is the target.

    `secrets` learns the emulator's token. Raises AuthError without credentials, CloudUnavailable when the emulator does not
    start, ConfigError for an unusable state directory.
    """
    if not places.is_emulated(target.kind):
        return connect_light(target)
    if target.endpoint is not None:
        secrets.add(read_token(target.token_file))
        return connect_light(target)
    directory = settings.open_state_dir(settings.state_dir(os.environ)) / "emulator"
    endpoint = embedded_emulator(directory)
    secrets.add(endpoint.token)
    return connect_light(target, endpoint.url, endpoint.token)


def embedded_emulator(directory: Path) -> control.Endpoint:
    """Return the endpoint of the emulator in this directory; start it if it is not running. Raises CloudUnavailable."""
    try:
        return control.ensure_running(directory)
    except RuntimeError as error:
        raise CloudUnavailable(str(error), hint=f"its log is {directory / 'daemon.log'}") from error
