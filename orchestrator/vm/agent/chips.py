"""The TPU chips of this worker while a job runs: their HBM use and duty cycle, and who holds them.

The script of a job runs both verbs beside the job (text/scripts.py).

`tpu_metrics` samples into `artifacts/tpu-metrics.jsonl`, with the job's own `python3`. It asks libtpu's monitoring library,
which is a client of the metrics service that libtpu runs in the training process (localhost:8431): the library opens no chip,
and what fails or hangs here fails in this process alone. While nothing is loaded on the chips, it writes no line, never 0.
docs/reports.md describes the file.

`chips` publishes where the job does not use them. It opens no chip: a process holds one if it has its device open, and one that
began before the job is none of the job's. While the chips are held, it also looks whether the processes that hold them are
connected to another worker. It ends once the job uses its chips, with the other workers if there are any, so that it costs a
good job nothing. Where there is no chip to look at, it says nothing. What it finds goes to the guest attribute `tpujob/chips`,
which promise/lease/guest_reports.py reads, and to the file of `tpu_metrics`; in a pod, which has no such attribute, to the log.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import glob
import http.client
import importlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import time
from typing import Any

from ..files.phases import text as _text

NAME = "tpu-metrics.jsonl"
SCHEMA = 1
SLOWER_AFTER = 360  # samples: an hour, then half as often, and so on: a week has 3,000 lines
MOST_CHIPS = 1024
NAMES = {  # by their names in libtpu
    "hbm_capacity_usage": "hbm_used_bytes",
    "hbm_capacity_total": "hbm_total_bytes",
    "duty_cycle_pct": "duty_cycle_percent",
}
# libtpu asks the metadata server of the VM thirty times for what only a training needs, and writes logs of its own.
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3", "TPU_LOG_DIR": "disabled"}


def sample(monitoring: Any, known: set[str]) -> dict[str, list[float]]:
    """Return what libtpu reports now, a value for each chip or core; {} for nothing. Raises nothing of libtpu's.

    `known`: the metrics that this libtpu has. An older one ends the process when it is asked for another.
    """
    found: dict[str, list[float]] = {}
    for name, key in NAMES.items():
        if name in known:
            try:
                values = numbers(monitoring.get_metric(name).data())
            except Exception:  # noqa: S112 - whatever the library raises: unknown
                continue
            if values:
                found[key] = values
    if len(found.get("hbm_used_bytes", ())) != len(found.get("hbm_total_bytes", ())):
        found.pop("hbm_used_bytes", None)  # one without the other has no meaning
        found.pop("hbm_total_bytes", None)
    return found


def numbers(data: Any) -> list[float]:
    """Return the numbers in a list of texts; [] if one of them is none that can have been measured."""
    try:
        values = [float(each) for each in list(data)[:MOST_CHIPS]]
    except (TypeError, ValueError):
        return []
    if any(not math.isfinite(value) or value < 0 for value in values):
        return []
    return [int(value) if value == int(value) else value for value in values]


def write(path: str, line: dict[str, Any]) -> None:
    with open(path, "a") as file:  # noqa: PTH123
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def tpu_metrics(directory: str, every: str = "10") -> None:
    """Sample every so many seconds, later less often, until the job has ended and its supervisor ends this process too."""
    every_s = float(every)
    os.umask(0o022)  # as that of the job
    path = os.path.join(directory, NAME)  # noqa: PTH118
    os.environ.update(QUIET)
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tpumonitoring = importlib.import_module("libtpu.sdk").tpumonitoring  # of the job's Python, if it has one
        known = set(tpumonitoring.list_supported_metrics())
    except Exception as error:
        write(path, {"absent": "the job's python3 has no libtpu.sdk: " + f"{type(error).__name__}: {error}"[:200]})
        return
    write(path, {"schema": SCHEMA})
    looks = 0
    while True:
        looks += 1
        every_s *= 2 if looks % SLOWER_AFTER == 0 else 1
        time.sleep(every_s)
        found = sample(tpumonitoring, known)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # libtpu's own handler prints a stack first
        if found:
            write(path, {"at": round(time.time(), 1), "every_s": every_s, **found})


DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")
EMULATED = "TPUJOB_EMULATED_CHIPS"  # a directory of an emulated worker, whose files stand for the devices
LOOKS = 30  # in the time after which a job is named; later a fifth of it passes between two
TIMEOUT_S = 20.0
SUDO = "sudo -n true >/dev/null 2>&1"
LOG = 3  # the descriptor of the job's log


def chips(first: str) -> None:
    """Look until the job uses its chips. `first`: so many seconds after its start, one that does not is named."""
    fed, in_pod, first_s, began = os.environ.get(EMULATED), "TPUJOB_AGENT" in os.environ, float(first), time.monotonic()
    os.nice(19)
    devices = (f"{glob.escape(fed)}/*",) if fed else DEVICES
    is_root = bool(fed) or not os.geteuid()  # who sees what the processes of all users have open
    sudo = () if is_root or subprocess.call(("sh", "-c", SUDO)) else ("sudo", "-n")
    who = "no process" if is_root or sudo else "no process of the login user"
    hosts, worker = os.environ["TPUJOB_HOSTS"].split(","), int(os.environ["TPUJOB_WORKER"])
    record = {"attempt": os.environ["TPUJOB_ATTEMPT"], "worker": worker, "workers": len(hosts)}
    peers = {_in_table(host) for index, host in enumerate(hosts) if index != worker and "." in host}
    after = f"{first_s / 60:.0f} m" if first_s >= 60 else f"{first_s:g} s"
    job_began = min(_began(os.getsid(0)), _began(os.getpid()))  # the first of its session may be gone, or out of sight
    held_since, talked, told = math.inf, False, "used"
    while any(map(glob.glob, devices)):
        try:
            held, sockets = holders(devices, sudo)
        except (OSError, subprocess.TimeoutExpired):  # such as on a worker under load; the next look may say it
            time.sleep(first_s / LOOKS)
            continue
        passed_s = time.monotonic() - began
        before = {pid for pid in held if _began(pid) < job_began}
        ours = held - before
        if not ours and held_since < math.inf:  # the job ends, say: what was told of it stays
            time.sleep(first_s / LOOKS)
            continue
        held_since = min(held_since, passed_s) if ours else held_since
        talked = talked or connected({pid: sockets.get(pid, set()) for pid in ours}, peers)
        is_well = talked or not peers if ours else _works()
        use, text, end = "used", "", ""
        if not is_well and ours and passed_s - held_since >= first_s:
            use, text = "alone", f"holds its chips for {after}, connected to no other worker: it seems to train alone"
        elif not is_well and before and held_since == math.inf:
            pid = min(before)
            command = " ".join(_text(f"/proc/{pid}/cmdline").split("\0")[:2])[:80]  # further words may be secret
            use, text = "busy", f"the TPU is in use: since before the job, process {pid} ({command}) holds a chip"
            end = f"; what opens it fails. hint: `sudo kill {pid}` ends that process"
        elif not is_well and held_since == math.inf and passed_s >= first_s:
            use, text = "idle", f"{who} holds a TPU chip {after} after the job began"
        record.update(use=use, text=text)
        is_new = use != told
        if is_new:
            with contextlib.suppress(OSError):  # such as of a full disk
                write(f"{os.environ['TPUJOB_ARTIFACTS']}/{NAME}", {"chips": record})
        # With each look again while it is not well: Google may accept a write and drop it.
        if (is_new or text) and (in_pod or _publish(record)) and is_new:
            told = use
            if end or (text and in_pod):
                os.write(LOG, f"tpujob: {text}{end}\n".encode())
        if is_well and told == "used":
            return
        time.sleep(first_s / (LOOKS if passed_s < first_s else 5))


def holders(devices: tuple[str, ...], sudo: tuple[str, ...]) -> tuple[set[int], dict[int, set[str]]]:
    """Return the processes that have a device open, and the inodes of the sockets of every process."""
    named = [word for pattern in devices for word in ("-o", "-lname", pattern)]
    places = [f"/proc/{name}/fd" for name in os.listdir("/proc") if name.isdigit()]
    wanted = ["-maxdepth", "1", "(", "-lname", "socket:*", *named, ")", "-printf", "%p %l\n"]
    found = subprocess.run([*sudo, "find", *places, *wanted], capture_output=True, timeout=TIMEOUT_S, check=False)
    held: set[int] = set()
    sockets: dict[int, set[str]] = {}
    for line in found.stdout.decode(errors="replace").splitlines():
        path, _, target = line.partition(" ")
        pid = int(path.split("/")[2])
        if target.startswith("socket:["):
            sockets.setdefault(pid, set()).add(target[len("socket:[") : -1])
        else:
            held.add(pid)
    return held, sockets


def connected(sockets: dict[int, set[str]], hosts: set[str]) -> bool:
    """Return whether one of these processes has an open (01) connection to one of these hosts, and not to another of them.

    The last 13 characters of an end are its address and port; many servers have IPv4 connections in the table of IPv6.
    """
    ends: set[tuple[str, str]] = set()
    for pid, inodes in sockets.items():
        rows = [row.split() for kind in ("tcp", "tcp6") for row in _text(f"/proc/{pid}/net/{kind}").splitlines()[1:]]
        ends |= {(row[1][-13:], row[2][-13:]) for row in rows if row[3] == "01" and row[9] in inodes}
    return any(far[:8] in hosts and (far, near) not in ends for near, far in ends)


def _publish(record: dict[str, object]) -> bool:
    """Publish it; return whether that worked, or never will."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    path = "/computeMetadata/v1/instance/guest-attributes/tpujob/chips"
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    try:
        connection.request("PUT", path, json.dumps(record), {"Metadata-Flavor": "Google"})
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False


def _works() -> bool:
    """Return whether the last sample of the duty cycle is above 0: the processes of a container may be out of sight."""
    lines = _text(f"{os.environ['TPUJOB_ARTIFACTS']}/{NAME}").splitlines()
    samples = [line for line in lines if '"duty_cycle_percent":' in line]
    try:
        return bool(samples) and any(json.loads(samples[-1])["duty_cycle_percent"])
    except (ValueError, KeyError, TypeError):
        return False


def _began(pid: int) -> int:
    """Return when it began, in ticks since the boot; for one that is gone, as if it were the job's."""
    words = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[19]) if words else 1 << 62


def _in_table(host: str) -> str:
    return socket.inet_aton(host)[::-1].hex().upper()
