"""What of a project's network decides whether SSH reaches the workers, and what they reach. Pure.

Values of Compute Engine, and which firewall rule decides. Firewall policies (of an organization, a folder or the network) are
not part of it: few may read them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

from orchestrator.core.lease.access import AccessWish

RELAY_RANGE, ANYWHERE = "35.235.240.0/20", "0.0.0.0/0"
SSH_PORT = 22
_PATH = re.compile(r"(?:.*/)?projects/([^/]+)/(?:global/networks|regions/([^/]+)/subnetworks)/([^/]+)")


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """The network that slices are created in. `project` is another one than theirs with a shared VPC."""

    project: str
    network: str | None  # None: that of the subnetwork
    subnetwork: str | None = None  # a name; None: any of the network
    region: str | None = None  # of the subnetwork, where its path names it


@dataclass(frozen=True, slots=True)
class Subnetwork:
    """One subnetwork. `network`: its name."""

    name: str
    region: str
    network: str
    private_google_access: bool


@dataclass(frozen=True, slots=True)
class FirewallRule:
    """One rule for incoming connections. `sources`: IPv4 ranges; `tags`, `accounts`: of the VMs it is for; empty: all."""

    name: str
    network: str
    priority: int
    allows: bool
    covers_ssh: bool
    sources: tuple[IPv4Network, ...]
    tags: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()

    def is_for(self, tags: Iterable[str], account: str | None) -> bool:
        """Return whether the rule is for VMs with these tags and this service account."""
        if not self.tags and not self.accounts:
            return True
        return bool({*self.tags} & {*tags}) or account in self.accounts


@dataclass(frozen=True, slots=True)
class Entrance:
    """Whether SSH gets in. `is_open` None: from some addresses. `rules`: the rules that decide it, if any does."""

    is_open: bool | None
    rules: tuple[str, ...] = ()


def place_of(wish: AccessWish, project: str) -> NetworkPlace:
    """Return the network of new slices; without a wish it is `default`."""
    subnetwork = _PATH.fullmatch(wish.subnetwork) if wish.subnetwork else None
    network = _PATH.fullmatch(wish.network) if wish.network else None
    named = network[3] if network else wish.network
    if subnetwork:
        return NetworkPlace(subnetwork[1], named, subnetwork[3], subnetwork[2])
    if wish.subnetwork:
        return NetworkPlace(network[1] if network else project, named, wish.subnetwork)
    return NetworkPlace(network[1] if network else project, named or "default")


def entrance(
    rules: Iterable[FirewallRule],
    network: str,
    source: str | None,
    *,
    inside: bool = False,
    tags: Iterable[str] = (),
    account: str | None = None,
) -> Entrance:
    """Return whether connections from a range reach tcp:22 of VMs with these tags and this service account.

    `source` None: from an address that is not known, in a private network (`inside`) or in the Internet. The rule with the
    lowest priority number decides; of two with the same, the one that denies.
    """
    asked = IPv4Network(source or ANYWHERE)
    tags, some = tuple(tags), list[str]()
    found = [rule for rule in rules if rule.network == network and rule.covers_ssh and rule.is_for(tags, account)]
    for rule in sorted(found, key=lambda rule: (rule.priority, rule.allows)):
        if any(asked.subnet_of(each) for each in rule.sources):
            return Entrance(rule.allows or (None if some else False), (*some, rule.name))
        if source is None and rule.allows and (inside or not all(each.is_private for each in rule.sources)):
            some.append(rule.name)
        elif source is not None and not rule.allows and any(asked.overlaps(each) for each in rule.sources):
            return Entrance(None, (rule.name,))
    return Entrance(None if some else False, tuple(some))


def in_place(subnetworks: Iterable[Subnetwork], place: NetworkPlace, regions: Iterable[str]) -> Iterator[Subnetwork]:
    """Yield the subnetworks that slices in these regions may be created in."""
    wanted = {*regions}
    for each in subnetworks:
        named = each.name == (place.subnetwork or each.name) and each.network == (place.network or each.network)
        if named and each.region == (place.region or each.region) and each.region in wanted:
            yield each
