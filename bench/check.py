"""What `tpujob check` takes beside the program and the compiler, and how soon it refuses what is too large.

Whole commands. The compiler is that of this machine's cache, which the first command installs; what it judged before counts
only where a row says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from harness.results import Report, options, spread, verdict
from harness.sandbox import REPOSITORY, Sandbox, sandbox, tpujob

from orchestrator.check import compiler
from tests.check.programs import CASES
from tests.check.test_programs import JAX_JOB

MOST, REFUSED_S = 3.0, 5.0
LOOK_S = 0.01
COLUMNS = ("what", "seconds", "its steps alone, s", "compiler, s", "target")


def main() -> None:
    arguments = options(__doc__ or "", rounds=5)
    compiler.install(lambda stage, text: print(f"{stage}: {text}", flush=True))
    report = Report("check.py", "checking a program before it is paid for", COLUMNS)
    cold, known, alone, compiling, ratios, refused = [], [], [], [], [], []
    with sandbox() as here:
        cache = here.directory / "cache" / "tpujob"
        cache.mkdir(parents=True)
        (cache / "compiler").symlink_to(compiler.cache_directory() / "compiler")
        case = next(each for each in CASES if each.name == "jax_too_large")
        here.write("code/train.py", case.source)
        large = here.write("large.yaml", JAX_JOB.format(accelerator=case.accelerator))
        mnist = REPOSITORY / "jobs" / "mnist.yaml"
        for job in (mnist, large):
            _check(here, job)  # resolves the packages, and installs them
        for _ in range(arguments.rounds):
            shutil.rmtree(cache / "judged")
            took_s, found = _check(here, mnist)
            cold.append(took_s)
            compiling.append(sum(each["compile_s"] for each in found["graphs"]))
            took_s, found = _check(here, mnist)
            assert all(each["known"] for each in found["graphs"]), "the compiler was asked again"
            known.append(took_s)
            alone.append(found["seconds"])
            ratios.append((cold[-1] - compiling[-1]) / alone[-1])
            refused.append(_refused_after(here, large, cache))
    report.row("`check jobs/mnist.yaml`", spread(cold), spread(alone), spread(compiling), "")
    report.row("… less the compiler, in its steps", spread(ratios), "1", "", verdict(ratios, MOST, "×"))
    report.row("`check jobs/mnist.yaml` again", spread(known), spread(alone), "0", "")
    report.row("a JAX step of 32 GiB, from its graph to the end", spread(refused), "", "", verdict(refused, REFUSED_S))
    report.notes = [
        "Its steps alone: 10 steps of the program with what watches it, while the compiler has nothing to do, from the start "
        "of its Python. The command adds the choice of its packages and the start of the compiler.",
        "Compiler: what it says that it took for all programs of the job, beside the steps or after them.",
    ]
    report.publish(arguments)


def _environment(here: Sandbox) -> dict[str, str]:
    return here.environment(XDG_CACHE_HOME=str(here.directory / "cache"), TMPDIR=str(here.directory))


def _check(here: Sandbox, job: Path) -> tuple[float, dict[str, Any]]:
    began = time.monotonic()
    done = subprocess.run(
        tpujob("check", str(job), "--json"),
        cwd=here.directory,
        env=_environment(here),
        check=False,
        capture_output=True,
        text=True,
    )
    took_s = time.monotonic() - began
    assert done.returncode in (0, 72), done.stderr
    return took_s, json.loads(done.stdout)


def _refused_after(here: Sandbox, job: Path, cache: Path) -> float:
    """Return the seconds from the step's dump to the end of the command, which refuses it without what it knew."""
    shutil.rmtree(cache / "judged")
    seen: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not seen and not over.wait(LOOK_S):
            if any(here.directory.glob("tpujob-check-*/seen/dumps/*/*train_step*.before_optimizations.hlo.pb")):
                seen.append(time.monotonic())

    looking = threading.Thread(target=look)
    looking.start()
    _, found = _check(here, job)
    ended = time.monotonic()
    over.set()
    looking.join()
    assert found["verdict"] == "does not fit" and seen, found["verdict"]
    return ended - seen[0]


if __name__ == "__main__":
    main()
