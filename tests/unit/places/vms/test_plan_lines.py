"""What people read of a slice: its plan, the policies of projects, and the gcloud commands that hints contain."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.capacity.availability import Availability
from orchestrator.capacity.capacity_request import CapacityRequest, PlanInputs
from orchestrator.capacity.grants import Grant
from orchestrator.capacity.plan import CandidateOrder, make
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import BadRequest, CloudError, ExternalAddressRefused, OsLoginRequired
from orchestrator.places.tpu import by_hand
from orchestrator.places.vms.known import REMEMBERED_S, RulesFile
from orchestrator.places.vms.plan_lines import dropped_lines, plan_lines, table
from orchestrator.promise.lease.access import ProjectRules
from orchestrator.promise.lease.lease import SliceName

AT = 1_000_000.0
V5E = CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=3600)
V6E = CapacityRequest("v6e-8", ("us-east5",), provisioning=Provisioning.SPOT, queue=True, max_duration_s=3600)
GRANTED = PlanInputs(grants=(Grant("v3-8", 5, "europe-west4-a"),))


def test_a_plan_names_every_other_zone_and_the_worst_case() -> None:
    plan = make([CapacityRequest("v5litepod-16", ("us-east1",), max_duration_s=3600)])
    first, others, price = plan_lines(plan, AT, emulated=False)
    assert first.startswith(
        "v5litepod-16 · us-east1-b · v2-alpha-tpuv5-lite · on-demand · 4 workers · 16 cores · ends by"
    )
    assert others == "if us-east1-b has no capacity: us-east1-c"
    assert price == "this costs about $19.20/h, at most $19.20 (1 h at $19.20/h) (price table 2026-11)"


def test_the_worst_case_shows_the_sum_that_it_is() -> None:
    *_, price = plan_lines(make([CapacityRequest("v5litepod-8", ("any",))]), AT, emulated=False)
    assert price == (
        "this costs about $9.60/h, at most $329.47 (24 h at $13.728/h in southamerica-west1-b) (price table 2026-11)"
    )
    for life_s, shown in ((5400, "$14.40 (1 h 30 m"), (86700, "$231.20 (24 h 5 m"), (600, "$1.60 (10 m")):
        plan = make([replace(V5E, max_duration_s=life_s), replace(V6E, places=("us-east5-b",), max_duration_s=60)])
        *_, odd = plan_lines(plan, AT, emulated=False)
        assert f"at most {shown} at $9.60/h) (" in odd


def test_a_plan_with_an_unknown_price_promises_no_bound() -> None:
    *_, price = plan_lines(make([CapacityRequest("v6e-8", ("us-central2-b",))]), AT, emulated=True)
    assert price == "price unknown: the price table 2026-11 has none for v6e-8 in us-central2-b"


def test_other_alternatives_are_named_with_type_and_way_and_a_long_list_is_cut_and_counted() -> None:
    _, others, *_ = plan_lines(make([V5E, V6E, replace(V5E, places=("any",))]), AT, emulated=False)
    assert others.startswith(
        "if us-central1-a has no capacity: v6e-8 in us-east5-a (spot, queued), v6e-8 in us-east5-b (spot, queued), "
        "v6e-8 in us-east5-c (spot, queued), v5litepod-8 in "
    )
    assert others.endswith(" (on-demand) and 24 more")


def test_an_order_that_was_asked_for_is_said() -> None:
    _, others, *_ = plan_lines(make([V5E, V6E], order=CandidateOrder.FASTEST), AT, emulated=False)
    assert others.startswith("if us-central1-a has no capacity (the shortest expected wait first): v6e-8")


def test_what_is_granted_is_said_to_cost_nothing_and_never_shown_as_zero_dollars() -> None:
    plan = make([CapacityRequest("v3-8", ("europe-west4-a", "us-central1-a"), max_duration_s=3600)], inputs=GRANTED)
    *_, price = plan_lines(plan, AT, emulated=False)
    assert price == (
        "granted to you, by your settings: it costs nothing; listed at about $8.80/h; "
        "the others at most $8.00 (1 h at $8.00/h in us-central1-a) (price table 2026-11)"
    )
    first, second = table(plan).rows
    assert first[5:7] == ("granted", "granted") and "granted" in first[7] and "8.00" in second


def test_a_race_names_its_zones_and_bounds_the_overlap_in_time_and_money() -> None:
    *_, race, waits = plan_lines(make([V6E], race=True, wait_s=7200), AT, emulated=False, overlap_s=360)
    assert race == (
        "3 queued requests race (us-east5-a, us-east5-b, us-east5-c): the first that is READY wins; the others are "
        "deleted, and may overlap with it for 6 m, for $2.04 more at most"
    )
    assert waits == "waits for capacity for 2 h altogether"


def test_a_race_at_unknown_prices_promises_no_bound() -> None:
    flex = replace(V6E, provisioning=Provisioning.FLEX_START, places=("us-east5-a", "asia-northeast1-b"))
    lines = plan_lines(make([flex], race=True), AT, emulated=False, overlap_s=360)
    assert lines[-1].endswith("may overlap with it for 6 m, at an unknown price")
    assert "price unknown: the price table 2026-11 has none for v6e-8 (flex-start) in us-east5-a" in lines


def test_a_single_queued_request_is_no_race() -> None:
    lines = plan_lines(make([replace(V5E, queue=True)], race=True), AT, emulated=False, overlap_s=360)
    assert not any("race" in line for line in lines)


def test_what_the_project_was_said_to_have_is_dated() -> None:
    said = Availability("p", "2026-11-20T10:00:00Z", {"us-central1-a": ("v5litepod-8",)})
    *_, asked = plan_lines(make([V5E], inputs=PlanInputs(availability=said)), AT, emulated=False)
    assert asked == "what your project has is as it was asked on 2026-11-20; `tpujob offers --refresh` asks again"


def test_the_table_has_every_candidate_with_its_price_its_bound_and_why() -> None:
    lines = table(make([V5E, replace(V6E, places=("us-east5-b", "us-central2-b"))])).lines()
    assert [line.split() for line in lines] == [
        ["TYPE", "ZONE", "HOW", "RUNTIME", "$/H", "AT", "MOST", "$", "WHY"],
        ["1", "v5litepod-8", "us-central1-a", "on-demand", "v2-alpha-tpuv5-lite", "9.60", "9.60", "asked", "for"],
        ["2", "v6e-8", "us-east5-b", "spot,", "queued", "v2-alpha-tpuv6e", "10.21", "10.21", "asked", "for"],
        ["3", "v6e-8", "us-central2-b", "spot,", "queued", "v2-alpha-tpuv6e", "unknown", "unknown", "asked", "for"],
    ]
    assert len({line.index(word) for line, word in zip(lines, ["ZONE", "us-c", "us-e", "us-c"], strict=True)}) == 1


def test_zones_that_are_dropped_for_one_reason_share_a_line() -> None:
    plan = make([V5E, replace(V5E, places=("us-east5", "asia-east1"), accelerator="v6e-8")], max_price_per_hour=10.0)
    assert dropped_lines(plan.dropped) == [
        "not v6e-8 (on-demand) in us-east5-a, us-east5-b, us-east5-c: "
        "max_price_per_hour: v6e-8 (on-demand) there costs about $21.60/h, more than $10.00",
        "not v6e-8 (on-demand) in asia-east1-c: "
        "max_price_per_hour: the price table has no price for v6e-8 (on-demand) there",
    ]


def test_the_shape_for_machines_has_the_plain_numbers() -> None:
    (one,) = make([CapacityRequest("v3-8", ("europe-west4-a",))], inputs=GRANTED).candidates
    shape = one.shape()
    assert (shape["usd_per_hour"], shape["list_usd_per_hour"], shape["granted"]) == (0.0, 8.8, True)
    assert (shape["provisioning"], shape["queued"], shape["spot"], shape["workers"]) == ("on-demand", False, False, 1)


def test_a_training_that_no_image_has_the_python_for_is_announced_before_anything_is_paid() -> None:
    said = plan_lines(make([V5E]), AT, emulated=False, torch_tpu=True)
    assert any(
        "backend: tpu needs Python 3.11 or newer, and a TPU VM has 3.10: the job ends in its setup" in s for s in said
    )


@pytest.mark.parametrize(("accelerators", "emulated", "said"), [
    (["v5litepod-8"], False, True), (["v4-8", "v6e-8"], False, True), (["v3-8"], False, False),
    (["v4-8", "v2-8"], False, False), (["v5litepod-8"], True, False),
])  # fmt: skip
def test_whose_backend_is_chosen_learns_of_torch_tpu_where_every_tpu_has_it_and_is_real(
    accelerators: list[str], emulated: bool, said: bool
) -> None:
    plan = make([CapacityRequest(each, ("any",)) for each in accelerators])
    found = [line for line in plan_lines(plan, AT, emulated=emulated, chooses_torch=True) if "torch_tpu" in line]
    assert len(found) == said and all('`backend: tpu` with `python: "3.12"` takes it' in line for line in found)
    assert not [line for line in plan_lines(plan, AT, emulated=emulated) if "torch_tpu" in line]


def test_whose_own_code_runs_here_learns_which_python_a_tpu_vm_has() -> None:
    said = plan_lines(make([V5E]), AT, emulated=True, python="3.13")
    assert "the job's own code gets Python 3.13 here; a TPU VM has Python 3.10" in said
    assert not [line for line in plan_lines(make([V5E]), AT, emulated=True) if "Python" in line]


def rules(directory: Path, project: str = "mine", at: float = 1000.0) -> RulesFile:
    return RulesFile(directory / "access.json", "google", project, lambda: at)


@pytest.mark.parametrize(("refusal", "known"), [
    (ExternalAddressRefused("no"), ProjectRules(no_external_addresses=True)),
    (OsLoginRequired("no"), ProjectRules(os_login=True)), (BadRequest("no"), ProjectRules()),
])  # fmt: skip
def test_a_refusal_by_policy_is_known_to_the_next_command(
    tmp_path: Path, refusal: CloudError, known: ProjectRules
) -> None:
    rules(tmp_path).learn(refusal)
    assert rules(tmp_path).known() == known
    assert rules(tmp_path, "another").known() == ProjectRules()


def test_two_refusals_add_up(tmp_path: Path) -> None:
    rules(tmp_path).learn(ExternalAddressRefused("no"))
    rules(tmp_path, "another").learn(OsLoginRequired("no"))
    rules(tmp_path).learn(OsLoginRequired("no"))
    assert rules(tmp_path).known() == ProjectRules(no_external_addresses=True, os_login=True)


def test_a_refusal_is_forgotten_after_a_day_and_after_a_clock_that_went_back(tmp_path: Path) -> None:
    rules(tmp_path).learn(ExternalAddressRefused("no"))
    assert rules(tmp_path, at=1000.0 + REMEMBERED_S - 1).known().no_external_addresses
    assert rules(tmp_path, at=1000.0 + REMEMBERED_S).known() == ProjectRules()
    assert rules(tmp_path, at=999.0).known() == ProjectRules()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"google mine": 3}', '{"google mine": {"os_login": 1}}', "\udcff"])
def test_a_damaged_file_knows_nothing_and_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "access.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert rules(tmp_path).known() == ProjectRules()
    rules(tmp_path).learn(OsLoginRequired("no"))
    assert rules(tmp_path).known() == ProjectRules(os_login=True)


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    rules(missing).learn(OsLoginRequired("no"))
    assert rules(missing).known() == ProjectRules()


@pytest.mark.parametrize("spoiled", ["it cannot be written", "another process writes over it"])
def test_a_process_knows_what_it_has_learned_whatever_becomes_of_the_file(tmp_path: Path, spoiled: str) -> None:
    mine = rules(tmp_path / "missing" if spoiled == "it cannot be written" else tmp_path)
    mine.learn(ExternalAddressRefused("no"))
    mine.path.unlink(missing_ok=True)
    assert mine.known() == ProjectRules(no_external_addresses=True)


NAME = SliceName("acme", "us-west4-a", "tpujob-k3f9ab-7q2m4x1pzt-0")


def test_the_commands_are_valid_for_gcloud() -> None:
    assert by_hand.delete_command(NAME) == (
        "gcloud compute tpus tpu-vm delete tpujob-k3f9ab-7q2m4x1pzt-0 --zone=us-west4-a --project=acme --quiet"
    )
    assert by_hand.look_commands(NAME, "7q2m4x1pzt")[1] == (
        "gcloud compute tpus tpu-vm list --zone=us-west4-a --project=acme --filter=labels.tpujob-lease-id=7q2m4x1pzt"
    )


def test_shell_characters_are_quoted() -> None:
    command = by_hand.delete_command(SliceName("example.com:p", "us-west4-a", "a; rm -rf ~"))
    assert shlex.split(command)[5] == "a; rm -rf ~"
    assert "'a; rm -rf ~'" in command


def test_a_queued_slice_is_deleted_with_its_request() -> None:
    queued = replace(NAME, queued=True)
    place = "--zone=us-west4-a --project=acme"
    assert by_hand.delete_command(queued) == (
        f"gcloud compute tpus queued-resources delete {NAME.node} {place} --force --quiet"
    )
    assert by_hand.look_commands(queued, "7q2m4x1pzt") == (
        f"gcloud compute tpus queued-resources describe {NAME.node} {place}",
        f"gcloud compute tpus queued-resources list {place} '--filter=name~/{NAME.node}'",
    )
