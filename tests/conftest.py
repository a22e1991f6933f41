"""Fixtures for all tests."""

from tests.emulator_fixture import emulator, shared_emulator

__all__ = ["emulator", "shared_emulator"]
