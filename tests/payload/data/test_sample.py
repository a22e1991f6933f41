"""The sample of MNIST: what LICENSE.txt says of its files is true, and a classifier learns from them."""

import gzip
import hashlib

import pytest

np = pytest.importorskip("numpy")

from payload.data import idx, sample  # noqa: E402


def read() -> idx.Dataset:
    paths = sample.files()
    assert paths is not None
    return idx.read_dataset(paths)


def test_the_files_have_the_hashes_that_their_license_names() -> None:
    named = (sample.DIRECTORY / "LICENSE.txt").read_text()
    for path in (sample.files() or {}).values():
        digest = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
        assert f"{digest}  {path.stem}\n" in named
    assert sum(path.stat().st_size for path in sample.DIRECTORY.iterdir()) < 1.4e6


def test_it_has_6000_and_2000_images_of_all_digits_and_none_of_them_twice() -> None:
    data = read()
    assert (data.train_images.shape, data.test_images.shape) == ((6_000, 28, 28), (2_000, 28, 28))
    assert (len(data.train_images), len(data.test_images)) == (sample.TRAIN_COUNT, sample.TEST_COUNT)
    assert min(np.bincount(data.train_labels)) > 500 and min(np.bincount(data.test_labels)) > 150
    images = {image.tobytes() for image in (*data.train_images, *data.test_images)}
    assert len(images) == 8_000


def test_nearest_neighbours_among_the_training_images_name_most_test_images() -> None:
    data = read()
    train, test = (
        images.reshape(len(images), -1).astype("float32") for images in (data.train_images, data.test_images)
    )
    distance = (train**2).sum(1) - 2 * test[:500] @ train.T
    right = data.train_labels[distance.argmin(1)] == data.test_labels[:500]
    assert right.mean() > 0.8
