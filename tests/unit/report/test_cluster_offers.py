"""The table of what GKE has: every type with its forms, and the labels of its nodes."""

import pytest

from orchestrator.catalog import gke
from orchestrator.errors import UserError
from orchestrator.report.cluster_offers import as_json, offered_on_gke, table


def test_every_form_of_every_type_is_there_once() -> None:
    rows = offered_on_gke()
    assert {row.kind.name for row in rows} == set(gke.types())
    assert len({(row.kind.name, row.machine_type) for row in rows}) == len(rows)


def test_a_generation_that_no_zone_has_lists_its_types() -> None:
    names = [row.kind.name for row in offered_on_gke("tpu7x")]
    assert names[:3] == ["tpu7x-2", "tpu7x-8", "tpu7x-16"] and all(name.startswith("tpu7x-") for name in names)


def test_a_type_has_a_line_for_each_machine_type_the_default_first() -> None:
    assert table(offered_on_gke("v6e-8")).rows == (
        ("v6e-8", "2x4", "8", "1", "256", "ct6e-standard-8t", "yes"),
        ("v6e-8", "2x4", "8", "2", "256", "ct6e-standard-4t", "yes"),
    )


def test_a_common_name_is_understood() -> None:
    assert [row.kind.name for row in offered_on_gke("v5e-16")] == ["v5litepod-16"]


def test_a_program_gets_the_labels_of_the_nodes() -> None:
    (row,) = map(as_json, offered_on_gke("tpu7x-8"))
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
