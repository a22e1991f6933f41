"""Which firewall rule decides whether SSH gets in, and where new slices are created."""

from ipaddress import IPv4Network

import pytest

from orchestrator.core.lease.access import AccessWish
from orchestrator.core.lease.networks import (
    ANYWHERE,
    RELAY_RANGE,
    Entrance,
    FirewallRule,
    NetworkPlace,
    Subnetwork,
    entrance,
    in_place,
    place_of,
)


def rule(name: str, *sources: str, priority: int = 1000, allows: bool = True, **said: object) -> FirewallRule:
    found = {"network": "default", "covers_ssh": True, **said}
    return FirewallRule(name, priority=priority, allows=allows, sources=tuple(map(IPv4Network, sources)), **found)  # type: ignore[arg-type]


WIDE, RELAY = rule("wide", ANYWHERE), rule("relay", RELAY_RANGE)
PRIVATE = rule("private", "10.128.0.0/9")
OFFICE = rule("office", "203.0.113.0/24")
BLOCK = rule("block", ANYWHERE, priority=900, allows=False)
PUBLIC = FirewallRule("public", "default", 1000, True, True, (IPv4Network("8.8.8.0/24"),))


@pytest.mark.parametrize(("rules", "source", "expected"), [
    ([], RELAY_RANGE, Entrance(False)), ([RELAY], RELAY_RANGE, Entrance(True, ("relay",))),
    ([WIDE], RELAY_RANGE, Entrance(True, ("wide",))), ([PRIVATE, OFFICE], RELAY_RANGE, Entrance(False)),
    ([WIDE, BLOCK], RELAY_RANGE, Entrance(False, ("block",))),
    ([rule("first", RELAY_RANGE, priority=100), BLOCK], RELAY_RANGE, Entrance(True, ("first",))),
    ([WIDE, rule("same", ANYWHERE, allows=False)], RELAY_RANGE, Entrance(False, ("same",))),
    ([RELAY, rule("part", "35.235.241.0/24", priority=1, allows=False)], RELAY_RANGE, Entrance(None, ("part",))),
    ([rule("elsewhere", ANYWHERE, network="other")], RELAY_RANGE, Entrance(False)),
    ([rule("web", ANYWHERE, covers_ssh=False)], RELAY_RANGE, Entrance(False)),
    ([rule("tagged", ANYWHERE, tags=("gpu",))], RELAY_RANGE, Entrance(False)),
    ([rule("tagged", ANYWHERE, tags=("tpu",))], RELAY_RANGE, Entrance(True, ("tagged",))),
    ([rule("account", ANYWHERE, accounts=("vm@acme",))], RELAY_RANGE, Entrance(True, ("account",))),
    ([rule("account", ANYWHERE, accounts=("x@acme",))], RELAY_RANGE, Entrance(False)),
    ([WIDE], None, Entrance(True, ("wide",))), ([PUBLIC], None, Entrance(None, ("public",))),
    ([PUBLIC, BLOCK], None, Entrance(False, ("block",))),
    ([rule("early", "8.8.8.0/24", priority=1), BLOCK], None, Entrance(None, ("early", "block"))),
    ([PRIVATE], None, Entrance(False)),
])  # fmt: skip
def test_the_rule_with_the_lowest_number_decides_and_none_means_no(
    rules: list[FirewallRule], source: str | None, expected: Entrance
) -> None:
    assert entrance(rules, "default", source, tags=("tpu",), account="vm@acme") == expected


def test_an_address_inside_may_be_one_that_a_private_range_lets_in() -> None:
    assert entrance([PRIVATE], "default", None, inside=True) == Entrance(None, ("private",))


@pytest.mark.parametrize(("wish", "expected"), [
    (AccessWish(), NetworkPlace("acme", "default")), (AccessWish(network="lab"), NetworkPlace("acme", "lab")),
    (AccessWish(network="projects/host/global/networks/lab"), NetworkPlace("host", "lab")),
    (AccessWish(subnetwork="small"), NetworkPlace("acme", None, "small")),
    (AccessWish(network="lab", subnetwork="small"), NetworkPlace("acme", "lab", "small")),
    (AccessWish(subnetwork="projects/host/regions/us-east1/subnetworks/small"),
     NetworkPlace("host", None, "small", "us-east1")),
])  # fmt: skip
def test_the_place_of_new_slices_may_be_in_another_project(wish: AccessWish, expected: NetworkPlace) -> None:
    assert place_of(wish, "acme") == expected


def test_slices_go_to_the_subnetwork_that_is_named_else_to_any_of_the_network() -> None:
    rows = [Subnetwork(name, region, "lab", False) for name in ("a", "b") for region in ("us-east1", "us-west4")]
    rows.append(Subnetwork("a", "us-east1", "other", False))

    def found(place: NetworkPlace, *regions: str) -> list[tuple[str, str, str]]:
        return [(each.name, each.region, each.network) for each in in_place(rows, place, regions)]

    assert found(NetworkPlace("p", "lab"), "us-east1") == [("a", "us-east1", "lab"), ("b", "us-east1", "lab")]
    assert found(NetworkPlace("p", "lab", "a"), "us-east1", "us-west4") == [
        ("a", "us-east1", "lab"),
        ("a", "us-west4", "lab"),
    ]
    assert found(NetworkPlace("p", None, "b", "us-west4"), "us-east1", "us-west4") == [("b", "us-west4", "lab")]
