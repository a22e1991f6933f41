"""The facts about accelerator types, zones and prices, what GKE has of them, and the tables that show both."""

import csv
import math
import sys
from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator.capacity.availability import Availability
from orchestrator.capacity.grants import Grant
from orchestrator.catalog import gke
from orchestrator.cli.console.offer_tables import gke_table, table
from orchestrator.errors import UserError
from orchestrator.report.offers import Offered, chosen, gke_as_json, offered, offered_on_gke
from tests.waiting import ran


@pytest.mark.parametrize(("name", "chips", "cores", "hosts", "topology", "api_type", "runtime"), [
    ("v2-8", 4, 8, 1, "2x2", "V2", "tpu-ubuntu2204-base"),
    ("v2-32", 16, 32, 4, "4x4", "V2", "tpu-ubuntu2204-base"),
    ("v3-8", 4, 8, 1, "2x2", "V3", "tpu-ubuntu2204-base"),
    ("v3-2048", 1024, 2048, 256, "32x32", "V3", "tpu-ubuntu2204-base"),
    ("v4-8", 4, 8, 1, "2x2x1", "V4", "tpu-ubuntu2204-base"),
    ("v4-512", 256, 512, 64, "4x8x8", "V4", "tpu-ubuntu2204-base"),
    ("v5litepod-1", 1, 1, 1, "1x1", "V5LITE_POD", "v2-alpha-tpuv5-lite"),
    ("v5litepod-4", 4, 4, 1, "2x2", "V5LITE_POD", "v2-alpha-tpuv5-lite"),
    ("v5litepod-8", 8, 8, 1, "2x4", "V5LITE_POD", "v2-alpha-tpuv5-lite"),
    ("v5litepod-16", 16, 16, 4, "4x4", "V5LITE_POD", "v2-alpha-tpuv5-lite"),
    ("v5litepod-256", 256, 256, 64, "16x16", "V5LITE_POD", "v2-alpha-tpuv5-lite"),
    ("v5p-8", 4, 8, 1, "2x2x1", "V5P", "v2-alpha-tpuv5"),
    ("v5p-384", 192, 384, 48, "4x4x12", "V5P", "v2-alpha-tpuv5"),
    ("v5p-12288", 6144, 12288, 1536, "16x16x24", "V5P", "v2-alpha-tpuv5"),
    ("v6e-8", 8, 8, 1, "2x4", "V6E", "v2-alpha-tpuv6e"), ("v6e-64", 64, 64, 16, "8x8", "V6E", "v2-alpha-tpuv6e"),
    ("tpu7x-2", 1, 2, 1, "1x1x1", "", ""), ("tpu7x-8", 4, 8, 1, "2x2x1", "", ""),
    ("tpu7x-16", 8, 16, 2, "2x2x2", "", ""), ("tpu7x-18432", 9216, 18432, 2304, "16x24x24", "", ""),
])  # fmt: skip
def test_the_shape_of_a_type(
    name: str, chips: int, cores: int, hosts: int, topology: str, api_type: str, runtime: str
) -> None:
    kind = catalog.lookup(name)
    assert (kind.chips, kind.cores, kind.hosts, kind.topology) == (chips, cores, hosts, topology)
    assert (kind.api_type, kind.default_runtime) == (api_type, runtime)
    assert kind.cores_per_host == cores // hosts


@pytest.mark.parametrize("name", catalog.types())
def test_every_shape_adds_up(name: str) -> None:
    kind = catalog.lookup(name)
    assert kind is not None and kind.name == name == f"{kind.family}-{name.rpartition('-')[2]}"
    sides = [int(side) for side in kind.topology.split("x")]
    assert math.prod(sides) == kind.chips
    assert len(sides) == (3 if kind.generation in ("v4", "v5p", "tpu7x") else 2)
    assert kind.chips % kind.hosts == 0 and kind.hosts * kind.cores_per_host == kind.cores
    assert kind.hbm_gib >= 16 * kind.chips
    assert catalog.canonical(name.replace("-", "")) == catalog.canonical(f"{kind.generation}-{kind.topology}") == name
    if kind.in_cloud_tpu_api:
        assert kind.default_runtime == catalog.runtimes(kind.generation)[0]
        assert catalog.zones_with(name)
    else:
        assert catalog.runtimes(kind.generation) == catalog.zones_with(name) == ()


