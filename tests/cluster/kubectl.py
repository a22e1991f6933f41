"""kubectl, with a kubeconfig."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.waiting import ran


def kubectl(kubeconfig: Path, *words: str, given: Any = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run it, with `given`, a text or objects, on its stdin. AssertionError with its words if it fails and `check` is set."""
    objects = given if isinstance(given, list | tuple) else [given]
    text = given if isinstance(given, str) else yaml.safe_dump_all(objects)
    done = ran(["kubectl", f"--kubeconfig={kubeconfig}", *words], input=text)
    assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
    return done


def written(path: Path, config: Any) -> Path:
    """Write a kubeconfig that only its owner can read, and return its path."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path
