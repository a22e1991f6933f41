"""Google's credentials of this machine, refreshed with a time limit: an object of google-auth, or a bearer token."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import AuthError, CloudUnavailable
from orchestrator.places.google import error_translation
from orchestrator.places.google.fetch import fetch

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EMAIL_SCOPE = "https://www.googleapis.com/auth/userinfo.email"  # also part of a login by gcloud
REFRESH_TIMEOUT_S = 15.0


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

    def renew(self) -> None:
        self._credentials = google_credentials(_request, self._scopes)


def _request(
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


def google_credentials(request: Callable[..., Any] | None = None, scopes: Sequence[str] = (SCOPE,)) -> Any:
    """Return Application Default Credentials with a fresh token, so that a missing login is noticed before any create.

    `request` is the transport to Google's sign-in server, in google-auth's form; None: requests. Raises AuthError, or
    CloudUnavailable if that server cannot be reached.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about quota projects: the API itself reports a missing one
            credentials, _ = google.auth.default(scopes=list(scopes))
    except GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    except (ValueError, TypeError, AttributeError, OSError) as error:  # what google-auth raises for malformed JSON
        raise AuthError(f"the Google credentials file cannot be used: {error}", hint=error_translation.LOGIN) from error
    if request is None:
        from google.auth.transport.requests import Request

        request = Request()
    try:
        credentials.refresh(functools.partial(request, timeout=REFRESH_TIMEOUT_S))
    except GoogleAuthError as error:
        raise error_translation.auth_error(error) from error
    return credentials
