"""Access to the VMs of a project: what administrators have set up, and OS Login.

APIs, permissions, firewall rules and ways out are only read. Each call raises a CloudError: AuthError where the caller may not
read it, which says nothing about what is there.

OS Login has an SSH key of this user with an expiry, and the login name that goes with it. The id of a key is what the API says
it is: its rule is not documented, and a delete of another id succeeds without effect. So `import_key` looks its key up in the
reply, and `remove_key` reads the profile again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.errors import AuthError, CloudError, UnexpectedReply
from orchestrator.places.google import error_translation
from orchestrator.places.google.fetch import api_call
from orchestrator.promise.lease.access import ANYWHERE, SSH_PORT, FirewallRule, Subnetwork
from orchestrator.promise.lease.cloud_api import Bearer

COMPUTE, USAGE, RESOURCES = (
    "compute.googleapis.com",
    "serviceusage.googleapis.com",
    "cloudresourcemanager.googleapis.com",
)
MAX_PAGES = 100
TCP = ("tcp", "6", "all")


@dataclass(frozen=True, slots=True)
class Apis:
    """Google's APIs for one login. `emulator`: the address of an emulator, whose token `bearer` has; None: Google's."""

    bearer: Bearer
    emulator: str | None = None

    def ask(self, service: str, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> dict[str, Any]:
        """Return what a service answers. `method`: GET or, with a body, POST. Raises a CloudError."""
        endpoint = f"https://{service}" if self.emulator is None else self.emulator.rstrip("/")
        url, method = f"{endpoint}/{quote(path, safe='/:?=&%@')}", method or ("GET" if body is None else "POST")
        return api_call(method, url, body, self.bearer, emulated=self.emulator is not None).data


@dataclass(frozen=True, slots=True)
class ProjectSetup:
    """Of one project."""

    project: str
    apis: Apis

    def uses_os_login(self) -> bool:
        """Return whether the metadata of the project turn OS Login on for VMs that do not say otherwise."""
        metadata = self.apis.ask(COMPUTE, self._compute()).get("commonInstanceMetadata")
        items = metadata.get("items", []) if isinstance(metadata, dict) else []
        values = {str(row.get("key")): str(row.get("value")) for row in _objects(items)}
        return values.get("enable-oslogin", "").upper() == "TRUE"

    def firewall_rules(self) -> list[FirewallRule]:
        """Return the rules for incoming connections that are in force."""
        pages = self._pages(self._compute("global/firewalls"))
        return [rule for page in pages for row in _objects(page.get("items", [])) if (rule := _rule(row)) is not None]

    def subnetworks(self) -> list[Subnetwork]:
        """Return all subnetworks of all networks."""
        return [
            Subnetwork(str(row.get("name")), region, _last(row.get("network")), bool(row.get("privateIpGoogleAccess")))
            for region, row in self._by_region("subnetworks")
        ]

    def regions_with_nat(self, network: str) -> set[str]:
        """Return the regions in which Cloud NAT gives VMs of the network a route out."""
        rows = self._by_region("routers")
        return {region for region, row in rows if row.get("nats") and _last(row.get("network")) == network}

    def is_enabled(self, service: str) -> bool:
        """Return whether the project has enabled an API."""
        return self.apis.ask(USAGE, f"v1/projects/{self.project}/services/{service}").get("state") == "ENABLED"

    def permissions(self, asked: Iterable[str]) -> set[str]:
        """Return those of these permissions that the caller has in the whole project."""
        path = f"v1/projects/{self.project}:testIamPermissions"
        had = self.apis.ask(RESOURCES, path, {"permissions": list(asked)}).get("permissions", [])
        return {str(name) for name in had} if isinstance(had, list) else set()

    def _compute(self, path: str = "") -> str:
        return f"compute/v1/projects/{self.project}{'/' if path else ''}{path}"

    def _by_region(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for page in self._pages(self._compute(f"aggregated/{kind}")):
            items = page.get("items", {})
            for scope, found in items.items() if isinstance(items, dict) else ():
                for row in _objects(found.get(kind, []) if isinstance(found, dict) else []):
                    yield _last(scope), row

    def _pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        token = ""
        for _ in range(MAX_PAGES):
            page = self.apis.ask(COMPUTE, f"{path}?{urlencode({'pageToken': token})}" if token else path)
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return
        raise UnexpectedReply(f"a list of {COMPUTE} has more than {MAX_PAGES} pages")


def disabled_api(error: CloudError) -> str | None:
    """Return the name of the API that the project has not enabled, if that is what the error says."""
    details = error.details.get("details", []) if isinstance(error.details, dict) else []
    for each in details if isinstance(error, AuthError) else ():
        if each.get("reason") == "SERVICE_DISABLED":
            return str(each.get("metadata", {}).get("service") or "") or None
    return None


def _rule(row: Mapping[str, Any]) -> FirewallRule | None:
    if row.get("direction", "INGRESS") != "INGRESS" or row.get("disabled"):
        return None
    allowed, denied = _objects(row.get("allowed", [])), _objects(row.get("denied", []))
    sources = _strings(row.get("sourceRanges"))
    if not sources and not row.get("sourceTags") and not row.get("sourceServiceAccounts"):
        sources = (ANYWHERE,)
    priority = row.get("priority", 1000)
    return FirewallRule(
        name=str(row.get("name")),
        network=_last(row.get("network")),
        priority=priority if isinstance(priority, int) else 1000,
        allows=bool(allowed),
        covers_ssh=any(_covers_ssh(each) for each in (*allowed, *denied)),
        sources=tuple(found for text in sources if (found := _ipv4(text)) is not None),
        tags=_strings(row.get("targetTags")),
        accounts=_strings(row.get("targetServiceAccounts")),
    )


def _covers_ssh(layer: Mapping[str, Any]) -> bool:
    if str(layer.get("IPProtocol", "")).lower() not in TCP:
        return False
    ports = _strings(layer.get("ports"))
    return not ports or any(_covers(text, SSH_PORT) for text in ports)


def _covers(ports: str, port: int) -> bool:
    first, _, last = ports.partition("-")
    return first.isdigit() and (last or first).isdigit() and int(first) <= port <= int(last or first)


def _ipv4(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        return None  # IPv6


def _last(path: object) -> str:
    return str(path or "").rpartition("/")[2]


def _strings(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


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
    rows = _objects(profile.get("posixAccounts"))
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
