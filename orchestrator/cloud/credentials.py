"""Who we are to which cloud: Google's credentials, the emulator's token, and the rule that keeps the two apart.

Real credentials are only ever sent to https://*.googleapis.com; the emulator's token only to this machine's loopback. The
CLI calls `connect` when a command first needs its cloud; every violation ends there, before anything is sent.
"""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path
from typing import Any

from orchestrator.cloud import translate
from orchestrator.cloud.tpu_api import SCOPE, TpuApi
from orchestrator.errors import AuthError, ConfigError
from orchestrator.settings import EMULATED, Target, loopback_problem

REFRESH_TIMEOUT_S = 15.0
_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/?")


def connect(target: Target, endpoint_url: str | None = None, token: str | None = None) -> TpuApi:
    """The API of the target's cloud. `endpoint_url` and `token` are the emulator's; Google needs neither.

    An emulator that the environment names (TPUJOB_ENDPOINT) goes before the one given.
    """
    if target.kind == EMULATED:
        if target.endpoint is not None:
            endpoint_url, token = target.endpoint, read_token(target.token_file)
        if endpoint_url is None or not token:
            raise ConfigError("the emulated cloud needs the emulator's address and its token")
        if problem := loopback_problem(endpoint_url):
            raise ConfigError(f"{endpoint_url!r} {problem}", hint="the emulator's token stays on this machine")
        return TpuApi(endpoint_url, emulator_credentials(token), emulated=True, pace=target.pace)
    if token is not None:
        raise ConfigError("an emulator's token is never sent to Google Cloud")
    if endpoint_url is not None and not _GOOGLE.fullmatch(endpoint_url):
        raise ConfigError(
            f"{endpoint_url!r} is not Google's: real credentials are only sent to https://*.googleapis.com",
            hint="for an emulator use `--cloud emulated`",
        )
    return TpuApi(endpoint_url, google_credentials(), emulated=False)


def google_credentials() -> Any:
    """Application Default Credentials with a fresh token, so that a missing login is noticed before anything is made."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about quota projects; the API says so itself when it matters
            credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise translate.auth_error(error) from error
    except (ValueError, TypeError, AttributeError, OSError) as error:  # how google-auth meets JSON of an odd shape
        raise AuthError(f"the Google credentials file cannot be used: {error}", hint=translate.LOGIN) from error
    try:
        credentials.refresh(functools.partial(Request(), timeout=REFRESH_TIMEOUT_S))
    except GoogleAuthError as error:
        raise translate.auth_error(error) from error
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
