"""What GKE has of the catalog's types."""

import csv
from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator.catalog import gke

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
    assert found is not None
    assert (found.accelerator, found.topology, found.machine_type) == (accelerator, topology, machine_type)
    assert (found.hosts, found.chips_per_host) == (hosts, chips_per_host)


@pytest.mark.parametrize("name", gke.types())
def test_the_chips_of_the_hosts_are_those_of_the_slice(name: str) -> None:
    for form in gke.slices(name):
        assert form.kind is catalog.lookup(name)
        assert form.hosts * form.chips_per_host == form.kind.chips
        assert form.chips_per_host == CHIPS_OF_A_MACHINE[form.machine_type.rpartition("-")[2]]
        assert form.flex_start == (form.kind.generation not in ("v3", "v4"))


def test_eight_chips_of_v6e_are_one_host_or_with_the_other_machine_type_two() -> None:
    assert [(form.machine_type, form.hosts) for form in gke.slices("v6e-8")] == [
        ("ct6e-standard-8t", 1),
        ("ct6e-standard-4t", 2),
    ]
    other = gke.lookup("v6e-8", "ct6e-standard-4t")
    assert other is not None and other.hosts == 2
    assert gke.lookup("v6e-8", "ct5p-hightpu-4t") is None


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
