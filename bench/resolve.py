"""How long choosing the versions of a job's requirements takes, beside `uv pip compile` by hand.

From an index on the loopback address with forty packages. Every round measures each, in turn: chosen anew with what uv has in
its cache, chosen again (what was chosen some minutes ago), and uv alone. Without the start of Python, which all commands have.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.results import Report, options, spread, verdict
from harness.sandbox import sandbox

from orchestrator.job import job_spec
from orchestrator.places.preparation import resolving, versions
from tests.fakes.package_index import package_index

PACKAGES = 40
AGAIN_S, AGAIN_FACTOR = 0.3, 1.0


def main() -> None:
    arguments = options(str(__doc__), rounds=11)
    report = Report("resolve.py", "versions chosen before the create", ["what", "wall s", "× uv alone", "target"])
    with sandbox() as here, package_index() as index:
        for number in range(PACKAGES):
            index.wheel(f"p{number}", "1.0", [f"p{number + 1}"] if number + 1 < PACKAGES else [])
        asked = here.write("requirements.txt", "".join(f"p{number}\n" for number in range(0, PACKAGES, 2)))
        job = here.write("job.yaml", "command: ls\ncode: .\nrequirements: requirements.txt\n")
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            del os.environ[name]
        own = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.url, "UV_CACHE_DIR": str(here.directory / "cache")}
        os.environ.update(own)
        spec = job_spec.load(job.read_text(), path=str(job))
        uv = str(versions.Resolver(_nothing(), None, {}, here.directory, here.directory).uv)
        argv = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--default-index", index.url, str(asked)]
        argv += [
            "--python",
            sys.executable,
            "--python-version",
            "3.10",
            "--python-platform",
            str(resolving.TPU_VM.platform),
        ]
        took: dict[str, list[float]] = {"chosen anew": [], "chosen again": [], "`uv pip compile`": []}
        for number in range(arguments.rounds + 1):
            state = here.directory / f"state{number}"
            each = {
                "chosen anew": lambda state=state: _choose(spec, job, state),
                "chosen again": lambda state=state: _choose(spec, job, state),
                "`uv pip compile`": lambda: subprocess.run(argv, check=True, capture_output=True),
            }
            for name, do in each.items():
                once = _seconds(do)
                if number > 0:  # the first round fills the cache of uv
                    took[name].append(once)
    alone_s = statistics.median(took["`uv pip compile`"])
    for name, seconds in took.items():
        factors = [each / alone_s for each in seconds]
        targets = (
            f"{verdict(seconds, AGAIN_S)}; {verdict(factors, AGAIN_FACTOR, '×')}" if name == "chosen again" else ""
        )
        report.row(name, spread(seconds, 3), f"{statistics.median(factors):.2f}", targets)
    report.notes = [
        f"{PACKAGES} packages, {PACKAGES // 2} of them named, for Python 3.10 of a TPU VM; anew, Python 3.12 is asked, too.",
    ]
    report.publish(arguments)


def _nothing() -> Any:
    return SimpleNamespace(requirements="", constraints="")


def _choose(spec: Any, job: Path, state: Path) -> None:
    desk: Any = SimpleNamespace(directory=state, reporter=SimpleNamespace(progress=lambda *_: None))
    found = resolving.resolve(desk, spec, job, {}, resolving.TPU_VM)
    assert len(found.lock.lines) == PACKAGES


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
