"""OS Login: an SSH key of this user with an expiry, and the login name that goes with it.

A key's id is what the API says it is: its rule is not documented, and a delete of another id succeeds without effect. So
`import_key` looks its key up in the reply, and `remove_key` reads the profile again. Real tokens go to https://*.googleapis.com
only; an emulator's goes to its own address, which `credentials.safe_address` checks.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.core.lease.cloud_api import Bearer
from orchestrator.errors import AuthError, UnexpectedReply
from orchestrator.places.google import error_translation
from orchestrator.places.google.json_call import json_call

GOOGLE = "https://oslogin.googleapis.com"
OPENID = "https://openidconnect.googleapis.com"
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

    def __init__(self, account: str, bearer: Bearer, *, endpoint: str = GOOGLE, emulated: bool = False) -> None:
        self.account, self._bearer, self._emulated = account, bearer, emulated
        self._endpoint = endpoint.rstrip("/")
        self._user = f"users/{quote(account, safe='@')}"

    def import_key(self, line: str, *, project: str, region: str, expires_at: float) -> Login:
        """Import a public key that expires (Unix seconds), or move its expiry; return once VMs of the region can read it.

        Raises QuotaError if the profile is full, UnexpectedReply if the key or a usable login name is not in the reply.
        """
        query = {"projectId": project, "regions": region}
        body = {"key": line, "expirationTimeUsec": str(int(expires_at * 1e6))}
        reply = self._send("POST", f"{self._user}:importSshPublicKey", query, body)
        profile = _object(reply, "loginProfile")
        found = next((key for key in _keys(profile) if _same(key.line, line)), None)
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
        url = f"{self._endpoint}/v1/{path}{'?' + urlencode(query) if query else ''}"
        return json_call(method, url, body, self._bearer, emulated=self._emulated)


def account_of(bearer: Bearer, *, endpoint: str = OPENID, emulated: bool = False) -> str:
    """Return the e-mail address of the account that a token is for. The token needs the scope userinfo.email.

    Raises AuthError if Google does not tell.
    """
    try:
        reply = json_call("GET", f"{endpoint.rstrip('/')}/v1/userinfo", None, bearer, emulated=emulated)
    except AuthError as error:
        raise AuthError(f"whose OS Login profile it is, Google does not tell: {error.message}", hint=SIGN_IN) from error
    address = reply.get("email")
    if not isinstance(address, str) or not re.fullmatch(r"[^\s@/:]{1,200}@[^\s@/:]{1,200}", address):
        raise AuthError("whose OS Login profile it is, Google does not tell", hint=SIGN_IN)
    return address


def _username(profile: Mapping[str, Any]) -> str:
    accounts = profile.get("posixAccounts")
    rows = [row for row in accounts if isinstance(row, dict)] if isinstance(accounts, list) else []
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


def _same(one: str, other: str) -> bool:
    return one.split() == other.split()


def _object(reply: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = reply.get(field, {})
    if not isinstance(value, dict):
        raise UnexpectedReply(f"OS Login answered {field} that is not an object", details=dict(reply))
    return value
