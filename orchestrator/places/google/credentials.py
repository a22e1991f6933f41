"""Google's credentials of this machine, refreshed with a time limit, and the token of an emulator."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.errors import AuthError, CloudUnavailable, ConfigError
from orchestrator.places.google import error_translation
from orchestrator.places.google.fetch import fetch
from orchestrator.promise.lease.periods import is_emulated
from orchestrator.settings import Target, loopback_problem
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import google.auth as google_auth
    import google.auth.exceptions as auth_exceptions
else:
    google_auth, auth_exceptions = Later("google.auth"), Later("google.auth.exceptions")

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"  # also part of a login by gcloud
REFRESH_TIMEOUT_S = 15.0
_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/?")


class GoogleToken:
    """The Bearer for Google. Each renewal reads the machine's login again: the user may have signed in meanwhile."""

    renewable = True

    def __init__(self, *scopes: str) -> None:
        """`scopes`: what the tokens are for; by default the whole cloud platform."""
        self._scopes = scopes or (SCOPE,)
        self._credentials: Any = None

    def token(self) -> str:
        if self._credentials is None or not self._credentials.valid:  # not valid: minutes before it expires
            self.renew()
        return str(self._credentials.token)

    @property
    def account(self) -> str | None:
        """The e-mail address that the login itself names; None: a service has to be asked. Raises as `renew`."""
        self.token()
        names = (getattr(self._credentials, name, None) for name in ("service_account_email", "account"))
        return next((name for name in names if isinstance(name, str) and "@" in name), None)

    @property
    def quota_project(self) -> str | None:
        """The project that the login names for quotas of its calls, if it does."""
        return getattr(self._credentials, "quota_project_id", None)

    def renew(self) -> None:
        self._credentials = google_credentials(self._scopes)


def _request(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = REFRESH_TIMEOUT_S,
    **_: Any,
) -> Any:
    """google-auth's transport, over the standard library."""
    sent = body.encode() if isinstance(body, str) else body
    try:
        reply = fetch(method, url, sent, headers or {}, timeout_s=timeout, proxies=True)
    except CloudUnavailable as error:
        raise auth_exceptions.TransportError(error.message) from error
    return SimpleNamespace(status=reply.status, headers=reply.headers, data=reply.body)


def google_credentials(scopes: Sequence[str] = (SCOPE,)) -> Any:
    """Return Application Default Credentials with a fresh token.

    Raises AuthError, or CloudUnavailable if Google's sign-in server cannot be reached.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about quota projects: the API itself reports a missing one
            credentials, _ = google_auth.default(scopes=list(scopes))
    except auth_exceptions.GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    except (ValueError, TypeError, AttributeError, OSError) as error:  # what google-auth raises for malformed JSON
        raise AuthError(f"the Google credentials file cannot be used: {error}", hint=error_translation.LOGIN) from error
    try:
        credentials.refresh(_request)
    except auth_exceptions.GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    return credentials


def safe_address(target: Target, endpoint_url: str | None, token: str | None) -> tuple[str | None, str | None]:
    """Return the endpoint and the emulator's token; None for Google's own. Raises ConfigError if a secret would leak.

    Real credentials are only ever sent to https://*.googleapis.com, the emulator's token only to this machine's loopback
    interface.
    """
    if is_emulated(target.kind):
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
