"""A place is asked for its traits, by its name or by the cloud of a run."""

from dataclasses import replace

import pytest

from orchestrator import places
from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.places.traits import NEWER
from orchestrator.report.money.spending import clouds
from orchestrator.report.money.stretches import Period
from tests.unit.report.money.test_spending import USED


@pytest.mark.parametrize("name", places.NAMES)
def test_a_place_is_found_by_its_name_and_by_each_of_its_clouds(name: str) -> None:
    traits = places.traits_on(name)
    assert traits.name == name and all(places.traits_of(cloud) is traits for cloud in traits.clouds)


def test_a_cloud_that_only_a_newer_tpujob_knows_counts_as_billed_and_comes_after_those_that_this_one_knows() -> None:
    assert places.traits_of("elsewhere") is NEWER and NEWER.billed
    assert places.place_of("elsewhere") is places.place_on("tpu"), (
        "its records are told, ended and tidied up as those of a slice"
    )
    assert "gcloud" in places.by_hand("elsewhere").delete_command(SliceName("p", "us-x1-a", "n"))
    bills = [replace(USED, id=cloud, cloud=cloud) for cloud in ("local", "elsewhere", "emulated", "gke", "google")]
    order = [found.cloud for found in clouds(bills, Period(0.0, None), "job")]
    assert order == ["google", "gke", "elsewhere", "emulated", "local"]
