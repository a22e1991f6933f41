"""A home, a state directory and an emulator that exist for one measurement and are gone after it.

Nothing of the person who measures is read or touched: not their settings, their gcloud configuration or their slices.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.daemon.control import Endpoint

ZONE = "us-central1-a"
NO_DELAYS = {f"{what}_s": 0 for what in ("provision", "stop", "start", "delete")}
REPOSITORY = Path(__file__).resolve().parents[2]
# What people, or the machine, have set. PYTHONDONTWRITEBYTECODE would have this project compiled for each command, and not the
# libraries beside it, which pip has compiled.
WHAT_PEOPLE_SET = ("TPUJOB_", "CLOUDSDK_", "GOOGLE_", "PYTHON")


@dataclass(frozen=True, slots=True)
class Sandbox:
    directory: Path

    @property
    def emulator_directory(self) -> Path:
        """Where the CLI keeps its emulator: the commands in this sandbox use the same one."""
        return self.directory / "state" / "emulator"

    def environment(self, **extra: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(WHAT_PEOPLE_SET)}
        home = self.directory / "home"
        return inherited | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "CLOUDSDK_CONFIG": str(home / "gcloud"),
            "TPUJOB_STATE_DIR": str(self.directory / "state"),
            "PYTHONPATH": str(REPOSITORY),
            **extra,
        }

    def emulator(self, **settings: Any) -> Endpoint:
        """The running emulator, without delays unless `settings` name some."""
        endpoint = control.ensure_running(self.emulator_directory)
        control.request(endpoint, "PATCH", "/_emulator/settings", NO_DELAYS | settings)
        return endpoint

    def nodes(self) -> list[dict[str, Any]]:
        """What the emulator has now."""
        return list(self.admin("status")["nodes"])

    def admin(self, path: str) -> Any:
        return control.request(control.ensure_running(self.emulator_directory), "GET", f"/_emulator/{path}")

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Ends the emulator, if one was started, and removes everything; a node that was left there is an error."""
    with tempfile.TemporaryDirectory(prefix="tpujob-bench-", ignore_cleanup_errors=True) as directory:
        made = Sandbox(Path(directory))
        (made.directory / "home").mkdir()
        try:
            yield made
            if control.running(made.emulator_directory) is not None and (left := made.nodes()):
                raise RuntimeError(f"The measurement left nodes behind: {left}")
        finally:
            control.stop(made.emulator_directory)


def tpujob(*words: str) -> list[str]:
    """The installed command beside this Python, or else the checkout's."""
    script = Path(sys.executable).with_name("tpujob")
    return [str(script), *words] if script.exists() else [sys.executable, "-m", "orchestrator.cli", *words]


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = 60.0, pause_s: float = 0.002) -> Any:
    """The first true answer of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"This did not happen within {timeout_s:.0f} s: {what}.")
        time.sleep(pause_s)
    return answer
