"""The tests, by what they look at: units, contracts of the edges, the simulator, whole lives on the emulator."""

from pathlib import Path

ROOT = Path(__file__).parents[1]  # the checkout
