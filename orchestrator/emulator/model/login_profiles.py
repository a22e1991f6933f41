"""The OS Login profiles of the emulated cloud: POSIX accounts and SSH keys that expire, by e-mail address. Pure.

As on Google's, a key's id is the SHA-256 of the imported line, comment included; a delete of any other id succeeds and removes
nothing; a key disappears when it expires; a profile holds 32 KiB.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError

MAX_PROFILE_BYTES = 32 << 10
KEY = re.compile(r"(ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/]+={0,3}( [^\r\n]*)?\s*")


@dataclass(slots=True)
class LoginKey:
    """One imported line. `expires_usec`: microseconds since 1970; None: never."""

    line: str
    expires_usec: int | None = None

    def is_valid(self, now: float) -> bool:
        return self.expires_usec is None or self.expires_usec > now * 1e6


@dataclass(slots=True)
class LoginProfile:
    """The profile of one account."""

    account: str
    projects: list[str] = field(default_factory=list)  # with a POSIX account
    keys: dict[str, LoginKey] = field(default_factory=dict)  # by fingerprint

    @property
    def number(self) -> int:
        """The account's unique id."""
        return 10**20 + int(hashlib.sha256(self.account.encode()).hexdigest()[:16], 16)

    @property
    def username(self) -> str:
        """The POSIX name: the address with `_` for what a name may not have; a service account's begins with sa_."""
        if self.account.endswith(".gserviceaccount.com"):
            return f"sa_{self.number}"
        return re.sub(r"[^a-z0-9_-]", "_", self.account.lower())[:32]


class LoginProfiles:
    """All profiles. `now`: Unix seconds."""

    def __init__(self) -> None:
        self._profiles: dict[str, LoginProfile] = {}

    def get(self, account: str, now: float) -> LoginProfile:
        """Return an account's profile, which is empty until a key is imported, without expired keys."""
        profile = self._profiles.get(account) or LoginProfile(account)
        profile.keys = {name: key for name, key in profile.keys.items() if key.is_valid(now)}
        return profile

    def import_key(self, account: str, project: str, line: str, expires_usec: int | None, now: float) -> LoginProfile:
        """Add a key, or give one that is there another expiry, and a POSIX account in the project. Raises ApiError."""
        profile = self.get(account, now)
        line = line.strip()
        if not KEY.fullmatch(line):
            raise ApiError("INVALID_ARGUMENT", "Invalid SSH public key.")
        if expires_usec is not None and expires_usec <= now * 1e6:
            raise ApiError("INVALID_ARGUMENT", "The expiration time is in the past.")
        keys = {**profile.keys, _fingerprint(line): LoginKey(line, expires_usec)}
        if len(json.dumps([asdict(key) for key in keys.values()])) > MAX_PROFILE_BYTES:
            text = "Login profile size exceeds 32 KiB. Delete profile values to make additional space."
            raise ApiError("INVALID_ARGUMENT", text)
        profile.keys = keys
        if project and project not in profile.projects:
            profile.projects.append(project)
        self._profiles[account] = profile
        return profile

    def key(self, account: str, fingerprint: str, now: float) -> LoginKey:
        """Raises ApiError if there is none."""
        found = self.get(account, now).keys.get(fingerprint)
        if found is None:
            raise api_errors.not_found(f"users/{account}/sshPublicKeys/{fingerprint}")
        return found

    def remove_key(self, account: str, fingerprint: str, now: float) -> None:
        """Remove a key, if it is there."""
        self.get(account, now).keys.pop(fingerprint, None)

    def authorized_keys(self, username: str, now: float) -> set[str]:
        """Return the keys (base64) with which this POSIX user may log in."""
        found = (self.get(account, now) for account in list(self._profiles))
        return {key.line.split()[1] for each in found if each.username == username for key in each.keys.values()}

    def dump(self) -> list[dict[str, Any]]:
        """Return what `load` reads."""
        return [asdict(profile) for profile in self._profiles.values()]

    @classmethod
    def load(cls, rows: list[dict[str, Any]]) -> LoginProfiles:
        """Return the profiles of `dump`. KeyError or TypeError for any other data."""
        loaded = cls()
        for row in rows:
            keys = {name: LoginKey(**key) for name, key in row["keys"].items()}
            loaded._profiles[row["account"]] = LoginProfile(row["account"], row["projects"], keys)
        return loaded


def _fingerprint(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