def test_only_tpu7x_is_in_no_zone_of_the_cloud_tpu_api() -> None:
    absent = {kind.generation for kind in map(catalog.lookup, catalog.types()) if kind and not kind.in_cloud_tpu_api}
    assert absent == {"tpu7x"}
    assert not any(offer.generation == "tpu7x" for offer in catalog.offers())


@pytest.mark.parametrize(("written", "name"), [
    *((name, "v5litepod-8") for name in ("v5e-8", "tpu-v5e-8", "v5litepod-8", "tpu-v5litepod-8")),
    *((name, "tpu7x-8") for name in ("TPU7x-8", "tpu-7x-8", "v7x-8")),
    (" V5E-16 ", "v5litepod-16"), ("tpu-v6e-8", "v6e-8"), ("tpu-v5p-8", "v5p-8"), ("tpu-v4-8", "v4-8"),
    ("v5e8", "v5litepod-8"), ("V5LITE_POD-8", "v5litepod-8"), ("tpuv6e8", "v6e-8"), ("trillium-4", "v6e-4"),
    ("v5e-4x4", "v5litepod-16"), ("v4-2x2x1", "v4-8"), ("v4-2x2", "v4-8"), ("v5p-2x2x2", "v5p-16"),
    ("tpu-v5-lite-podslice-2x4", "v5litepod-8"), ("tpu-v4-podslice-2x2x4", "v4-32"), ("tpu7x-2x2x1", "tpu7x-8"),
    ("ct6e-standard-4t", "v6e-4"), ("ct5lp-hightpu-8t", "v5litepod-8"), ("ct5p-hightpu-4t-tpu", "v5p-8"),
    ("ct5l-hightpu-1t", "v5litepod-1"), ("ct5l-hightpu-8t", "v5litepod-8"), ("tpu7-standard-4t", "tpu7x-8"),
    ("tpu7-8", "tpu7x-8"), ("v7-8", "tpu7x-8"), ("tpu-7-8", "tpu7x-8"), ("v6-8", "v6e-8"), ("v5-8", "v5-8"),
    ("ct3p-hightpu-4t", "v3-8"), ("ct4p-hightpu-4t", "v4-8"), ("tpu7x-standard-4t", "tpu7x-8"),
    *((name, name) for name in ("v4-4x4x16", "v5e-8x2x2", "ct6e-standard-3t", "tpu-v6e-slice", "v5e", "v5ex-8")),
    *((name, name) for name in ("v5e-٨", "v5e-7", "tpu-v9z-8", "tpu-", "", f"v4-{'1x' * 40}1", f"v4-{9**60}")),
])  # fmt: skip
def test_common_names_of_a_type_map_to_the_name_of_the_api(written: str, name: str) -> None:
    assert catalog.canonical(written) == name


@pytest.mark.parametrize(("written", "generation", "whole"), [
    *((name, "v5e", False) for name in ("tpu-v5e-7", "v5e7", "v5lite-7", "v5e-3x3", "ct5lp-hightpu-3t")),
    *((name, "v5e", True) for name in ("v5e", "v5litepod", "tpu-v5-lite-podslice")),
    ("ct6e-standard-3t", "v6e", False), ("tpu-v6e-slice", "v6e", True), ("ct5p-hightpu-1t", "v5p", False),
    ("tpu-v4-podslice", "v4", True), ("tpu7x-9", "tpu7x", False), ("ironwood", "tpu7x", True),
    ("v2-alpha-tpuv6e", "v6e", False), ("v2-alpha-tpuv5-lite", "v5e", False),
    ("my-v5e-pool", "v5e", False), ("v5lietpod-8", "v5e", False), ("v6x", "v6e", False), ("v7", "tpu7x", True),
])  # fmt: skip
def test_the_types_nearest_to_a_size_that_does_not_exist_are_of_the_same_chip(
    written: str, generation: str, whole: bool
) -> None:
    kinds = [catalog.lookup(name) for name in catalog.nearest(written)]
    assert kinds and {kind.generation for kind in kinds if kind} == {generation}
    assert catalog.generation(written) == (generation if whole else None)


