"""The virtual world of a test."""

from pathlib import Path

import pytest

from tests.unit.engine.virtual import VirtualWorld


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path)
