"""Granted quota as e-mails describe it, and what a slice uses of it."""

import pytest

from orchestrator.core.planning.grants import Grant, from_keys, from_text, remaining

V3, V4_SPOT = Grant("v3-8", 5, "europe-west4-a"), Grant("v4", 32, "us-central2-b", spot=True)


@pytest.mark.parametrize(("line", "grant"), [
    ("5 on-demand v3-8 TPU devices in zone europe-west4-a", V3),
    ("5 on-demand Cloud TPU v3-8 device(s) in zone europe-west4-a", V3),
    (" - 5 on-demand v3-8 in europe-west4-a.", V3),
    ("100 preemptible Cloud TPU v2-8 device(s) in zone us-central1-f", Grant("v2-8", 100, "us-central1-f", spot=True)),
    ("32 spot Cloud TPU v4 chips in zone us-central2-b", V4_SPOT),
    ("64 Spot Cloud TPU v5e chips in zone us-central1-a", Grant("v5e", 64, "us-central1-a", spot=True)),
])  # fmt: skip
def test_a_line_of_an_email_is_a_grant(line: str, grant: Grant) -> None:
    assert from_text(line) == grant


@pytest.mark.parametrize(("line", "problem"), [
    ("five v3-8", "is not a grant; write for example `5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a`"),
    ("5 reserved v3-8 in europe-west4-a", "is not a grant"),
    ("5 on-demand v3-9 in europe-west4-a", "'v3-9' is neither an accelerator type nor a generation; nearest: v3-8"),
    ("5 on-demand v3-8 in europe", "zone: 'europe'"),
    ("0 on-demand v3-8 in europe-west4-a", "grants nothing; remove it"),
    ("8 on-demand v3-8 chips in europe-west4-a", "counts chips of one type, or devices of a whole generation"),
    ("8 on-demand v4 devices in us-central2-b", "counts chips of one type, or devices of a whole generation"),
])  # fmt: skip
def test_a_line_that_is_no_grant_gets_advice(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace("(", r"\(")):
        from_text(line)


@pytest.mark.parametrize(("keys", "problem"), [
    ({"type": "v3-8"}, "type is not a key of a grant; they are accelerator, count, zone, spot"),
    ({"accelerator": "v3-8", "count": "5"}, "lacks zone"),
    ({"accelerator": "v3-8", "count": "-5", "zone": "europe-west4-a"}, "count: '-5' is not a whole number"),
    ({"accelerator": "v3-8", "count": "5", "zone": "europe-west4-a", "spot": "yes"}, "spot: 'yes' is not `true`"),
])  # fmt: skip
def test_keys_are_checked_one_by_one(keys: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        from_keys(keys)
    assert from_keys({"accelerator": "v3-8", "count": "5", "zone": "europe-west4-a"}) == V3


def test_a_grant_of_a_type_is_for_that_type_zone_and_provisioning_only() -> None:
    assert V3.covers("v3-8", "europe-west4-a", spot=False)
    assert not V3.covers("v3-32", "europe-west4-a", spot=False), "five v3-8 are no v3-32"
    assert not V3.covers("v3-8", "us-central1-a", spot=False)
    assert not V3.covers("v3-8", "europe-west4-a", spot=True)


def test_a_grant_of_a_generation_counts_chips_of_any_size_that_fits() -> None:
    assert V4_SPOT.covers("v4-64", "us-central2-b", spot=True), "32 chips"
    assert not V4_SPOT.covers("v4-128", "us-central2-b", spot=True)
    assert V4_SPOT.too_small_for("v4-128", "us-central2-b", spot=True)
    assert not V4_SPOT.covers("v5p-8", "us-central2-b", spot=True)
    assert V4_SPOT.label == "32 spot v4 chips" and V3.label == "5 on-demand v3-8"


def test_existing_slices_use_up_grants() -> None:
    used = [("v4-32", "us-central2-b", True), ("v4-8", "us-central2-b", True), ("v3-8", "europe-west4-a", False)]
    assert [grant.count for grant in remaining([V3, V4_SPOT], used)] == [4, 32 - 16 - 4]
    assert remaining([Grant("v3-8", 1, "europe-west4-a")], used)[0].too_small_for("v3-8", "europe-west4-a", spot=False)
    assert remaining([V3], [("v3-8", "us-central1-a", False)]) == (V3,)
