"""Where images come from: mirrors, IDX files, the sample, and digits that are drawn, never under another's name."""

import gzip
import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from payload.config import Config
from payload.data import download, idx, sample, sources, synthetic
from payload.data.download import PublishedFile
from payload.failures import DataError
from tests.fakes.api import Request, StubApi, StubReply
from tests.waiting import HANG_S

pytest.importorskip("numpy")


@dataclass
class Mirror:
    """A public mirror on loopback: serves `files` and counts the requests."""

    files: dict[str, bytes]
    url: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: StubApi) -> Mirror:
    monkeypatch.setattr(download, "OPEN_TIMEOUT_S", HANG_S)  # it answers, when the machine lets it
    original = tmp_path / "original"
    original.mkdir()
    served = Mirror({path.name: path.read_bytes() for path in write_set(original).values()}, f"{stub.url}/mnist/")

    def answer(request: Request) -> StubReply:
        name = request.path.rpartition("/")[2]
        served.asked.append(name)
        return StubReply(200 if name in served.files else 404, served.files.get(name, b""))

    stub.answer_with = answer
    return served


def published(mirror: Mirror, *mirrors: str) -> PublishedFile:
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in mirror.files.items()}
    return PublishedFile(mirrors or (mirror.url,), hashes)


@pytest.fixture
def closed_port(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def test_downloaded_files_are_kept_and_not_requested_again(tmp_path: Path, mirror: Mirror) -> None:
    printed: list[str] = []
    for _ in range(2):
        source = sources.resolve(Config(), printed.append, cache=tmp_path, published=published(mirror))
    assert len(mirror.asked) == 4
    assert (source.name, source.is_synthetic, source.origin, source.of) == ("mnist", False, "cache", 3)
    assert source.sha256 == published(mirror).sha256
    assert len(printed) == 1 and "sha256 as published" in printed[0]


def test_a_damaged_cached_file_is_downloaded_again_and_reported(tmp_path: Path, mirror: Mirror) -> None:
    printed: list[str] = []
    first = sources.resolve(Config(), printed.append, cache=tmp_path, published=published(mirror))
    first.paths["test_labels"].write_bytes(b"damaged")
    again = sources.resolve(Config(), printed.append, cache=tmp_path, published=published(mirror))
    assert again.sha256 == first.sha256
    assert any("differs from the published file" in line for line in printed)


def test_after_a_failed_mirror_only_the_next_is_used(tmp_path: Path, mirror: Mirror, closed_port: str) -> None:
    source = sources.resolve(
        Config(), lambda _: None, cache=tmp_path, published=published(mirror, closed_port, mirror.url)
    )
    assert source.origin == f"downloaded from {mirror.url.split('/')[2]}"


def test_a_file_with_another_hash_is_never_used(tmp_path: Path, mirror: Mirror) -> None:
    right = published(mirror)
    mirror.files["train-labels-idx1-ubyte"] = b"something else"
    with pytest.raises(DataError, match="another sha256 than the published file") as caught:
        sources.resolve(Config(), lambda _: None, cache=tmp_path, published=right)
    assert "or fallback: sample (6,000 real images) or synthetic" in str(caught.value)
    assert not (tmp_path / "mnist" / "train-labels-idx1-ubyte").exists()


def test_a_missing_file_is_a_failed_mirror(tmp_path: Path, mirror: Mirror) -> None:
    right = published(mirror)
    del mirror.files["train-images-idx3-ubyte"]
    with pytest.raises(DataError, match="Not Found"):
        sources.resolve(Config(), lambda _: None, cache=tmp_path, published=right)


def test_hosts_that_never_answer_are_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "OPEN_TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        files = {"a": "b", "c": "d"}
        with pytest.raises(DataError, match=r"no answer within|timed out") as caught:
            sources.resolve(Config(), lambda _: None, cache=tmp_path, published=PublishedFile((url, url), files))
        assert str(caught.value).count(url.split("/")[2]) == 2, "each mirror is tried once"


def test_the_shipped_timeouts_give_up_within_ten_seconds() -> None:
    assert all(len(entry.mirrors) * download.OPEN_TIMEOUT_S < 10 for entry in download.PUBLISHED.values())
    assert all(len(entry.mirrors) > 1 for entry in download.PUBLISHED.values())


@pytest.fixture
def unreachable(closed_port: str) -> PublishedFile:
    return PublishedFile((closed_port,), {"train-images-idx3-ubyte.gz": "0"})


def test_without_a_network_a_tpu_trains_on_nothing_that_the_job_does_not_allow(
    tmp_path: Path, unreachable: PublishedFile
) -> None:
    with pytest.raises(DataError, match="mnist cannot be downloaded: 127"):
        sources.resolve(Config(examples=50), lambda _: None, cache=tmp_path, published=unreachable)


@pytest.mark.parametrize(("config", "emulated"), [
    (Config(fallback="sample"), False), (Config(fallback="sample", examples=20_000), False),
    (Config(fallback="synthetic", examples=6_000), False), (Config(), True),
])  # fmt: skip
def test_the_sample_of_mnist_replaces_a_download_and_says_what_it_is(
    tmp_path: Path, unreachable: PublishedFile, config: Config, emulated: bool
) -> None:
    printed: list[str] = []
    source = sources.resolve(config, printed.append, emulated=emulated, cache=tmp_path, published=unreachable)
    assert (source.name, source.requested, source.is_synthetic) == ("mnist-sample", "mnist", False)
    assert (source.of, source.train_examples) == (60_000, 6_000)
    assert printed[0].startswith("mnist cannot be downloaded: 127")
    assert "instead of mnist, training on the mnist sample: 6,000 real images, tested on 2,000" in printed[1]
    assert "first 6,000 training images of MNIST" in source.described()["origin"]


def test_an_emulated_fashion_mnist_is_not_replaced_by_other_images(tmp_path: Path, unreachable: PublishedFile) -> None:
    wanted = Config(dataset="fashion-mnist")
    with pytest.raises(DataError, match="or fallback: synthetic"):
        sources.resolve(wanted, lambda _: None, emulated=True, cache=tmp_path, published=unreachable)


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
def test_generated_digits_replace_what_the_sample_is_too_small_for_and_are_called_synthetic(
    tmp_path: Path, unreachable: PublishedFile, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "TRAIN_COUNT", 40)
    printed: list[str] = []
    allowed = Config(dataset=dataset, examples=50, test_examples=10, fallback="synthetic")
    source = sources.resolve(allowed, printed.append, emulated=True, cache=tmp_path, published=unreachable)
    assert (source.name, source.requested, source.train_examples) == ("synthetic", dataset, 50)
    assert any(f"instead of {dataset}, training on synthetic images" in line for line in printed)
    assert source.described()["synthetic"] is True


def test_a_payload_that_was_shipped_without_the_sample_says_that_there_is_nothing_to_train_on(
    tmp_path: Path, unreachable: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "DIRECTORY", tmp_path)
    with pytest.raises(DataError, match="mnist cannot be downloaded"):
        sources.resolve(Config(fallback="sample"), lambda _: None, cache=tmp_path, published=unreachable)


def test_a_named_directory_is_never_replaced_by_something_else(tmp_path: Path) -> None:
    wrong = Config(data_dir=str(tmp_path), fallback="synthetic")
    with pytest.raises(DataError, match=r"data_dir .* must hold train-images-idx3-ubyte"):
        sources.resolve(wrong, lambda _: None, cache=tmp_path)
    write_set(tmp_path)
    source = sources.resolve(wrong, lambda _: None, cache=tmp_path)
    assert (source.name, source.is_synthetic, source.of) == ("mnist", False, 3)


def test_more_examples_than_there_are_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path)
    with pytest.raises(DataError, match=r"examples: 4 requested, but mnist .* has 3"):
        sources.resolve(Config(data_dir=str(tmp_path), examples=4), lambda _: None)


def test_drawn_digits_are_drawn_once_and_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    printed: list[str] = []
    wanted = Config(dataset="synthetic", examples=40, test_examples=10)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: sources.resolve(wanted, printed.append, cache=tmp_path), "ab"))
    before = len(printed)
    source = sources.resolve(wanted, printed.append, cache=tmp_path)
    assert len(printed) == before
    assert (source.origin, source.of, source.train_examples) == ("generated", 60_000, 40)
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic-1-40-10"]
    assert len(idx.read_dataset(source.paths).test_labels) == 10


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        sources.resolve(
            Config(dataset="synthetic", examples=10, test_examples=10), lambda _: None, cache=tmp_path / "file"
        )


np = pytest.importorskip("numpy")


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
