"""The old name of `cloud_tpu_emulator.pytest_plugin`: it goes on working, and says where it is now."""

import warnings
from typing import Any

from cloud_tpu_emulator import pytest_plugin
from cloud_tpu_emulator.pytest_plugin import tpu_emulator

__all__ = ["tpu_emulator"]

warnings.warn(
    "the plugin `orchestrator.emulator.pytest_plugin` is now `cloud_tpu_emulator.pytest_plugin`",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(pytest_plugin, name)
