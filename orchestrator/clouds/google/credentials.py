"""Who we are to which cloud: Google's credentials, the emulator's token, and the rule that keeps the two apart.

Real credentials are only ever sent to https://*.googleapis.com; the emulator's token only to this machine's loopback. The
CLI calls `connect` when a command first needs its cloud; every violation ends there, before anything is sent.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.clouds.google.fetch import fetch
from orchestrator.clouds.tpu import error_translation
from orchestrator.clouds.tpu.client import SCOPE, TpuApi
from orchestrator.clouds.tpu.light_client import LightApi
from orchestrator.errors import AuthError, CloudUnavailable, ConfigError
from orchestrator.settings import EMULATED, Target, loopback_problem

REFRESH_TIMEOUT_S = 15.0
_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/?")


def connect(target: Target, endpoint_url: str | None = None, token: str | None = None) -> TpuApi:
    """The API of the target's cloud. `endpoint_url` and `token` are the emulator's; Google needs neither.

    An emulator that the environment names (TPUJOB_ENDPOINT) goes before the one given.
    """
    endpoint_url, token = _door(target, endpoint_url, token)
    if token is not None:
        return TpuApi(endpoint_url, emulator_credentials(token), emulated=True, timings=target.timings)
    return TpuApi(endpoint_url, google_credentials(), emulated=False)


def connect_light(target: Target, endpoint_url: str | None = None, token: str | None = None) -> LightApi:
    """The same for whoever only tears down. Nobody signs in before the first call, so that this too is tried again."""
    endpoint_url, token = _door(target, endpoint_url, token)
    if token is not None:
        return LightApi(endpoint_url, EmulatorToken(token), emulated=True, timings=target.timings)
    return LightApi(endpoint_url, GoogleToken(), emulated=False)


def _door(target: Target, endpoint_url: str | None, token: str | None) -> tuple[str | None, str | None]:
    """Where to, and with which emulator's token; None for Google's own. Raises where a secret would go astray."""
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
    """What a LightApi sends to an emulator."""

    value: str
    renewable: ClassVar[bool] = False

    def token(self) -> str:
        return self.value

    def renew(self) -> None:
        raise AssertionError("an emulator's token is not renewed")


class GoogleToken:
    """What a LightApi sends to Google. Each renewal looks at the machine's login anew: somebody may have signed in again."""

    renewable = True

    def __init__(self) -> None:
        self._credentials: Any = None

    def token(self) -> str:
        if self._credentials is None or not self._credentials.valid:  # google-auth's minutes before it expires
            self.renew()
        return str(self._credentials.token)

    def renew(self) -> None:
        self._credentials = google_credentials(_light_request)


def _light_request(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> Any:
    """google-auth's transport, over the standard library."""
    from types import SimpleNamespace

    from google.auth.exceptions import TransportError

    sent = body.encode() if isinstance(body, str) else body
    try:
        reply = fetch(method, url, sent, headers or {}, timeout_s=timeout or REFRESH_TIMEOUT_S, proxies=True)
    except CloudUnavailable as error:
        raise TransportError(error.message) from error
    return SimpleNamespace(status=reply.status, headers=reply.headers, data=reply.body)


def google_credentials(request: Callable[..., Any] | None = None) -> Any:
    """Application Default Credentials with a fresh token, so that a missing login is noticed before anything is made.

    `request` is how to reach Google's sign-in server, in google-auth's form; by default with requests.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about quota projects; the API says so itself when it matters
            credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    except (ValueError, TypeError, AttributeError, OSError) as error:  # how google-auth meets JSON of an odd shape
        raise AuthError(f"the Google credentials file cannot be used: {error}", hint=error_translation.LOGIN) from error
    if request is None:
        from google.auth.transport.requests import Request

        request = Request()
    try:
        credentials.refresh(functools.partial(request, timeout=REFRESH_TIMEOUT_S))
    except GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    return credentials


def emulator_credentials(token: str) -> Any:
    from google.oauth2.credentials import Credentials

    return Credentials(token)


def read_token(path: str | None) -> str:
    """The token of an emulator that TPUJOB_ENDPOINT names."""
    if path is None:
        raise ConfigError(
            "TPUJOB_ENDPOINT is set, but not TPUJOB_TOKEN_FILE", hint="it names the file with the emulator's token"
        )
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TPUJOB_TOKEN_FILE: {path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"TPUJOB_TOKEN_FILE: {path} does not hold a token")
    return token
