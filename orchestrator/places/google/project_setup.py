"""What administrators have set up in a project: APIs, permissions, firewall rules and ways out. All of it is only read.

Each call raises a CloudError: AuthError where the caller may not read it, which says nothing about what is there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.errors import AuthError, CloudError, UnexpectedReply
from orchestrator.places.google.fetch import api_call
from orchestrator.promise.lease.cloud_api import Bearer
from orchestrator.promise.lease.network import ANYWHERE, SSH_PORT, FirewallRule, Subnetwork

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
        values = {str(row.get("key")): str(row.get("value")) for row in objects_in(items)}
        return values.get("enable-oslogin", "").upper() == "TRUE"

    def firewall_rules(self) -> list[FirewallRule]:
        """Return the rules for incoming connections that are in force."""
        pages = self._pages(self._compute("global/firewalls"))
        return [rule for page in pages for row in objects_in(page.get("items", [])) if (rule := _rule(row)) is not None]

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
                for row in objects_in(found.get(kind, []) if isinstance(found, dict) else []):
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
    allowed, denied = objects_in(row.get("allowed", [])), objects_in(row.get("denied", []))
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


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list in a reply; none if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