# Shapes of v4, v5p and TPU7x slices as Google's xpk lists them.
LISTED_BY_XPK = (
    "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12 8x8x16 "
    "4x12x20 8x12x16 4x20x20 12x12x12 8x8x28 12x12x16 8x12x28 12x16x16 12x12x24 16x16x16 12x16x24 16x16x20 12x12x36 "
    "12x20x24 16x16x24 12x24x24 16x20x28 4x28x28 8x20x20 4x20x44 4x12x92 8x8x92 1x1x1 12x12x28 16x16x32 16x24x24"
)


@pytest.mark.parametrize("topology", LISTED_BY_XPK.split())
def test_a_torus_is_as_compact_as_its_chips_allow(topology: str) -> None:
    chips = math.prod(int(side) for side in topology.split("x"))
    assert catalog.default_topology(chips, dimensions=3) == topology


def test_ranges_of_sizes_are_written_out() -> None:
    sizes = [int(name.rpartition("-")[2]) for name in catalog.types() if name.startswith("v5p-")]
    assert sizes[:8] == [8, 16, 32, 64, 128, 256, 384, 512]
    assert sizes[-2:] == [12160, 12288]
    assert catalog.lookup("v4-6144") and catalog.lookup("v4-8192") and not catalog.lookup("v4-6272")


@pytest.mark.parametrize(
    "name", ["v5litepod-7", "v5p-136", "V5LITEPOD-8", "v5litepod", "tpu7x-9", "", "v5litepod-08", "v5e-8"]
)
def test_an_unknown_type_is_none(name: str) -> None:
    assert catalog.lookup(name) is None
    assert catalog.zones_with(name) == ()


def test_zones_are_found_by_region_and_by_type_in_the_order_of_the_table() -> None:
    assert catalog.zones_of("us-central1") == ("us-central1-b", "us-central1-c", "us-central1-f", "us-central1-a")
    assert catalog.zones_of("nowhere1") == ()
    assert catalog.zones_with("v5litepod-8")[:2] == ("asia-east1-a", "asia-east1-b")
    assert [zone for zone in catalog.zones_of("us-central1") if zone in catalog.zones_with("v5litepod-8")] == [
        "us-central1-a"
    ]
    assert "v5litepod-8" in catalog.types_in_zone("us-central1-a")
    assert catalog.types_in_zone("us-central1-z") == ()
    assert {zone.rpartition("-")[0] for zone in catalog.zones()} == set(catalog.regions())


@pytest.mark.parametrize(("name", "zone", "spot", "usd"), [
    ("v5litepod-8", "us-central1-a", False, 9.6), ("v5litepod-8", "us-central1-a", True, 2.38168),
    ("v5p-8", "us-east5-a", False, 16.8),  # four chips at 4.20, not eight
    ("v2-8", "europe-west4-a", False, 4.95),  # the price of one host, not of a pod
    ("v2-32", "europe-west4-a", False, 24.0), ("v6e-8", "southamerica-west1-a", True, None),
    ("v6e-8", "us-central2-b", False, None), ("v5litepod-8", "us-central1-b", False, None),
    ("v99-8", "us-central1-a", False, None),
])  # fmt: skip
def test_an_hour_costs_chips_times_the_price_of_a_chip_or_is_unknown(
    name: str, zone: str, spot: bool, usd: float | None
) -> None:
    assert catalog.usd_per_hour(name, zone, spot=spot) == usd


