"""What JAX compiles on a slice stays there: with the real JAX, on the CPU of the emulator."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli_fixture import Cli

TRAIN = """
import os
import jax

compiled, found = [], []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name) if name.endswith("/cache_hits") else None)
jax.monitoring.register_event_listener(lambda name, **_: compiled.append(name) if name.endswith("/cache_misses") else None)
jax.jit(lambda x: (x @ x.T).sum())(jax.numpy.ones((8, 8))).block_until_ready()
print(f"compiled={len(compiled)} found={len(found)} in={os.environ['JAX_COMPILATION_CACHE_DIR']}")
"""
JOB = f"""
tpu: {{zone: us-central1-a}}
code: code
command: {sys.executable} train.py
env:
  JAX_PLATFORMS: cpu
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: 0
  PYTHONPATH: {{path}}
limits: {{max_duration: 6m}}
"""


@pytest.mark.ci
def test_a_second_run_on_a_held_slice_compiles_nothing_anew(cli: Cli) -> None:
    jax = pytest.importorskip("jax")
    (cli.directory / "code").mkdir()
    (cli.directory / "code" / "train.py").write_text(TRAIN)
    text = JOB.replace("{path}", str(Path(jax.__file__).parents[1]))
    assert cli("up", "--zone", "us-central1-a").returncode == 0

    def counted(text: str) -> tuple[int, int, str]:
        done = cli("run", cli.job(text))
        (said,) = re.findall(r"compiled=(\d+) found=(\d+) in=(\S+)", done.stdout)
        return int(said[0]), int(said[1]), said[2]

    compiled, found, where = counted(text)
    assert compiled > 0 and found == 0 and where.endswith("/tpujob/jax")
    assert counted(text) == (0, compiled, where)
    own = cli.directory / "own"
    assert counted(text.replace("env:", f"env:\n  JAX_COMPILATION_CACHE_DIR: {own}")) == (compiled, 0, str(own))
    assert not list(cli.directory.glob("runs/*/worker0/home")), "it is no result"
