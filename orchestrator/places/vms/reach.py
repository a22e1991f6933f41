"""How this machine gets to the workers of one cloud: the dialer of a lease's route, and its key in the OS Login profile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AuthError, Vanished
from orchestrator.hosts import iap
from orchestrator.hosts.ssh.dial import Dialer, Direct, Relayed
from orchestrator.hosts.ssh.proxy_command import Piped
from orchestrator.places import google
from orchestrator.places.desk import Emulator
from orchestrator.promise.lease.access import Via
from orchestrator.promise.lease.periods import is_emulated
from orchestrator.promise.obtain.login_key import COMMENT, create_key

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.fleet import Fleet
    from orchestrator.hosts.iap.dialer import Relay
    from orchestrator.places.google.os_login import LoginKey, OsLogin
    from orchestrator.places.google.project_setup import Apis, ProjectSetup
    from orchestrator.promise.lease.cloud_api import Bearer, WorkerAddress
    from orchestrator.promise.lease.lease import Lease


RELAY, EMULATOR = "orchestrator.api.slices.relay", "--emulator"
FRESH_S = 120.0  # after READY: so long the relay may refuse a user who has the role (about a minute was seen)


@dataclass(slots=True)
class Reach:
    """The ways to the workers of one cloud. `emulator`: starts it if need be; it returns None for Google's cloud."""

    emulator: Callable[[], Emulator | None]
    lease_directory: Callable[[str], Path]
    keys_left: set[str] = field(default_factory=set)  # of these leases, the key may still be in the OS Login profile
    _os_login: OsLogin | None = field(default=None, init=False)

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> Fleet:
        """Return the workers of a lease, with the key made for it. Connects nothing yet; OpenSSH could from here on."""
        from orchestrator.hosts.fleet.fleet import Fleet  # the program of a ProxyCommand does without

        directory = self.lease_directory(lease.id)
        fleet = Fleet(
            workers,
            user=lease.route.user,
            key_path=directory / "id_ed25519",
            known_hosts=directory / "known_hosts",
            on_notice=notice,
            now=now,
            dialer=self.dialer(lease, now()),
            shares_loopback=is_emulated(lease.cloud),
        )
        fleet.write_openssh_config(directory, lease.handle, lease.name.node)
        return fleet

    def dialer(self, lease: Lease, now: float) -> Dialer:
        """Return the way to the workers of a lease. Connects to nothing yet. `now`: ledger time."""
        route, name = lease.route, lease.name
        if route.via is Via.IAP:
            emulator = self.emulator()
            program = relay_argv(name.project, name.zone, emulator)
            fresh_s = 0.0 if lease.ready_at is None else lease.ready_at + FRESH_S - now
            return Relayed(relay_of(emulator), name.project, name.zone, program=program, fresh_s=fresh_s)
        if route.ssh_proxy_command is not None:
            return Piped(route.ssh_proxy_command, route.user)
        return Direct(internal=route.via is Via.INTERNAL)

    def public_line(self, lease: Lease) -> str:
        """Return the public key of this machine for a lease, which is made if there is none. Raises ConfigError."""
        return create_key(self.lease_directory(lease.id)).public_line

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        """Import the key of the lease into the OS Login profile; return whom to log in as. Raises CloudError."""
        key = create_key(self.lease_directory(lease.id))
        login = self.logins().import_key(
            f"{key.public_line}-{lease.id}",
            project=lease.name.project,
            region=lease.name.zone.rpartition("-")[0],
            expires_at=expires_at,
        )
        return login.user

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        """Move the expiry of the key of the lease. Raises CloudError, Vanished if it is not in the profile."""
        keys = self._keys_of(lease)
        if not keys:
            raise Vanished("it is not in your OS Login profile any more")
        for key in keys:
            self.logins().extend_key(key.key_id, key.line, expires_at=expires_at)

    def revoke_login(self, lease: Lease) -> None:
        """Remove the key of the lease from the profile, if it is there; until then it is in `keys_left`. Raises CloudError."""
        self.keys_left.add(lease.id)
        for key in self._keys_of(lease):
            self.logins().remove_key(key.key_id, project=lease.name.project)
        self.keys_left.discard(lease.id)

    def _keys_of(self, lease: Lease) -> list[LoginKey]:
        """Return the key of the lease in the profile, if it is there. Raises AuthError if it is in another one."""
        logins, project, user = self.logins(), lease.name.project, lease.route.user
        found = [key for key in logins.keys(project) if key.line.endswith(f" {COMMENT}-{lease.id}")]
        if not found and user and logins.user(project) != user:
            raise AuthError(
                f"the key is in the OS Login profile of {user}, and {logins.account} is signed in here",
                hint="gcloud auth application-default login",
            )
        return found

    def setup(self, project: str) -> ProjectSetup:
        """Return what tells how a project is set up for access."""
        return google.project_setup.ProjectSetup(project, self._apis())

    def _apis(self, *scopes: str) -> Apis:
        """Return Google's APIs, or the emulator in their place. `scopes`: what the token is for."""
        emulator = self.emulator()
        if emulator is None:
            return google.project_setup.Apis(google.credentials.GoogleToken(*scopes))
        return google.project_setup.Apis(_emulator_bearer(emulator), emulator.url)

    def relay(self) -> Relay:
        """Return the relay of IAP."""
        return relay_of(self.emulator())

    def logins(self) -> OsLogin:
        """Return the OS Login profile of the account that is signed in here. Raises CloudError."""
        if self._os_login is None:
            apis = self._apis(google.credentials.SCOPE, google.credentials.EMAIL_SCOPE)
            named = apis.bearer.account if isinstance(apis.bearer, google.credentials.GoogleToken) else None
            self._os_login = google.os_login.OsLogin(named or google.os_login.account_of(apis), apis)
        return self._os_login


def relay_argv(project: str, zone: str, emulator: Emulator | None) -> list[str]:
    """Return the ProxyCommand through IAP but for the instance. The emulator's token stays in its file."""
    place = [] if emulator is None else [EMULATOR, emulator.url, str(emulator.token_file)]
    return [sys.executable, "-P", "-m", RELAY, *place, project, zone]


def relay_of(emulator: Emulator | None) -> Relay:
    """Return the relay of IAP: that of the emulator, or with None Google's. Raises ConfigError, CloudUnavailable."""
    if emulator is None:
        proxy = google.fetch.proxy_for(iap.dialer.RELAY_HOST)
        url = None if proxy is None else proxy.geturl()
        return iap.dialer.Relay(google.credentials.GoogleToken(), proxy=url, authorities=google.fetch.authorities())
    url = f"ws{emulator.url.rstrip('/').removeprefix('http')}/v4"
    return iap.dialer.Relay(_emulator_bearer(emulator), url, emulated=True)


def _emulator_bearer(emulator: Emulator) -> Bearer:
    return google.credentials.EmulatorToken(google.credentials.read_token(str(emulator.token_file)))