def test_no_price_is_zero() -> None:
    for offer in catalog.offers():
        assert offer.ondemand_usd_chip_hour is None or offer.ondemand_usd_chip_hour > 0
        assert offer.spot_usd_chip_hour is None or offer.spot_usd_chip_hour > 0
        assert offer.zone.startswith(f"{offer.region}-")


@pytest.mark.parametrize(("text", "first"), [
    ("v5litepod-9", ["v5litepod-8"]), ("v5e-16", ["v5litepod-16"]), ("V6E-8", ["v6e-8"]), ("8", ["v6e-8"]),
    ("v5p-129", ["v5p-128"]), ("v5-8", ["v5p-8", "v5litepod-8"]), ("tpu5-16", ["v5p-16", "v5litepod-16"]),
    *((text, []) for text in ("nvidia-h100", "v99-8", "v30-8", "h200", "tpu", "a3-highgpu-8g")),
])  # fmt: skip
def test_a_mistyped_type_finds_its_neighbours_and_never_another_chip(text: str, first: list[str]) -> None:
    nearest = catalog.nearest(text)
    assert sorted(nearest[: len(first)]) == sorted(first) and bool(nearest) is bool(first)


@pytest.mark.parametrize("text", ["v5", "tpu-v5", "my-v5-pool"])
def test_what_may_be_two_chips_names_both(text: str) -> None:
    kinds = [catalog.lookup(name) for name in catalog.nearest(text)]
    assert {kind.generation for kind in kinds if kind} == {"v5e", "v5p"} and catalog.generation(text) is None


def test_a_mistyped_place_finds_its_neighbour() -> None:
    assert catalog.nearest_place("us-centrall1")[0] == "us-central1"
    assert catalog.nearest_place("europe-west4a")[0] == "europe-west4-a"
    assert catalog.nearest_place("; rm -rf ~") == []


def test_the_catalog_needs_nothing_but_the_standard_library() -> None:
    # What an installation's own site imports is there before.
    code = "import sys; old = set(sys.modules); import orchestrator.catalog as c; c.types(); print(*set(sys.modules) - old)"
    loaded = ran([sys.executable, "-c", code], check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"orchestrator"}


def test_flex_start_is_listed_only_where_the_type_is_offered_at_all() -> None:
    listed = {name: catalog.flex_start_zones(name) for name in catalog.types()}
    assert all(set(zones) <= set(catalog.zones_with(name)) for name, zones in listed.items())
    assert listed["v6e-8"] == ("asia-northeast1-b", "us-east5-a") and listed["v2-8"] == ()


TABLE = Path(gke.__file__).with_name("gke_catalog.csv")
CHIPS_OF_A_MACHINE = {"1t": 1, "4t": 4, "8t": 8}


@pytest.mark.parametrize(("name", "accelerator", "topology", "machine_type", "hosts", "chips_per_host"), [
    ("v3-8", "tpu-v3-device", "2x2", "ct3-hightpu-4t", 1, 4),
    ("v3-32", "tpu-v3-slice", "4x4", "ct3p-hightpu-4t", 4, 4),
    ("v4-8", "tpu-v4-podslice", "2x2x1", "ct4p-hightpu-4t", 1, 4),
    ("v4-16", "tpu-v4-podslice", "2x2x2", "ct4p-hightpu-4t", 2, 4),
    ("v5litepod-1", "tpu-v5-lite-podslice", "1x1", "ct5lp-hightpu-1t", 1, 1),
    ("v5litepod-8", "tpu-v5-lite-podslice", "2x4", "ct5lp-hightpu-8t", 1, 8),
    ("v5litepod-16", "tpu-v5-lite-podslice", "4x4", "ct5lp-hightpu-4t", 4, 4),
    ("v5p-16", "tpu-v5p-slice", "2x2x2", "ct5p-hightpu-4t", 2, 4),
    ("v6e-8", "tpu-v6e-slice", "2x4", "ct6e-standard-8t", 1, 8),
    ("v6e-256", "tpu-v6e-slice", "16x16", "ct6e-standard-4t", 64, 4),
    ("tpu7x-2", "tpu7x", "1x1x1", "tpu7x-standard-1t", 1, 1),
    ("tpu7x-16", "tpu7x", "2x2x2", "tpu7x-standard-4t", 2, 4),
])  # fmt: skip
def test_a_type_has_the_labels_and_the_hosts_of_its_node_pools(
    name: str, accelerator: str, topology: str, machine_type: str, hosts: int, chips_per_host: int
) -> None:
    found = gke.lookup(name)
    assert (found.accelerator, found.topology, found.machine_type) == (accelerator, topology, machine_type)
    assert (found.hosts, found.chips_per_host) == (hosts, chips_per_host)


