"""The data of these trainings, and the port where those of two hosts meet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import held_port


@pytest.fixture(scope="session")
def torch() -> Any:
    """Import torch with the first test that uses it: many processes of a test run only collect tests."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from payload.data import idx, synthetic

    directory = tmp_path_factory.mktemp("data")
    for split, count in (("train", 256), ("test", 101)):
        images, labels = synthetic.draw(split, count)
        idx.write_array(directory / idx.FILES[f"{split}_images"], images)
        idx.write_array(directory / idx.FILES[f"{split}_labels"], labels)
    return directory


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that is assigned to no other socket while bound; with SO_REUSEADDR, a test can still listen on it."""
    with held_port() as number:
        yield number
