"""How workers are reached: what administrators forbid or have set up, and who may log in (the profile of OS Login). Pure.

Policies, firewall rules and ways out of the network are settings; by default nothing is forbidden or missing. The refusals have
Google's texts for Compute Engine; how Cloud TPU wraps them is not known.

The profile has POSIX accounts and SSH keys that expire. As on Google's, a key's id is the SHA-256 of the
imported line, comment included; a delete of any other id succeeds and removes nothing; a key disappears when it expires; a
profile holds 32 KiB.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.model.records import Settings

INTERNET, RELAY = "0.0.0.0/0", "35.235.240.0/20"  # where connections to tcp:22 come from
TUNNEL, LOGIN, SUDO = "iap.tunnelInstances.accessViaIAP", "compute.instances.osLogin", "compute.instances.osAdminLogin"


def has_external_address(spec: Mapping[str, Any]) -> bool:
    """Return whether the workers of a node with this spec get addresses outside of their network."""
    return bool(spec.get("networkConfig", {}).get("enableExternalIps"))


def has_os_login(spec: Mapping[str, Any]) -> bool:
    """Return whether the node asks for OS Login."""
    return _says(spec) == "TRUE"


def logs_in_by_os_login(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether its workers let in by OS Login, and not by keys of the metadata. The node outranks the project."""
    return has_os_login(spec) or (settings.project_os_login and not _says(spec))


def may_log_in(settings: Settings) -> bool:
    """Return whether the user may log in with OS Login."""
    return not {LOGIN, SUDO} <= {*settings.missing_permissions}


def may_tunnel(settings: Settings) -> bool:
    """Return whether the relay serves the user."""
    return TUNNEL not in settings.missing_permissions and "iap.googleapis.com" not in settings.disabled_apis


def lets_ssh_in(settings: Settings, source: str) -> bool:
    """Return whether the firewall lets this whole range reach tcp:22."""
    sent = ipaddress.IPv4Network(source)
    return any(sent.subnet_of(ipaddress.IPv4Network(each)) for each in settings.ssh_from)


def reaches_google(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the workers of a node reach Google's APIs."""
    return settings.vm_route and (settings.private_google_access or has_external_address(spec))


def has_route_out(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the workers of a node reach addresses that are not Google's."""
    return settings.cloud_nat or has_external_address(spec)


def _says(spec: Mapping[str, Any]) -> str:
    return str(spec.get("metadata", {}).get("enable-oslogin", "")).upper()


def check(spec: Mapping[str, Any], project: str, zone: str, node: str, settings: Settings) -> None:
    """Raise ApiError for a node that a policy forbids."""
    if settings.forbid_external_ips and has_external_address(spec):
        name = f"projects/{project}/zones/{zone}/instances/{node}"
        raise api_errors.policy_violated(
            "compute.vmExternalIpAccess", project, f"Add instance {name} to the constraint to use external IP with it."
        )
    if settings.require_os_login and not has_os_login(spec):
        text = "The instance's metadata must have enable-oslogin=TRUE."
        raise api_errors.policy_violated("compute.requireOsLogin", project, text)


ACCOUNT = "developer@emulated.example"  # the only one
NUMBER = 10**20 + int(hashlib.sha256(ACCOUNT.encode()).hexdigest()[:16], 16)  # its unique id
USERNAME = re.sub(r"[^a-z0-9_-]", "_", ACCOUNT)[:32]  # its POSIX name
MAX_PROFILE_BYTES = 32 << 10
KEY = re.compile(r"(ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/]+={0,3}( [^\r\n]*)?\s*")


@dataclass(slots=True)
class LoginKey:
    """One imported line. `expires_usec`: microseconds since 1970; None: never."""

    line: str
    expires_usec: int | None = None

    def is_valid(self, now: float) -> bool:
        return self.expires_usec is None or self.expires_usec > now * 1e6


class LoginProfile:
    """The profile of ACCOUNT, empty until a key is imported. `now`: Unix seconds."""

    def __init__(self, projects: Iterable[str] = (), keys: Mapping[str, LoginKey] | None = None) -> None:
        self.projects = list(projects)  # with a POSIX account
        self._keys = dict(keys or {})  # by fingerprint

    def keys(self, now: float) -> dict[str, LoginKey]:
        """Return the keys by their fingerprints, without expired ones."""
        self._keys = {name: key for name, key in self._keys.items() if key.is_valid(now)}
        return self._keys

    def import_key(self, project: str, line: str, expires_usec: int | None, now: float) -> None:
        """Add a key, or give one that is there another expiry, and a POSIX account in the project. Raises ApiError."""
        line = line.strip()
        if not KEY.fullmatch(line):
            raise ApiError("INVALID_ARGUMENT", "Invalid SSH public key.")
        if expires_usec is not None and expires_usec <= now * 1e6:
            raise ApiError("INVALID_ARGUMENT", "The expiration time is in the past.")
        keys = {**self.keys(now), hashlib.sha256(line.encode()).hexdigest(): LoginKey(line, expires_usec)}
        if len(json.dumps([asdict(key) for key in keys.values()])) > MAX_PROFILE_BYTES:
            text = "Login profile size exceeds 32 KiB. Delete profile values to make additional space."
            raise ApiError("INVALID_ARGUMENT", text)
        self._keys = keys
        if project and project not in self.projects:
            self.projects.append(project)

    def key(self, fingerprint: str, now: float) -> LoginKey:
        """Raises ApiError if there is none."""
        found = self.keys(now).get(fingerprint)
        if found is None:
            raise api_errors.not_found(f"users/{ACCOUNT}/sshPublicKeys/{fingerprint}")
        return found

    def remove_key(self, fingerprint: str, now: float) -> None:
        """Remove a key, if it is there."""
        self.keys(now).pop(fingerprint, None)

    def authorized_keys(self, username: str, now: float) -> set[str]:
        """Return the keys (base64) with which this POSIX user may log in."""
        return {key.line.split()[1] for key in self.keys(now).values()} if username == USERNAME else set()

    def dump(self) -> list[dict[str, Any]]:
        """Return what `load` reads."""
        keys = {name: asdict(key) for name, key in self._keys.items()}
        return [{"projects": self.projects, "keys": keys}] if self.projects or keys else []

    @classmethod
    def load(cls, rows: list[dict[str, Any]]) -> LoginProfile:
        """Return the profile of `dump`. KeyError or TypeError for any other data."""
        for row in rows:
            return cls(row["projects"], {name: LoginKey(**key) for name, key in row["keys"].items()})
        return cls()
