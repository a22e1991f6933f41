"""The ground of a row."""

from collections.abc import Iterator

import pytest

from tests.places.ground import Ground
from tests.places.grounds import GROUNDS
from tests.places.toy.ground import toy_processes
from tests.places.toy.place import Place


@pytest.fixture(scope="session")
def toys() -> Iterator[tuple[Place, Place]]:
    with toy_processes() as both:
        yield both


@pytest.fixture
def ground(request: pytest.FixtureRequest) -> Ground:
    _, make = GROUNDS[request.param]
    return make(request.getfixturevalue)
