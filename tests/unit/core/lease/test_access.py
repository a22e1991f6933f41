"""Wishes about access, and the route that follows from them."""

from dataclasses import asdict

import pytest

from orchestrator.core.lease.access import AccessWish, ProjectRules, Route, Via, contradiction, describe, route
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
