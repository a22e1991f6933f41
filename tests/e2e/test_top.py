"""`tpujob top` while runs go on: what it says, on a terminal and elsewhere, and that it asks no worker and harms no run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from orchestrator.cli.console.screen import ENTER, LEAVE
from orchestrator.hosts.ssh.dial import Direct, Relayed
from tests.cli_fixture import Tpujob, take_terminal
from tests.waiting import HANG_S, until

# Its chips and its host are played: else agents beside the job write these files.
JOB = """
name: fit
tpu_metrics: false
tpu: {zone: us-central1-a}
command: |
  for file in metrics:'{"step": 41, "loss": 0.25, "images_per_s": 120}' host:'{"cpu_percent": 12.5}' \\
    tpu-metrics:'{"hbm_used_bytes": [1, 4], "hbm_total_bytes": [16, 16], "duty_cycle_percent": [5, 80]}'; do
    echo "${file#*:}" >> "$TPUJOB_ARTIFACTS/${file%%:*}.jsonl"
  done
  echo trained; while [ ! -e ~/go ]; do sleep 0.1; done
"""


def touch(cli: Tpujob, name: str) -> None:
    for home in cli.state_dir.glob("vms/*/worker*/home"):
        (home / name).touch()


@pytest.fixture
def run(tpujob: Tpujob) -> Iterator[subprocess.Popen[str]]:
    """A run whose job has reported, and goes on until the test lets it end."""
    process = tpujob.start("run", tpujob.job(JOB), stderr=subprocess.STDOUT)
    tpujob.until("trained", process)
    yield process
    touch(tpujob, "go")
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def rows(tpujob: Tpujob, *options: str) -> list[dict[str, Any]]:
    done = tpujob("top", "--json", *options)
    assert done.returncode == 0, done.text
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def told(tpujob: Tpujob) -> dict[str, Any]:
    """The row of the run, once all that its job reported is in it."""
    return until(
        lambda: rows(tpujob)[0],
        "the row",
        lambda row: None not in (row["step"], row["hbm_percent"], row["cpu_percent"]),
    )


def test_json_has_what_a_run_does_and_what_it_costs(tpujob: Tpujob, run: subprocess.Popen[str]) -> None:
    row = told(tpujob)
    assert (row["kind"], row["name"], row["state"], row["cloud"]) == ("run", "fit", "running", "emulated")
    assert (row["step"], row["metric"], row["value"], row["rate"], row["rate_of"]) == (
        41,
        "loss",
        0.25,
        120.0,
        "images",
    )
    assert (row["hbm_percent"], row["duty_percent"], row["cpu_percent"]) == (25.0, 80.0, 12.5)
    assert 0 < row["usd_so_far"] < row["usd_at_most"] and tpujob.alive()[0].endswith(f"/{row['node']}")
    assert rows(tpujob, "--filter", "state=failed") == []


def test_the_same_is_said_after_the_end_from_what_was_collected(tpujob: Tpujob, run: subprocess.Popen[str]) -> None:
    told(tpujob)
    touch(tpujob, "go")
    run.communicate(timeout=HANG_S)
    (row,) = rows(tpujob)
    assert (row["state"], row["step"], row["hbm_percent"], row["cpu_percent"]) == ("succeeded", 41, 25.0, 12.5)
    assert [*tpujob.directory.glob("runs/*/logs/worker0.*.jsonl")] == [], "the copies are gone"


def test_without_a_terminal_it_is_printed_once(tpujob: Tpujob, run: subprocess.Popen[str]) -> None:
    told(tpujob)
    done = tpujob("top")
    (line,) = done.stdout.splitlines()
    assert line.split("\t")[0] == "fit" and "loss 0.25" in line and "\x1b" not in done.stdout
    assert tpujob("top", "--sort", "nonsense").returncode == 64


@pytest.mark.parametrize("option", [("--filter", "foo=3"), ("--sort", "cost"), ("--once",), ("--json",)])
def test_the_page_takes_no_option_that_it_would_drop(tpujob: Tpujob, option: tuple[str, ...]) -> None:
    done = tpujob("top", "--open", *option)
    assert done.returncode == 64 and "--open excludes" in done.stderr and option[0] in done.stderr


def test_no_worker_is_asked(tpujob: Tpujob, run: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told(tpujob)
    dialed: list[Any] = []
    for way in (Direct, Relayed):
        monkeypatch.setattr(way, "dial", lambda *_: dialed.append(1))
    assert rows(tpujob)[0]["step"] == 41 and dialed == []


def test_where_nothing_goes_on_it_says_so(tpujob: Tpujob) -> None:
    assert "nothing goes on; `tpujob list` shows what ended" in tpujob("top").stdout


def test_a_slice_of_up_is_a_row(tpujob: Tpujob) -> None:
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    (row,) = rows(tpujob)
    assert (row["kind"], row["name"], row["state"]) == ("slice", "mine", "READY") and row["until"] is not None
    assert tpujob("down", "mine").returncode == 0 and rows(tpujob) == []


class Top:
    """`tpujob top` on a terminal of its own, with 80 columns."""

    def __init__(self, cli: Tpujob, *options: str, begins: str = ENTER) -> None:
        self.ours, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), self.terminal)
        env = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "", "LINES": ""}
        self.process = cli.start(
            "top", *options, env=env, start_new_session=True, preexec_fn=take_terminal, text=False, **streams
        )
        self.seen = b""
        self.read(begins)

    def read(self, word: str) -> None:
        """Read on to these characters."""
        while word.encode() not in self.seen:
            assert select.select([self.ours], [], [], HANG_S)[0], f"{word!r} never came: {self.seen!r}"
            self.seen += os.read(self.ours, 4096)

    def shows(self, *words: str) -> list[str]:
        """Wait for a screen that has all these words, of those that come from now on; its lines."""
        self.seen = b""
        while True:
            self.read("arrows scroll")
            screen, _, self.seen = self.seen.rpartition(b"arrows scroll")
            text = screen.rpartition(b"\x1b[H")[2].decode()
            if all(word in text for word in words):
                return [line.removeprefix("\x1b[2K").rstrip("\r") for line in text.split("\n")]

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        self.type("q")
        self.read(LEAVE)
        code = self.process.wait(HANG_S)
        assert termios.tcgetattr(self.terminal) == self.before
        return code

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.terminal)


@pytest.fixture
def tops(tpujob: Tpujob) -> Iterator[list[Top]]:
    """Two of them."""
    made = [Top(tpujob), Top(tpujob)]
    yield made
    for each in made:
        each.close()


def test_a_condition_that_no_row_can_meet_is_refused_before_the_terminal_is_taken(
    tpujob: Tpujob, run: subprocess.Popen[str]
) -> None:
    refused = Top(tpujob, "--filter", "nope=1", begins="no column `nope`")
    assert refused.process.wait(HANG_S) == 64 and ENTER.encode() not in refused.seen
    refused.close()


def test_two_of_them_follow_a_run_by_keys_and_leave_their_terminals_as_they_were(
    tpujob: Tpujob, run: subprocess.Popen[str], tops: list[Top]
) -> None:
    for each in tops:
        lines = each.shows("asked the API at", "loss 0.25", "41")
        assert max(map(len, lines)) <= 80 and "EMULATED" in lines[0]
    one, other = tops
    one.type("s")
    one.shows("by state")
    one.type("/job=nothing")
    one.read("filter: job=nothing")
    one.type("\r")
    one.shows("no row meets the conditions")
    one.type("\x1b")
    one.shows("fit")
    assert one.end() == 0
    touch(tpujob, "go")
    other.shows("succeeded", "ago")
    assert other.end() == 0


def test_it_has_no_connection_but_to_the_api_and_its_death_leaves_the_run_alone(
    tpujob: Tpujob, run: subprocess.Popen[str], tops: list[Top]
) -> None:
    api = urlsplit(tpujob.emulator.endpoint.url).port
    for each in tops:
        each.shows("asked the API at", "loss 0.25")
        peers = {way.raddr.port for way in psutil.Process(each.process.pid).net_connections() if way.raddr}
        assert peers <= {api}
        each.process.send_signal(signal.SIGKILL)
        assert each.process.wait(HANG_S) == -signal.SIGKILL
    assert run.poll() is None and told(tpujob)["state"] == "running"


def test_a_run_that_was_killed_is_finished_beside_the_table_and_has_its_page(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(JOB), stderr=subprocess.STDOUT)
    tpujob.until("trained", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shown = Top(tpujob)
    try:
        shown.shows("interrupted")
        until(lambda: [*tpujob.directory.glob("runs/*/report.html")], "the page")
        assert shown.end() == 0 and tpujob.alive() == []
    finally:
        shown.close()


def test_ctrl_c_ends_it_and_not_the_run(tpujob: Tpujob, run: subprocess.Popen[str], tops: list[Top]) -> None:
    one, _ = tops
    one.shows("loss 0.25")
    one.type("\x03")
    one.read(LEAVE)
    assert one.process.wait(HANG_S) == 130 and termios.tcgetattr(one.terminal) == one.before
    assert run.poll() is None


def test_a_start_that_fails_since_the_chips_are_busy_names_who_holds_them(
    tpujob: Tpujob,
) -> None:
    said = {"chips": {"worker": 0, "workers": 1, "use": "busy", "text": "process 7 (sleep 1234) holds a chip"}}
    job = f"name: fit\ntpu: {{zone: us-central1-a}}\ncommand: |\n  echo '{json.dumps(said)}' "
    assert tpujob("run", tpujob.job(job + '>> "$TPUJOB_ARTIFACTS/tpu-metrics.jsonl"; exit 7\n')).returncode == 7
    assert "process 7 (sleep 1234) holds a chip" in rows(tpujob)[0]["remark"]
    assert "fit: " in tpujob("top").stdout
