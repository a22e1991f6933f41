"""Where images come from: mirrors in turn, checked by hash; a fallback only if allowed, and never under another's name."""

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from payload.config import Config
from payload.data import download, idx, sample, sources
from payload.data.download import PublishedFile
from payload.failures import DataError
from tests.payload.data.test_idx import write_set
from tests.waiting import HANG_S


@dataclass
class Mirror:
    """A public mirror on loopback: serves `files` and counts the requests."""

    files: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(download, "OPEN_TIMEOUT_S", HANG_S)  # it answers, when the machine lets it
    original = tmp_path / "original"
    original.mkdir()
    served = Mirror({path.name: path.read_bytes() for path in write_set(original).values()})

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            served.asked.append(name)
            content = served.files.get(name)
            self.send_response(200 if content is not None else 404)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}/mnist/"
    yield served
    server.shutdown()
    server.server_close()


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
    runs = [
        threading.Thread(target=sources.resolve, args=(wanted, printed.append), kwargs={"cache": tmp_path})
        for _ in "ab"
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
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
