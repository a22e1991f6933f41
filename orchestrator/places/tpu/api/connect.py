"""Opens a client of the Cloud TPU API, for everything or for teardown only."""

from orchestrator.places.google.credentials import (
    EmulatorToken,
    GoogleToken,
    emulator_credentials,
    google_credentials,
    safe_address,
)
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.light_client import LightApi
from orchestrator.settings import Target


def connect(target: Target, endpoint_url: str | None = None, token: str | None = None) -> TpuApi:
    """Return the API of the target's cloud. `endpoint_url` and `token` are the emulator's; Google needs neither.

    An emulator that the environment names (TPUJOB_ENDPOINT) has precedence. Raises ConfigError, or AuthError without a login.
    """
    endpoint_url, token = safe_address(target, endpoint_url, token)
    if token is not None:
        return TpuApi(endpoint_url, emulator_credentials(token), emulated=True, timings=target.timings)
    return TpuApi(endpoint_url, google_credentials(), emulated=False)


def connect_light(target: Target, endpoint_url: str | None = None, token: str | None = None) -> LightApi:
    """Return the light API client, for teardown only. It signs in with its first call, so that this can be retried too."""
    endpoint_url, token = safe_address(target, endpoint_url, token)
    if token is not None:
        return LightApi(endpoint_url, EmulatorToken(token), emulated=True, timings=target.timings)
    return LightApi(endpoint_url, GoogleToken(), emulated=False)
