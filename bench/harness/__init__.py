"""The test bed of the measurements: a sandbox with an emulator of its own, timed processes, and the page of results."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # some scripts measure with what `tests` has made for it