@pytest.mark.parametrize("name", gke.types())
def test_the_chips_of_the_hosts_are_those_of_the_slice(name: str) -> None:
    for form in gke.slices(name):
        assert form.kind is catalog.lookup(name)
        assert form.hosts * form.chips_per_host == form.kind.chips
        assert form.chips_per_host == CHIPS_OF_A_MACHINE[form.machine_type.rpartition("-")[2]]
        assert form.flex_start == (form.kind.generation not in ("v3", "v4"))


def test_what_the_cloud_tpu_api_lacks_gke_has() -> None:
    for name in catalog.types():
        kind = catalog.lookup(name)
        assert kind is not None and (kind.in_cloud_tpu_api or gke.slices(name)), name


@pytest.mark.parametrize(("name", "first"), [("v2-8", 4), ("v5p-8576", 4224), ("v3-16", 4), ("v6e-12", 8)])
def test_what_gke_lacks_has_a_nearest_type(name: str, first: int) -> None:
    assert not gke.slices(name)
    kind = catalog.lookup(gke.nearest(name)[0])
    assert kind is not None and kind.chips == first


def test_every_row_names_its_source() -> None:
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if not line.startswith("#")]
    comments = [line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("#")]
    for row in csv.DictReader(lines):
        for source in row["source"].split("; "):
            assert any(line.startswith(f"# {source}:") for line in comments), source


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


def test_every_form_of_every_type_is_there_once() -> None:
    rows = offered_on_gke()
    assert {row.kind.name for row in rows} == set(gke.types())
    assert len({(row.kind.name, row.machine_type) for row in rows}) == len(rows)


def test_a_generation_that_no_zone_has_lists_its_types() -> None:
    names = [row.kind.name for row in offered_on_gke("tpu7x")]
    assert names[:3] == ["tpu7x-2", "tpu7x-8", "tpu7x-16"] and all(name.startswith("tpu7x-") for name in names)


def test_a_type_has_a_line_for_each_machine_type_the_default_first() -> None:
    assert gke_table(offered_on_gke("v6e-8")).rows == (
        ("v6e-8", "2x4", "8", "1", "256", "ct6e-standard-8t", "yes"),
        ("v6e-8", "2x4", "8", "2", "256", "ct6e-standard-4t", "yes"),
    )
    other = gke.lookup("v6e-8", "ct6e-standard-4t")
    assert other is not None and other.hosts == 2 and gke.lookup("v6e-8", "ct5p-hightpu-4t") is None


def test_a_common_name_is_understood() -> None:
    assert [row.kind.name for row in offered_on_gke("v5e-16")] == ["v5litepod-16"]


def test_a_program_gets_the_labels_of_the_nodes() -> None:
    (row,) = map(gke_as_json, offered_on_gke("tpu7x-8"))
    assert row["node_labels"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x2x1",
    }
    assert (row["hosts"], row["chips_per_host"], row["chips"]) == (1, 4, 4)


@pytest.mark.parametrize("text", ["v2-8", "v9", ""])
def test_what_gke_lacks_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a type that GKE has") as refused:
        offered_on_gke(text)
    assert "tpu7x" in str(refused.value.hint)
