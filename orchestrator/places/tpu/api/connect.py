"""Opens an API client for a cloud, and keeps credentials apart: Google's for Google, the emulator's token for loopback.

Real credentials are only ever sent to https://*.googleapis.com, the emulator's token only to this machine's loopback
interface. Every violation raises here, before anything is sent.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.errors import ConfigError
from orchestrator.places.google.credentials import GoogleToken, google_credentials
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.light_client import LightApi
from orchestrator.settings import EMULATED, Target, loopback_problem

_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/?")


def connect(target: Target, endpoint_url: str | None = None, token: str | None = None) -> TpuApi:
    """Return the API of the target's cloud. `endpoint_url` and `token` are the emulator's; Google needs neither.

    An emulator that the environment names (TPUJOB_ENDPOINT) has precedence. Raises ConfigError, or AuthError without a login.
    """
    endpoint_url, token = _checked(target, endpoint_url, token)
    if token is not None:
        return TpuApi(endpoint_url, emulator_credentials(token), emulated=True, timings=target.timings)
    return TpuApi(endpoint_url, google_credentials(), emulated=False)


def connect_light(target: Target, endpoint_url: str | None = None, token: str | None = None) -> LightApi:
    """Return the light API client, for teardown only. It signs in with its first call, so that this can be retried too."""
    endpoint_url, token = _checked(target, endpoint_url, token)
    if token is not None:
        return LightApi(endpoint_url, EmulatorToken(token), emulated=True, timings=target.timings)
    return LightApi(endpoint_url, GoogleToken(), emulated=False)


def _checked(target: Target, endpoint_url: str | None, token: str | None) -> tuple[str | None, str | None]:
    """The endpoint and the emulator's token; None for Google's own. Raises ConfigError if a secret would leak."""
    if target.kind == EMULATED:
        if target.endpoint is not None:
            endpoint_url, token = target.endpoint, read_token(target.token_file)
        if endpoint_url is None or not token:
            raise ConfigError("the emulated cloud needs the emulator's address and its token")
        if problem := loopback_problem(endpoint_url):
            raise ConfigError(f"{endpoint_url!r} {problem}", hint="the emulator's token stays on this machine")
        return endpoint_url, token
    if token is not None:
        raise ConfigError("an emulator's token is never sent to Google Cloud")
    if endpoint_url is not None and not _GOOGLE.fullmatch(endpoint_url):
        raise ConfigError(
            f"{endpoint_url!r} is not Google's: real credentials are only sent to https://*.googleapis.com",
            hint="for an emulator use `--cloud emulated`",
        )
    return endpoint_url, None


@dataclass(frozen=True, slots=True)
class EmulatorToken:
    """The Bearer for an emulator."""

    value: str
    renewable: ClassVar[bool] = False

    def token(self) -> str:
        return self.value

    def renew(self) -> None:
        raise AssertionError("an emulator's token is not renewed")


def emulator_credentials(token: str) -> Any:
    """Return the emulator's token as credentials of google-auth."""
    from google.oauth2.credentials import Credentials

    return Credentials(token)


def read_token(path: str | None) -> str:
    """Return the token of an emulator that TPUJOB_ENDPOINT names: of two, tpujob's own. Raises ConfigError.

    The emulator writes it beside the one for all clients. Only with it does the startup-script run, which starts the watchdog.
    """
    if path is None:
        raise ConfigError(
            "TPUJOB_ENDPOINT is set, but not TPUJOB_TOKEN_FILE", hint="it names the file with the emulator's token"
        )
    try:
        own = Path(path).with_name("tpujob-token")
        token = (own if own.exists() else Path(path)).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TPUJOB_TOKEN_FILE: {path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"TPUJOB_TOKEN_FILE: {path} does not hold a token")
    return token
