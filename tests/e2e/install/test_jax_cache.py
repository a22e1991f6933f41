"""What JAX compiles on a slice stays there: with the real JAX of the package index, on the CPU of the emulator."""

import re

import pytest

from cloud_tpu_emulator.daemon import control
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
JOB = """
tpu: {zone: us-central1-a}
code: code
requirements: [jax==0.10.2]
command: python train.py
env:
  JAX_PLATFORMS: cpu
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: 0
limits: {max_duration: 6m}
"""


def job_of(cli: Cli) -> str:
    (cli.directory / "code").mkdir()
    (cli.directory / "code" / "train.py").write_text(TRAIN)
    return JOB


def counted(cli: Cli, text: str) -> tuple[int, int, str]:
    done = cli("run", cli.job(text))
    assert done.returncode == 0, done.text
    ((compiled, found, where),) = re.findall(r"compiled=(\d+) found=(\d+) in=(\S+)", done.stdout)
    return int(compiled), int(found), where


@pytest.mark.ci
def test_a_second_run_on_a_held_slice_compiles_nothing_anew(cli: Cli) -> None:
    text = job_of(cli)
    assert cli("up", "--zone", "us-central1-a").returncode == 0
    compiled, found, where = counted(cli, text)
    assert compiled > 0 and found == 0 and where.endswith("/tpujob/jax")
    assert counted(cli, text) == (0, compiled, where)
    own = cli.directory / "own"
    assert counted(cli, text.replace("env:", f"env:\n  JAX_COMPILATION_CACHE_DIR: {own}")) == (compiled, 0, str(own))
    assert not list(cli.directory.glob("runs/*/worker0/home")), "it is no result"


ANY = """
tpu: {zone: us-central1-a}
setup: echo as pip install jax would
bucket: gs://made/runs
command: cd "$JAX_COMPILATION_CACHE_DIR"; echo "found=$(echo *)"; touch one-cache no-program; exit 3
limits: {max_duration: 6m}
"""


@pytest.mark.ci
def test_only_compiled_programs_are_copied_and_what_fails_there_fails_no_job(cli: Cli) -> None:
    """Without JAX."""
    cli.env["STORAGE_EMULATOR_HOST"] = control.ensure_running(cli.emulator_directory).url
    said = [cli("run", cli.job(ANY)) for _ in range(2)]
    assert [re.findall(r"found=(.*)", done.stdout) for done in said] == [["*"], ["one-cache"]]
    assert "compiled programs of JAX: 1 to gs://made/runs/jax" in said[0].stdout
    assert "compiled programs of JAX: 1 from gs://made/runs/jax" in said[1].stdout
    cli.fault("status", "storage.objects.list", status=403)
    refused = cli("run", cli.job(ANY))
    assert re.findall(r"found=(.*)", refused.stdout) == ["*"] and "; not all: " in refused.stdout, refused.text
    assert {done.returncode for done in (*said, refused)} == {3}


@pytest.mark.ci
def test_with_a_bucket_the_next_slice_compiles_nothing_anew(cli: Cli) -> None:
    text = f"{job_of(cli)}bucket: gs://made/runs\n"
    cli.env["STORAGE_EMULATOR_HOST"] = control.ensure_running(cli.emulator_directory).url
    compiled, found, where = counted(cli, text)
    assert compiled > 0 and found == 0
    again = counted(cli, text)
    assert again[:2] == (0, compiled) and again[2] != where and cli.lived() == 2
