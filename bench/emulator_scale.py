"""The emulator with 256 TPU VMs of one slice: how long they take to start and to be deleted, memory, processor time when idle.

Each worker is an SSH server and a metadata server with a home directory of its own; no job runs on any.
"""

from __future__ import annotations

import time

import psutil
from harness.results import Report, options, spread
from harness.sandbox import ZONE, Sandbox, sandbox, wait_for

from cloud_tpu_emulator.daemon import control

SLICES = {64: ("v5litepod-256", "v2-alpha-tpuv5-lite"), 256: ("v5p-2048", "v2-alpha-tpuv5")}
SETTLED_S = 1.0  # after its start the daemon still imports what it will need
IDLE_S = 5.0
NODES = f"/v2/projects/emulated/locations/{ZONE}/nodes"
Figures = dict[str, float]


def main() -> None:
    arguments = options(str(__doc__), rounds=3)
    columns = ["workers", "READY after s", "processor s until then", "MB", "kB a worker", "idle %", "absent after s"]
    report = Report("emulator_scale.py", "256 workers on one machine", columns)
    found: dict[int, list[Figures]] = {workers: [] for workers in SLICES}
    for _ in range(arguments.rounds):
        for workers in SLICES:
            with sandbox() as here:
                found[workers].append(_measured(here, workers))
    for workers, rounds in found.items():

        def shown(name: str, digits: int = 2, rounds: list[Figures] = rounds) -> str:
            return spread([figures[name] for figures in rounds], digits)

        cells = (
            shown("ready_s"),
            shown("cpu_s"),
            shown("mb", 0),
            shown("kb_each", 0),
            shown("idle", 1),
            shown("absent_s"),
        )
        report.row(str(workers), *cells)
    report.notes = [
        f"Idle: processor time of the daemon over {IDLE_S:.0f} s after the last worker is up, in percent of one core.",
        "MB: of the whole daemon; kB a worker: what it grew by, for each. Neither a process nor a port is left at the end.",
    ]
    report.publish(arguments)


def _measured(here: Sandbox, workers: int) -> Figures:
    endpoint = here.emulator()
    process = psutil.Process(endpoint.pid)
    time.sleep(SETTLED_S)
    before_mb, before_s = _mb(process), _processor_s(process)
    kind, runtime = SLICES[workers]
    began = time.monotonic()
    control.request(endpoint, "POST", f"{NODES}?nodeId=large", {"acceleratorType": kind, "runtimeVersion": runtime})
    wait_for("the node is READY", lambda: here.nodes()[0]["state"] == "READY", pause_s=0.02)
    figures = {"ready_s": time.monotonic() - began, "cpu_s": _processor_s(process) - before_s}
    assert here.nodes()[0]["workers"] == workers
    [row] = here.admin("processes")["nodes"]
    assert len(row["ports"]) == 2 * workers, f"{len(row['ports'])} ports are open"
    figures |= {"mb": _mb(process), "kb_each": (_mb(process) - before_mb) * 1000 / workers}
    idle_from = _processor_s(process)
    time.sleep(IDLE_S)
    figures["idle"] = (_processor_s(process) - idle_from) / IDLE_S * 100
    began = time.monotonic()
    control.request(endpoint, "DELETE", f"{NODES}/large")
    wait_for("the node is absent", lambda: not here.nodes(), pause_s=0.02)
    figures["absent_s"] = time.monotonic() - began
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert len(listening) == 1, f"ports are left: {listening}"
    assert process.children() == [], "a process is left"
    return figures


def _mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def _processor_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


if __name__ == "__main__":
    main()
