"""What many workers say alike is said once, and what differs stays apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.alike import MOST_RANGES, grouped, masked, said_once, worker_names


@pytest.mark.parametrize(("one", "other"), [
    ("worker0: no route to host", "worker63: no route to host"),
    ("connect to 10.0.0.7:22 failed", "connect to 10.130.0.12:22022 failed"),
    ("connect to fe80::1ff:fe23:4567:890a failed", "connect to ::1 failed"),
    ("at 0x7f3bd2a01f90", "at 0x55d0c8"), ("object 3f2a9b7c is gone", "object 00c1d2e3f4 is gone"),
    ("run 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "run 6fa459ea-ee8a-3ca4-894e-db77e160355e"),
    ("loss 1.25e-07 after 1,200 steps", "loss 0.3 after 7 steps"),
    ("host t1v-n-0a1b-w-5", "host t1v-n-0a1b-w-12"),
])  # fmt: skip
def test_numbers_addresses_ids_and_names_of_workers_make_no_difference(one: str, other: str) -> None:
    assert masked(one) == masked(other)


@pytest.mark.parametrize(("one", "other"), [
    ("ValueError: bad", "TypeError: bad"), ("FileNotFoundError: 'train.bin'", "FileNotFoundError: 'valid.bin'"),
    ("a dead beef", "a dead face"),
])  # fmt: skip
def test_other_words_make_a_difference(one: str, other: str) -> None:
    assert masked(one) != masked(other)


def test_groups_keep_the_order_of_their_first_items() -> None:
    assert grouped([3, 1, 13, 2, 11], lambda number: number % 10) == [[3, 13], [1, 11], [2]]


@pytest.mark.parametrize(("indexes", "names"), [
    ([], ""), ([7], "worker7"), ([1, 0], "worker0 and worker1"), ([0, 1, 2], "worker0 to worker2"),
    ([*range(63), 64], "worker0 to worker62 and worker64"), ([0, 2, 4], "worker0, worker2 and worker4"),
    (range(0, 64, 2), "worker0, worker2, worker4, worker6 and 28 more"),
])  # fmt: skip
def test_workers_are_named_by_ranges_and_many_ranges_are_cut(indexes: list[int], names: str) -> None:
    assert worker_names(indexes) == names


@given(st.sets(st.integers(0, 300)))
def test_names_of_workers_are_always_short(indexes: set[int]) -> None:
    assert len(worker_names(indexes)) < 30 * (MOST_RANGES + 1)


def test_messages_that_are_alike_are_said_once_with_their_workers() -> None:
    messages = [f"worker{index}: connect to 10.0.0.{index}:22 failed" for index in range(64)]
    assert said_once(messages) == "worker0: connect to 10.0.0.0:22 failed (64 alike: worker0 to worker63)"
    messages[5] = "worker5: no space left on device"
    text = said_once(messages)
    assert text.endswith("(63 alike: worker0 to worker4 and worker6 to worker63); worker5: no space left on device")


def test_messages_without_names_are_counted() -> None:
    assert said_once(["silent", "silent"]) == "silent (2 alike)"
    assert said_once(["silent"]) == "silent"


def test_of_many_different_messages_the_first_are_said_and_the_others_counted() -> None:
    messages = [f"worker0: {letter}" for letter in "pqrstu"]
    assert said_once(messages) == "worker0: p; worker0: q; worker0: r; and 3 more"
