"""Resident memory: of the emulator with 64 idle workers, and of the CLI while four workers pour out log lines.

Sampled from outside, as `ps` would show it. Beside them: a Python that has only imported what they import.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
from harness.results import Report, options, spread
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob, wait_for

from cloud_tpu_emulator.daemon import control

SLICE, SLICE_WORKERS = "v5litepod-256", 64
IDLE_S = 2.0  # after the last worker is up
SAMPLE_S = 0.02
LINES = {"silent": 0, "20 MB": 50_000, "80 MB": 200_000}  # of 100 bytes, from each of 4 workers
LINE = "x" * 99
JOB = """\
name: stream
tpu: {{accelerator: v5litepod-16, zone: {zone}}}
command: |
  yes {line} | head -n {lines}
  sleep 1
"""
IMPORTS = {
    "aiohttp and asyncssh": "import aiohttp, asyncssh",
    "google-cloud-tpu and fabric": "import google.cloud.tpu_v2, fabric",
}


@dataclass(slots=True)
class Memory:
    """Samples of one process, in MB."""

    samples: list[float] = field(default_factory=list)
    wall_s: float = 0.0


def main() -> None:
    arguments = options(str(__doc__), rounds=3)
    report = Report("memory.py", "resident memory", ["process", "MB", "peak MB", "wall s"])
    found: dict[str, list[Memory]] = {}
    for _ in range(arguments.rounds):
        for name, code in IMPORTS.items():
            found.setdefault(f"python that imported {name}", []).append(_after_imports(code))
        for name, memory in _emulator().items():
            found.setdefault(name, []).append(memory)
        with sandbox() as here:
            here.emulator()
            for name, lines in LINES.items():
                found.setdefault(f"`tpujob run`, 4 workers, {name}", []).append(_streaming(here, lines))
    for name, each in found.items():
        report.row(
            name,
            spread([statistics.median(memory.samples) for memory in each], 1),
            spread([max(memory.samples) for memory in each], 1),
            spread([memory.wall_s for memory in each], 1) if each[0].wall_s else "",
        )
    report.notes = [
        f"Sampled every {SAMPLE_S * 1000:.0f} ms; MB is the median over the process's samples, peak the highest of them.",
        "Lines of 100 bytes, shown on stdout and kept in one file per worker; the emulated workers end with the run.",
        f"The emulator with {SLICE}: {SLICE_WORKERS} SSH servers and {SLICE_WORKERS} metadata servers, no job on any.",
    ]
    report.publish(arguments)


def _after_imports(code: str) -> Memory:
    program = f"{code}\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = Memory([_mb(psutil.Process(process.pid))])
        process.communicate(b"\n")
    return memory


def _emulator() -> dict[str, Memory]:
    """Before there is any node, and with one of 64 workers."""
    with sandbox() as here:
        endpoint = here.emulator()
        time.sleep(IDLE_S)
        before = _idle(endpoint.pid)
        nodes = f"/v2/projects/emulated/locations/{ZONE}/nodes"
        body = {"acceleratorType": SLICE, "runtimeVersion": "v2-alpha-tpuv5-lite"}
        began = time.monotonic()
        control.request(endpoint, "POST", f"{nodes}?nodeId=large", body)
        wait_for("the node is READY", lambda: here.nodes()[0]["state"] == "READY")
        ready_s = time.monotonic() - began
        assert here.nodes()[0]["workers"] == SLICE_WORKERS
        time.sleep(IDLE_S)
        full = _idle(endpoint.pid)
        full.wall_s = ready_s
        control.request(endpoint, "DELETE", f"{nodes}/large")
        wait_for("the node is gone", lambda: not here.nodes())
    return {"emulator without a node": before, f"emulator, {SLICE_WORKERS} workers (wall: until READY)": full}


def _idle(pid: int) -> Memory:
    memory, process = Memory(), psutil.Process(pid)
    for _ in range(50):
        memory.samples.append(_mb(process))
        time.sleep(SAMPLE_S)
    return memory


def _streaming(here: Sandbox, lines: int) -> Memory:
    """The whole life of a run. Its output is discarded, as with `> /dev/null`."""
    job = here.write("stream.yaml", JOB.format(zone=ZONE, line=LINE, lines=lines))
    memory = Memory()
    with _running(here, tpujob("run", str(job))) as process:
        began = time.monotonic()
        while process.poll() is None:
            try:
                memory.samples.append(_mb(psutil.Process(process.pid)))
            except psutil.NoSuchProcess:
                break
            time.sleep(SAMPLE_S)
        assert process.wait() == 0, f"the run ended with {process.returncode}"
        memory.wall_s = time.monotonic() - began
    kept = sum(path.stat().st_size for path in here.directory.glob("runs/*/logs/worker*.log"))
    assert kept == 4 * lines * (len(LINE) + 1), f"{kept} bytes of log arrived"
    for path in here.directory.glob("runs/*/logs/worker*.log"):
        path.unlink()
    return memory


@contextmanager
def _running(here: Sandbox, argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=here.environment(),
        cwd=here.directory,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


if __name__ == "__main__":
    main()
