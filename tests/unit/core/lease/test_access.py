"""Wishes about access and the route that follows, the firewall rule that lets SSH in, and where new slices are created."""

from dataclasses import asdict
from ipaddress import IPv4Network

import pytest

from orchestrator.core.lease.access import (
    ANYWHERE,
    RELAY_RANGE,
    AccessWish,
    Entrance,
    FirewallRule,
    NetworkPlace,
    ProjectRules,
    Route,
    Subnetwork,
    Via,
    contradiction,
    describe,
    entrance,
    in_place,
    place_of,
    route,
)
from orchestrator.core.lease.run_spec import read

FORBIDDEN, REQUIRED = ProjectRules(no_external_addresses=True), ProjectRules(os_login=True)
BASTION = "ssh -W %h:%p bastion"


@pytest.mark.parametrize(("wish", "rules", "taken"), [
    (AccessWish(), ProjectRules(), Route()), (AccessWish(), FORBIDDEN, Route(Via.IAP)),
    (AccessWish(via="auto"), FORBIDDEN, Route(Via.IAP)), (AccessWish(via="external"), FORBIDDEN, Route()),
    (AccessWish(via="internal"), ProjectRules(), Route(Via.INTERNAL)),
    (AccessWish(ssh_proxy_command=BASTION), ProjectRules(), Route(Via.INTERNAL, BASTION)),
    (AccessWish(ssh_proxy_command=BASTION), FORBIDDEN, Route(Via.INTERNAL, BASTION)),
    (AccessWish(via="iap", ssh_proxy_command=BASTION), ProjectRules(), Route(Via.IAP)),
    (AccessWish(), REQUIRED, Route(os_login=True, user="")), (AccessWish(os_login="off"), REQUIRED, Route()),
    (AccessWish(os_login="on"), ProjectRules(), Route(os_login=True, user="")),
])  # fmt: skip
def test_the_route_is_what_was_asked_for_else_what_the_project_allows(
    wish: AccessWish, rules: ProjectRules, taken: Route
) -> None:
    assert route(wish, rules) == taken


def test_a_wish_outranks_the_next_one_key_by_key_and_auto_is_a_wish() -> None:
    settings = AccessWish(via="iap", network="shared", tags=("ssh",), os_login="on")
    job = AccessWish(via="auto", network="own", tags=())
    assert job.over(settings) == AccessWish(via="auto", network="own", tags=(), os_login="on")
    assert AccessWish().over(settings) == settings


def test_a_route_survives_the_ledger() -> None:
    taken = Route(Via.INTERNAL, BASTION, os_login=True, user="ada_example_com")
    assert read(Route, asdict(taken)) == taken


LAB = AccessWish(network="lab", tags=("ssh",))


@pytest.mark.parametrize(("taken", "wish", "word"), [
    (Route(), AccessWish(), None), (Route(Via.IAP), AccessWish(via="auto", os_login="auto"), None),
    (Route(Via.IAP), AccessWish(via="iap"), None), (Route(), AccessWish(via="iap"), "`via: iap`"),
    (Route(os_login=True), AccessWish(os_login="off"), "with OS Login"),
    (Route(), AccessWish(os_login="on"), "without OS Login"), (Route(), LAB, None),
    (Route(), AccessWish(subnetwork=""), None), (Route(), AccessWish(network="other"), "`network`"),
    (Route(), AccessWish(subnetwork="tpus"), "`subnetwork`"), (Route(), AccessWish(tags=()), "`tags`"),
    (Route(), AccessWish(secure_boot=True), "`secure_boot`"),
])  # fmt: skip
def test_a_slice_contradicts_only_what_a_wish_says(taken: Route, wish: AccessWish, word: str | None) -> None:
    why = contradiction(taken, LAB, wish)
    assert why is None if word is None else word in str(why)


def test_the_way_to_one_worker_is_that_to_its_address() -> None:
    assert describe(Route(), 1) == "by its external address"
    assert describe(Route(Via.INTERNAL, BASTION), 1) == f"by its internal address, through `{BASTION}`"
    assert describe(Route()) == "by their external addresses"


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
