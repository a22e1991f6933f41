"""Reading IDX files: right ones in both packings, wrong ones refused by name."""

import gzip
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from payload.data import idx  # noqa: E402
from payload.failures import DataError  # noqa: E402

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)


def write_set(directory: Path, train: int = 3, test: int = 2) -> dict[str, Path]:
    for split, count in (("train", train), ("test", test)):
        idx.write_array(directory / idx.FILES[f"{split}_images"], np.resize(IMAGES, (count, 28, 28)))
        idx.write_array(directory / idx.FILES[f"{split}_labels"], np.arange(count, dtype=np.uint8) % 10)
    paths = idx.locate(directory)
    assert paths is not None
    return paths


def test_plain_and_gzip_files_read_the_same(tmp_path: Path) -> None:
    plain, packed = tmp_path / "images", tmp_path / "images.gz"
    idx.write_array(plain, IMAGES)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        assert np.array_equal(idx.read_array(path, dimensions=3), IMAGES)


def test_examples_takes_the_first_training_images_and_all_test_images(tmp_path: Path) -> None:
    data = idx.read_dataset(write_set(tmp_path), 2)
    assert (len(data.train_images), len(data.train_labels), len(data.test_images)) == (2, 2, 2)
    assert np.array_equal(data.train_images, IMAGES[:2])


@pytest.mark.parametrize(("content", "words"), [
    (b"", "truncated: 0 bytes are less than an IDX header"),
    (bytes.fromhex("00000803 00000001 0000001c 0000001c") + bytes(783), "truncated: 783 bytes, but"),
    (bytes.fromhex("00000803 00000001 0000001c 0000001c") + bytes(785), "too long: 785 bytes, but"),
    (bytes.fromhex("00000801 00000010") + bytes(16), "not an IDX file of bytes with 3 dimensions"),
    (bytes.fromhex("00000d03 00000001 00000001 00000001") + bytes(4), "not an IDX file of bytes"),
    (b"<!DOCTYPE html><html>", "not an IDX file of bytes"),
    (bytes.fromhex("00000803 ffffffff ffffffff ffffffff"), "truncated"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx.read_array(path, dimensions=3)
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, damage: str) -> None:
    plain, path = tmp_path / "plain", tmp_path / "images.gz"
    idx.write_array(plain, IMAGES)
    packed = bytearray(gzip.compress(plain.read_bytes()))
    if damage == "cut":
        del packed[-20:]
    elif damage == "flipped":
        packed[-6] ^= 0xFF  # in the checksum
    else:
        packed[:] = plain.read_bytes()
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"images\.gz: broken gzip file"):
        idx.read_array(path, dimensions=3)


def test_labels_and_images_must_fit_each_other(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    idx.write_array(paths["train_labels"], np.zeros(2, np.uint8))
    with pytest.raises(DataError, match="has 2 labels for 3 images"):
        idx.read_dataset(paths)
    idx.write_array(paths["train_labels"], np.full(3, 10, np.uint8))
    with pytest.raises(DataError, match="label 10 is not below 10"):
        idx.read_dataset(paths)
    idx.write_array(paths["train_labels"], np.zeros(3, np.uint8))
    idx.write_array(paths["test_images"], np.zeros((2, 14, 14), np.uint8))
    with pytest.raises(DataError, match="another size than the training images"):
        idx.read_dataset(paths)


def test_a_directory_that_lacks_a_file_is_not_a_data_set(tmp_path: Path) -> None:
    write_set(tmp_path)["test_labels"].unlink()
    assert idx.locate(tmp_path) is None


def test_files_with_something_before_their_usual_names_are_found(tmp_path: Path) -> None:
    for path in write_set(tmp_path).values():
        path.rename(path.with_name(f"emnist-letters-{path.name.replace('t10k', 'test')}"))
    found = idx.locate(tmp_path)
    assert found is not None and found["test_labels"].name.startswith("emnist-letters-test-labels")
    (tmp_path / "other-train-labels-idx1-ubyte").write_bytes(b"")
    assert idx.locate(tmp_path) is None, "which of the two is meant?"


def test_the_number_of_classes_is_ten_or_what_the_labels_say(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    assert idx.read_dataset(paths).classes == 10
    labels = idx.read_array(paths["test_labels"], dimensions=1).copy()
    labels[0] = 46
    path = tmp_path / "labels"
    idx.write_array(path, labels)
    assert idx.read_dataset({**paths, "test_labels": path}, classes=None).classes == 47
    with pytest.raises(DataError, match="label 46 is not below 10"):
        idx.read_dataset({**paths, "test_labels": path})
    assert len(idx.read_dataset(paths, test_examples=1).test_labels) == 1
