"""Fixtures for all tests."""

from tests.cli_fixture import cli
from tests.emulator_fixture import emulator, shared_emulator

__all__ = ["cli", "emulator", "shared_emulator"]
