"""The facts about accelerator types, zones and prices."""

import math
import subprocess
import sys

import pytest

from orchestrator import catalog


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
    assert kind is not None
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


def test_the_api_accepts_only_its_own_names() -> None:
    assert catalog.lookup("v5e-8") is None and catalog.lookup("tpu-v6e-8") is None


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


@pytest.mark.parametrize("name", ["v5litepod-7", "v5p-136", "V5LITEPOD-8", "v5litepod", "tpu7x-9", "", "v5litepod-08"])
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
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"orchestrator"}


def test_flex_start_is_listed_only_where_the_type_is_offered_at_all() -> None:
    listed = {name: catalog.flex_start_zones(name) for name in catalog.types()}
    assert all(set(zones) <= set(catalog.zones_with(name)) for name, zones in listed.items())
    assert listed["v6e-8"] == ("asia-northeast1-b", "us-east5-a") and listed["v2-8"] == ()
