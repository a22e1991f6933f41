"""Drawn digits: the same everywhere, a prefix of more, and all ten of them."""

import hashlib

import pytest

np = pytest.importorskip("numpy")

from payload.data import synthetic  # noqa: E402


def test_the_same_count_is_the_same_bytes_and_fewer_are_a_prefix_of_more() -> None:
    images, labels = synthetic.draw("train", 1200)
    again, _ = synthetic.draw("train", 1200)
    fewer, fewer_labels = synthetic.draw("train", 300)
    assert np.array_equal(images, again)
    assert np.array_equal(images[:300], fewer) and np.array_equal(labels[:300], fewer_labels)
    assert images.shape == (1200, 28, 28) and images.dtype == np.uint8


def test_the_drawing_has_not_changed_without_a_new_version() -> None:
    """Labels come from integers only, so their hash is the same on every machine."""
    _, labels = synthetic.draw("test", 1000)
    digest = hashlib.sha256(labels.tobytes()).hexdigest()
    assert (synthetic.VERSION, digest[:16]) == (1, "62f2882d99eca8a5")


def test_training_and_test_images_differ_and_every_digit_is_drawn() -> None:
    train, labels = synthetic.draw("train", 1000)
    test, _ = synthetic.draw("test", 1000)
    assert not np.array_equal(train, test)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_digits_of_a_kind_look_alike_and_others_do_not() -> None:
    """The nearest mean image of the training digits tells most test digits: there is something to learn."""
    images, labels = synthetic.draw("train", 2000)
    test, test_labels = synthetic.draw("test", 500)
    means = np.stack([images[labels == digit].mean(0).ravel() for digit in range(10)])
    distance = ((test.reshape(500, 1, -1).astype(np.float32) - means) ** 2).sum(2)
    assert (distance.argmin(1) == test_labels).mean() > 0.6
