"""Looks at who holds the TPU chips of this worker, and publishes where the job does not use them.

The script of a job runs this verb beside the job (core/text/scripts.py). It opens no chip: a process holds one if it has its
device open. One that began before the job is none of the job's. While the chips are held, it also looks whether the processes
that hold them are connected to another worker. It ends once the job uses its chips, with the other workers if there are any, so
that it costs a good job nothing. Where there is no chip to look at, it says nothing.

What it finds goes to the guest attribute `tpujob/chips`, which core/lease/chip_report.py reads, and to the file of
`tpu_metrics`; in a pod, which has no such attribute, to the log.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH118, PTH123, PTH208
from __future__ import annotations

import glob
import http.client
import json
import os
import subprocess
import time
from subprocess import DEVNULL as NULL
from subprocess import PIPE

from . import metrics, tpu_metrics

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")
EMULATED = "TPUJOB_EMULATED_CHIPS"  # a directory of an emulated worker, whose files stand for the devices
LOOKS = 30  # in the time after which a job is named; later a fifth of it passes between two
TIMEOUT_S = 20.0
LOG = 3  # the log of the job
IPV4 = frozenset("0123456789.")
ESTABLISHED = "01"
IDLE, BUSY, ALONE, USED = "idle", "busy", "alone", "used"


class Chips:
    """The devices, and the processes that have them open. Of other users they are seen as root only, as with sudo here."""

    def __init__(self) -> None:
        fed = os.environ.get(EMULATED)
        self.devices = (f"{glob.escape(fed)}/*",) if fed else DEVICES
        self.sudo = [] if fed or not os.geteuid() or not _succeeds("sudo -n true") else ["sudo", "-n"]
        self.sees_all = bool(fed or self.sudo or not os.geteuid())
        self.sockets: dict[int, set[str]] = {}  # inodes, of every process

    def there(self) -> bool:
        return any(map(glob.glob, self.devices))

    def holders(self) -> set[int]:
        """Return the processes that have a device open."""
        named = [word for pattern in self.devices for word in ("-o", "-lname", pattern)]
        places = [f"/proc/{name}/fd" for name in os.listdir("/proc") if name.isdigit()]
        wanted = ["-maxdepth", "1", "(", "-lname", "socket:*", *named, ")", "-printf", "%p %l\n"]
        argv = [*self.sudo, "find", *places, *wanted]
        found = subprocess.run(argv, stdin=NULL, stdout=PIPE, stderr=NULL, timeout=TIMEOUT_S, check=False)
        held: set[int] = set()
        self.sockets = {}
        for line in found.stdout.decode(errors="replace").splitlines():
            path, _, target = line.partition(" ")
            pid = int(path.split("/")[2])
            if target.startswith("socket:["):
                self.sockets.setdefault(pid, set()).add(target[len("socket:[") : -1])
            else:
                held.add(pid)
        return held

    def connected(self, pids: Iterable[int], hosts: set[str]) -> bool:
        """Return whether one of these processes has a connection to one of these hosts that does not end in one of them."""
        ends: set[tuple[str, str]] = set()
        for pid in pids:
            rows = [
                row.split() for kind in ("tcp", "tcp6") for row in _text(f"/proc/{pid}/net/{kind}").splitlines()[1:]
            ]
            mine = [row for row in rows if row[3] == ESTABLISHED and row[9] in self.sockets.get(pid, ())]
            ends |= {(_plain(row[1]), _plain(row[2])) for row in mine}
        return any(_address(far) in hosts and (far, near) not in ends for near, far in ends)


def chips(first: str) -> None:
    """Look until the job uses its chips. `first`: so many seconds after its start, one that does not is named."""
    first_s, began, seen = float(first), time.monotonic(), Chips()
    os.nice(19)
    attempt, worker = os.environ["TPUJOB_ATTEMPT"], int(os.environ["TPUJOB_WORKER"])
    hosts = os.environ["TPUJOB_HOSTS"].split(",")
    peers = {host for host in hosts[:worker] + hosts[worker + 1 :] if IPV4.issuperset(host)}
    after = f"{first_s / 60:.0f} m" if first_s >= 60 else f"{first_s:g} s"
    job_began, who = _began(os.getsid(0)), "no process" if seen.sees_all else "no process of the login user"
    held_since: float | None = None
    talked, told = False, USED
    while seen.there():
        held, passed_s = seen.holders(), time.monotonic() - began
        before = {pid for pid in held if _began(pid) < job_began}
        ours = held - before
        held_since = passed_s if ours and held_since is None else held_since
        talked = talked or seen.connected(ours, peers)
        is_well = _works() or (ours and (talked or not peers))
        use, text = USED, ""
        if not is_well and ours and passed_s - (held_since or 0.0) >= first_s:
            use, text = ALONE, f"holds its chips for {after}, connected to no other worker: it seems to train alone"
        elif not is_well and before and held_since is None:
            use, text = BUSY, f"the TPU is in use: since before the job, {_named(min(before))} holds a chip"
        elif not is_well and held_since is None and passed_s >= first_s:
            use, text = IDLE, f"{who} holds a TPU chip {after} after the job began"
        if use != told and _publish({"worker": worker, "attempt": attempt, "use": use, "text": text}):
            told = use
            if use == BUSY:
                text += f"; what opens it fails. hint: `sudo kill {min(before)}` on worker{worker} ends that process"
            if use == BUSY or (text and "TPUJOB_AGENT" in os.environ):
                os.write(LOG, f"tpujob: {text}\n".encode())
        if is_well and told == USED:
            return
        time.sleep(first_s / (LOOKS if passed_s < first_s else 5))


def _publish(record: dict[str, object]) -> bool:
    """Publish it, and note it for the report; return whether that worked, or never will."""
    tpu_metrics.write(os.path.join(os.environ["TPUJOB_ARTIFACTS"], tpu_metrics.NAME), {"chips": record})
    if "TPUJOB_AGENT" in os.environ:
        return True
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    path = "/computeMetadata/v1/instance/guest-attributes/tpujob/chips"
    try:
        connection.request("PUT", path, json.dumps(record), {"Metadata-Flavor": "Google"})
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _works() -> bool:
    """Return whether the last sample of the duty cycle is above 0: of a container, processes may be out of sight."""
    try:
        fd = os.open(os.path.join(os.environ["TPUJOB_ARTIFACTS"], tpu_metrics.NAME), metrics.FLAGS)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        file.seek(max(0, os.fstat(fd).st_size - metrics.PIECE_BYTES))
        lines = [line for line in file.read().splitlines() if b'"duty_cycle_percent":' in line]
    try:
        return bool(lines) and any(json.loads(lines[-1])["duty_cycle_percent"])
    except (ValueError, KeyError, TypeError):
        return False


def _began(pid: int) -> int:
    """Return when it began, in ticks since the boot; for one that is gone, as if it were the job's."""
    words = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[19]) if words else 1 << 62


def _named(pid: int) -> str:
    command = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return f"process {pid} ({command[:80]})" if command else f"process {pid}"


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _plain(end: str) -> str:
    """Return an end of a connection as in the table of IPv4: many servers have IPv4 connections in that of IPv6."""
    return end[24:] if end[:24].endswith("FFFF0000") else end


def _address(end: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(end.partition(":")[0][:8])))


def _succeeds(command: str) -> bool:
    return subprocess.call(["sh", "-c", command], stdin=NULL, stdout=NULL, stderr=NULL) == 0
