"""The table of offers: every pair of type and zone once, prices of whole slices, unknown empty, granted said."""

import pytest

from orchestrator import catalog
from orchestrator.core.planning.availability import Availability
from orchestrator.core.planning.grants import Grant
from orchestrator.report.offers import Offered, chosen, offered, table

ROWS = list(offered(None, ()))
GRANTS = (Grant("v3-8", 5, "europe-west4-a"), Grant("v4", 32, "us-central2-b", spot=True))


def one(rows: list[Offered], accelerator: str, zone: str) -> Offered:
    (row,) = [row for row in rows if (row.accelerator, row.zone) == (accelerator, zone)]
    return row


def test_every_type_of_the_table_is_there_once_for_each_zone_that_offers_it_at_its_price() -> None:
    assert {(row.accelerator, row.zone) for row in ROWS} == {
        (name, zone) for name in catalog.types() for zone in catalog.zones_with(name)
    }
    assert len({(row.accelerator, row.zone) for row in ROWS}) == len(ROWS)
    for row in ROWS[::37]:
        assert row.usd_per_hour == catalog.usd_per_hour(row.accelerator, row.zone, spot=False)
        assert row.spot_usd_per_hour == catalog.usd_per_hour(row.accelerator, row.zone, spot=True)


def test_no_price_of_the_table_is_zero_for_zero_means_granted() -> None:
    assert all(row.usd_per_hour != 0 and row.spot_usd_per_hour != 0 for row in ROWS)


def test_an_unknown_price_is_an_empty_cell_and_comes_last() -> None:
    found = table(
        chosen(ROWS, types=["v6e-8"], zones=["us-central2-b", "us-east5-a"], spot=False, largest_hosts=None),
        by_zone=True,
    )
    assert found.head[:6] == ("TYPE", "TOPOLOGY", "CHIPS", "HOSTS", "HBM GIB", "ZONE")
    assert [row[5:] for row in found.rows] == [("us-east5-a", "21.60", "10.21"), ("us-central2-b", "", "")]


def test_a_type_in_many_zones_is_one_line_with_the_lowest_prices() -> None:
    found = table(chosen(ROWS, types=["v3-8"], zones=[], spot=False, largest_hosts=None), by_zone=False)
    assert found.rows == (("v3-8", "2x2", "4", "1", "128", "5", "8.00", "2.04"),)


def test_spot_leaves_out_what_has_no_spot_price_and_sorts_by_it() -> None:
    found = chosen(ROWS, types=["v3-8"], zones=[], spot=True, largest_hosts=None)
    prices = [row.spot_usd_per_hour for row in found]
    assert "us-east1-d" not in {row.zone for row in found} and prices == sorted(prices, key=lambda price: price or 0)


def test_what_is_granted_is_said_in_place_of_a_price_and_comes_first() -> None:
    rows = list(offered(None, GRANTS))
    assert (one(rows, "v3-8", "europe-west4-a").granted, one(rows, "v4-64", "us-central2-b").granted_spot) == (5, 32)
    assert one(rows, "v4-128", "us-central2-b").granted_spot is None, "more chips than are granted"
    first, *_ = table(chosen(rows, types=["v3-8"], zones=[], spot=False, largest_hosts=None), by_zone=True).rows
    assert first[5:] == ("europe-west4-a", "granted", "2.24")


def test_what_a_project_has_is_marked_and_what_is_newer_than_the_table_is_there_without_a_price() -> None:
    said = Availability(
        "p", "2026-11-21T10:00:00Z", {"us-central1-a": ("v5litepod-8", "v9-8")}, {"us-west4-a": "timed out"}
    )
    rows = list(offered(said, ()))
    has = [one(rows, "v5litepod-8", zone).has for zone in ("us-central1-a", "us-west4-a", "us-east1-b")]
    assert has == [True, None, False]
    new = one(rows, "v9-8", "us-central1-a")
    assert new.kind is None and new.as_json()["chips"] is None and new.as_json()["usd_per_hour"] is None
    assert table([new], by_zone=True).rows == (("v9-8", "", "", "", "", "us-central1-a", "", ""),)


@pytest.mark.parametrize(("largest", "hosts"), [(1, 1), (8, 8)])
def test_large_slices_are_left_out_where_that_is_asked_for(largest: int, hosts: int) -> None:
    found = chosen(ROWS, types=[], zones=[], spot=False, largest_hosts=largest)
    assert max(row.kind.hosts for row in found if row.kind) == hosts
