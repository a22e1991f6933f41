"""The fixture `tpu_emulator`: a private emulated Cloud TPU for one test. pytest loads this module by its entry point.

It imports nothing until the fixture is used, so that it costs other test suites nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cloud_tpu_emulator.fixture import TpuEmulator, running

__all__ = ["TpuEmulator", "running", "tpu_emulator"]


@pytest.fixture
def tpu_emulator(tmp_path: Path) -> Iterator[TpuEmulator]:
    """A private emulated Cloud TPU for this test (docs/emulator.md)."""
    from cloud_tpu_emulator import fixture  # pytest loads this plugin for every project

    with fixture.running(tmp_path / "tpu-emulator") as started:
        yield started


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from cloud_tpu_emulator import fixture  # pytest loads this plugin for every project

    return getattr(fixture, name)
