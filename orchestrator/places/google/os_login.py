"""OS Login: an SSH key of this user with an expiry, and the login name that goes with it.

The id of a key is what the API says it is: its rule is not documented, and a delete of another id succeeds without effect. So
`import_key` looks its key up in the reply, and `remove_key` reads the profile again.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.errors import AuthError, UnexpectedReply
from orchestrator.places.google import error_translation
from orchestrator.places.google.project_setup import Apis, objects_in

OS_LOGIN, OPENID = "oslogin.googleapis.com", "openidconnect.googleapis.com"
SIGN_IN = "log in with `gcloud auth application-default login`, whose tokens name the account"
USERNAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # it becomes an argument of ssh
FINGERPRINT = re.compile(r"[0-9a-fA-F]{16,128}")


@dataclass(frozen=True, slots=True)
class Login:
    """`user`: whom to log in as. `key_id`: the imported key, for `extend_key` and `remove_key`."""

    user: str
    key_id: str


@dataclass(frozen=True, slots=True)
class LoginKey:
    """A key of the profile. `expires_at`: Unix seconds; None: never."""

    key_id: str
    line: str
    expires_at: float | None


class OsLogin:
    """The profile of one account, an e-mail address. Each call is tried once, and raises a CloudError."""

    def __init__(self, account: str, apis: Apis) -> None:
        self.account, self._apis = account, apis
        self._user = f"users/{quote(account, safe='@')}"

    def import_key(self, line: str, *, project: str, region: str, expires_at: float) -> Login:
        """Import a public key that expires (Unix seconds), or move its expiry; return once VMs of the region can read it.

        Raises QuotaError if the profile is full, UnexpectedReply if the key or a usable login name is not in the reply.
        """
        query = {"projectId": project, "regions": region}
        body = {"key": line, "expirationTimeUsec": str(int(expires_at * 1e6))}
        reply = self._send("POST", f"{self._user}:importSshPublicKey", query, body)
        profile = _object(reply, "loginProfile")
        found = next((key for key in _keys(profile) if key.line.split() == line.split()), None)
        if found is None:
            raise UnexpectedReply("OS Login imported a key that is not in the profile it answers", details=dict(reply))
        return Login(_username(profile), found.key_id)

    def keys(self, project: str) -> tuple[LoginKey, ...]:
        """Return the keys of the profile that have not expired."""
        return tuple(_keys(self._send("GET", f"{self._user}/loginProfile", {"projectId": project})))

    def user(self, project: str) -> str:
        """Return the login name of the account. Raises UnexpectedReply if it has none."""
        return _username(self._send("GET", f"{self._user}/loginProfile", {"projectId": project}))

    def extend_key(self, key_id: str, line: str, *, expires_at: float) -> None:
        """Move the expiry of a key, which acts at once: VMs know the key. Raises NotFound if it is gone."""
        body = {"key": line, "expirationTimeUsec": str(int(expires_at * 1e6))}
        self._send("PATCH", self._key(key_id), {"updateMask": "expirationTimeUsec"}, body)

    def remove_key(self, key_id: str, *, project: str) -> None:
        """Remove a key; one that is not there is removed. Raises UnexpectedReply if the profile still has it afterwards."""
        try:
            self._send("DELETE", self._key(key_id), {})
        except error_translation.NotFound:
            return
        if any(key.key_id == key_id for key in self.keys(project)):
            raise UnexpectedReply(f"OS Login says that it removed the key {key_id[:12]}…, and still has it")

    def _key(self, key_id: str) -> str:
        if not FINGERPRINT.fullmatch(key_id):
            raise UnexpectedReply(f"{key_id[:80]!r} is not the id of a key")
        return f"{self._user}/sshPublicKeys/{key_id}"

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        return self._apis.ask(OS_LOGIN, f"v1/{path}{'?' + urlencode(query) if query else ''}", body, method)


def account_of(apis: Apis) -> str:
    """Return the e-mail address of the account that a token is for. The token needs the scope userinfo.email.

    Raises AuthError if Google does not tell.
    """
    try:
        reply = apis.ask(OPENID, "v1/userinfo")
    except AuthError as error:
        raise AuthError(f"whose OS Login profile it is, Google does not tell: {error.message}", hint=SIGN_IN) from error
    address = reply.get("email")
    if not isinstance(address, str) or not re.fullmatch(r"[^\s@/:]{1,200}@[^\s@/:]{1,200}", address):
        raise AuthError("whose OS Login profile it is, Google does not tell", hint=SIGN_IN)
    return address


def _username(profile: Mapping[str, Any]) -> str:
    rows = objects_in(profile.get("posixAccounts"))
    named = sorted(rows, key=lambda row: row.get("primary") is not True)
    user = named[0].get("username") if named else None
    if not isinstance(user, str) or not USERNAME.fullmatch(user):
        raise UnexpectedReply(f"the OS Login profile has no usable login name: {str(user)[:80]!r}", details=rows)
    return user


def _keys(profile: Mapping[str, Any]) -> Iterator[LoginKey]:
    for name, row in _object(profile, "sshPublicKeys").items():
        if not isinstance(row, dict) or not isinstance(row.get("key"), str):
            raise UnexpectedReply("OS Login answered a key that is none", details=dict(profile))
        given = str(row.get("expirationTimeUsec", ""))
        expires_at = int(given) / 1e6 if given.isascii() and given.isdigit() and len(given) <= 18 else None
        yield LoginKey(str(name), row["key"], expires_at)


def _object(reply: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = reply.get(field, {})
    if not isinstance(value, dict):
        raise UnexpectedReply(f"OS Login answered {field} that is not an object", details=dict(reply))
    return value
