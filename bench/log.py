"""The log of one worker, to its file and to stdout, beside `ssh` and `cat` on the same connection to the emulator.

A held slice; the job prints a file as fast as it is read. The kept log is compared byte by byte with that file, its secrets
replaced. The last row is a single line.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob

MB, TARGET_MB_S = 1_000_000, 30.0
SECRET, MASK = "a-secret-of-the-job", "[redacted]"
SAMPLE_S = 0.05
PLAIN = "2026-11-23 06:00:00 INFO train: step {:07} loss 0.1234 val_acc 0.93 images/s 671.2 lr 3e-4 eta 12 m 25 GB\n"
COLORED = "\x1b[32mINFO\x1b[0m step {:07} \x1b[1mloss\x1b[0m 0.1234 · acc 93 % · \x1b[36m671.2\x1b[0m images/s\n"
LOGS = {"plain lines": (PLAIN, 100), "colored lines, UTF-8": (COLORED, 100), "one line without end": ("", 1000)}
JOB = """\
name: log
tpu: {{accelerator: v5litepod-4, zone: {zone}}}
env: {{API_TOKEN: "${{env:API_TOKEN}}"}}
command: cat {log}
limits: {{max_log: 2GB}}  # the default is as much as the largest log has
"""


@dataclass(slots=True)
class Measured:
    """Rounds of one log."""

    rate: list[float] = field(default_factory=list)  # MB/s
    by_ssh: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # of the client, for 100 MB
    peak_mb: list[float] = field(default_factory=list)


def main() -> None:
    arguments = options(str(__doc__), rounds=5)
    columns = [
        "log",
        "MB/s",
        "target",
        "`ssh … cat`, MB/s",
        "× ssh",
        "client's processor s for 100 MB",
        "client's peak MB",
    ]
    report = Report("log.py", "a worker's log to its file", columns)
    with sandbox() as here:
        here.emulator()
        _tpujob(here, "up", "bench", "--zone", ZONE, "--accelerator", "v5litepod-4")
        for name, (line, size_mb) in LOGS.items():
            log = _write(here.directory / "log", line, size_mb * MB)
            job = here.write("log.yaml", JOB.format(zone=ZONE, log=log))
            found = Measured()
            _timed(here, job, log)  # the first round fills caches
            for _ in range(arguments.rounds):
                rate, cpu_s, peak_mb = _timed(here, job, log)
                found.rate.append(rate)
                found.cpu_s.append(cpu_s)
                found.peak_mb.append(peak_mb)
                found.by_ssh.append(_by_ssh(here, log))
            report.row(
                f"{name}, {size_mb:,} MB",
                spread(found.rate, 0),
                verdict(found.rate, TARGET_MB_S, "MB/s", at_least=True),
                spread(found.by_ssh, 0),
                spread([ours / ssh for ours, ssh in zip(found.rate, found.by_ssh, strict=True)]),
                spread(found.cpu_s),
                spread(found.peak_mb, 0),
            )
        _tpujob(here, "down", "bench")
    report.notes = [
        "From the start of the job's phase to the end of its log, as the run reports it. stdout is a file. Client, emulator "
        "(whose SSH server is Python) and job share the processors.",
        "Every log holds a secret of the job 100 times, which is hidden in the file and on stdout.",
        "By ssh: `tpujob ssh bench -- cat`, which becomes OpenSSH, to a file; less the time of `-- true`.",
    ]
    report.publish(arguments)


def _write(path: Path, line: str, size_bytes: int) -> Path:
    """Write a log with this line, numbered, or one endless line; its secret is spread evenly."""
    with path.open("wb") as file:
        number = 0
        for _ in range(100):
            end = file.tell() + size_bytes // 100
            file.write(f" {SECRET} ".encode() if not line else f"token {SECRET}\n".encode())
            while (left := end - file.tell()) > 0:
                block = "".join(line.format(number + each) for each in range(5000)) if line else "x" * min(left, MB)
                number += 5000
                file.write(block.encode())
    return path


def _timed(here: Sandbox, job: Path, log: Path) -> tuple[float, float, float]:
    """Run the job; return MB/s, the client's processor seconds for 100 MB, and its peak memory in MB."""
    size_mb = log.stat().st_size / MB
    peak, cpu_s = 0.0, 0.0
    said = here.directory / "stdout"
    with (
        said.open("wb") as out,
        subprocess.Popen(
            tpujob("run", str(job)),
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=here.directory,
            env=here.environment(API_TOKEN=SECRET),
        ) as process,
    ):
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, watched.memory_info().rss / MB)
                cpu_s = sum(watched.cpu_times()[:2])
            except psutil.NoSuchProcess:
                break
            time.sleep(SAMPLE_S)
    with said.open("rb") as file:
        file.seek(-2000, 2)
        found = re.search(rb"spans .*\bjob (?:(\d+) m )?([\d.]+) s", file.read())
    assert process.returncode == 0 and found is not None, said.read_bytes()[-500:]
    (directory,) = (path for path in here.directory.glob("runs/log-*") if path.is_dir())
    expected = subprocess.run(["sed", f"s/{SECRET}/{MASK}/g", str(log)], stdout=subprocess.PIPE, check=True).stdout
    assert (directory / "logs" / "worker0.log").read_bytes() == expected, "the kept log is not the job's"
    subprocess.run(["rm", "-rf", str(directory)], check=True)
    return size_mb / (60 * int(found[1] or 0) + float(found[2])), cpu_s * 100 / size_mb, peak


def _by_ssh(here: Sandbox, log: Path) -> float:
    """MB/s of the same file over OpenSSH."""
    seconds = []
    for command in (*3 * [["true"]], ["cat", str(log)]):
        began = time.monotonic()
        with (here.directory / "copy").open("wb") as out:
            subprocess.run(
                tpujob("ssh", "bench", "--", *command),
                stdout=out,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                cwd=here.directory,
                env=here.environment(),
                check=True,
            )
        seconds.append(time.monotonic() - began)
    return log.stat().st_size / MB / (seconds[-1] - min(seconds[:-1]))


def _tpujob(here: Sandbox, *words: str) -> None:
    subprocess.run(
        tpujob(*words),
        cwd=here.directory,
        env=here.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
