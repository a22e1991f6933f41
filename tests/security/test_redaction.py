"""Secrets stay out of what is shown and stored, however they are written, and out of every process's arguments."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_tpu_emulator.daemon import control
from orchestrator.cli.console import output
from orchestrator.job.rules.env import secret_sources, secret_values
from orchestrator.text import redaction
from orchestrator.text.redaction import HELD_BYTES, MASK, MAX_KEY_BYTES, RedactedStream, Redactor
from orchestrator.text.terminal import harmless_lines
from tests.cli_fixture import Tpujob
from tests.disk import holding, on_disk
from tests.waiting import until

SECRET = 'p@ss/wörd+"x\\y 1'
TOKEN = "s3cr3t-s3cr3t-s3cr3t"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEpAIBAAKCAQEA1234567890abcdefghijklmnopqrstuvwxyz\n" * 20
    + "-----END RSA PRIVATE KEY-----"
)

WRITTEN = {
    "plain": SECRET,
    "within": f"<{SECRET}>",
    "json": json.dumps({"password": SECRET}),
    "json-utf8": json.dumps({"password": SECRET}, ensure_ascii=False),
    "repr": f"KeyError({SECRET!r})",
    "url": f"https://x/?p={quote(SECRET, safe='')}&q",
    "url-path": f"https://x/{quote(SECRET)}",
    "url-lower": re.sub("%..", lambda escape: escape[0].lower(), quote(SECRET, safe="")),
    "form": quote_plus(SECRET),
    "hex": SECRET.encode().hex(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "basic-auth": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "basic-auth-2": base64.b64encode(f"me:{SECRET}".encode()).decode(),
    "basic-auth-3": base64.b64encode(f"you:{SECRET}\n".encode()).decode(),
    "base64-url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_known_value_is_hidden_in_every_spelling(text: str) -> None:
    hidden = Redactor([SECRET]).hide(text)
    assert MASK in hidden
    left = hidden.replace(MASK, "")
    assert not any(text[start : start + 10] in left for start in range(3, len(text) - 10) if SECRET in text)
    assert len(left) <= len(text) - 15


SHAPES = {
    "oauth": "ya29.a0AfH6SMBx-yz_1",
    "api-key": "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "github": "ghp_0123456789abcdefghijABCDEFGHIJ",
    "bearer": "Bearer abc.def-0123456789xyz",
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2lnbmF0dXJl",
    "pem": PEM,
    "pem-json": json.dumps(PEM)[1:-1],
    "pem-unended": PEM.rpartition("\n")[0],
}


@pytest.mark.parametrize("secret", SHAPES.values(), ids=SHAPES.keys())
def test_what_looks_like_a_secret_is_hidden_though_nobody_named_it(secret: str) -> None:
    hidden = Redactor().hide(f"before ({secret}) after")
    assert hidden == f"before ({MASK}) after"


@pytest.mark.parametrize("text", [
    "task-1 disk-usage high", "Bearer of news", "loss=0.123 step 12", "-----BEGIN CERTIFICATE-----", "eyJ", "ünïcödé ✓",
    "",
])  # fmt: skip
def test_what_only_resembles_a_secret_is_left_alone(text: str) -> None:
    assert Redactor([SECRET]).hide(text) == text


def test_short_values_and_public_variables_hide_nothing() -> None:
    assert Redactor(["", "  ", "short"]).hide("a short text") == "a short text"
    env = {"A": "${env:HOME}/x", "B": "${env:MINE}", "PASSWORD": "hunter2", "C": "plain"}
    assert list(secret_values(env, {"HOME": "/home/me", "MINE": "mine-mine"})) == ["mine-mine", "hunter2"]
    assert secret_sources(env) == ["MINE"]


TEARS = ["\x1b[0m", "\x1b[31m\x1b[1m", "\x00", "\u200b", "\x1b]0;title\x07", "\x1b\x1b[0m[31m", "\x9b2J", "\u202e"]
TEARS += ["\u00ad", "\u034f\x00", "\ufe0f", "\U000e0041"]  # seen in no terminal, and some are parts of other text


@given(st.lists(st.sampled_from(["", "", *TEARS]), min_size=len(SECRET) + 1, max_size=len(SECRET) + 1))
def test_a_value_in_pieces_is_hidden_before_and_after_cleaning(tears: list[str]) -> None:
    secrets, after = Redactor([SECRET.replace("w", "w\ufe0f")]), tears[len(SECRET) - 1]
    torn = "é\x1b[1m<" + "".join(chain.from_iterable(zip(SECRET, tears, strict=False))) + ">\x1b[0m\nnext"
    assert secrets.hide(torn) == f"é\x1b[1m<{MASK}{after}>\x1b[0m\nnext"
    assert (
        secrets.hide(harmless_lines(torn))
        == harmless_lines(secrets.hide(torn))
        == harmless_lines(f"é<{MASK}{after}>\nnext")
    )


def test_of_a_line_with_colors_it_is_found_out_once_what_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    colors = Mock(wraps=redaction.COLORS)
    monkeypatch.setattr(redaction, "COLORS", colors)
    assert Redactor([TOKEN]).hide("\x1b[1m" + f"{TOKEN} " * 9) == "\x1b[1m" + f"{MASK} " * 9
    assert colors.finditer.call_count == 1


@given(
    st.lists(st.sampled_from(["\x1b[32m", "\ufeff", "é", "\n", "\x1b]0;title", "\x1b\\", TOKEN, TOKEN[:9], TOKEN[9:]]))
)
def test_of_many_lines_only_those_with_a_secret_change(parts: list[str]) -> None:
    text = "".join(parts)
    hidden = Redactor([TOKEN]).hide(text)
    assert TOKEN not in hidden + harmless_lines(hidden)
    kept = [line for line in text.split("\n") if TOKEN not in line + harmless_lines(line)]
    assert [line for line in hidden.split("\n") if MASK not in line] == kept


def test_values_that_overlap_leave_nothing_of_either() -> None:
    assert Redactor(["abcdef", "abcdef-123456", "f-123456-xyz"]).hide("<abcdef-123456-xyz>") == f"<{MASK}>"


def test_of_a_value_with_several_lines_every_line_is_hidden() -> None:
    first, second = "first-line-of-it", "second-line-of-it"
    hidden = Redactor([f"{first}\n{second}\n"]).hide(f"a {first}\nb {second}")
    assert hidden == f"a {MASK}\nb {MASK}"


LOG = f"start\n{TOKEN}\nmiddle {TOKEN} end\r 10 %\r 20 % {TOKEN}\n{PEM}\nBearer abcdefghijklmnop0123\nlast {TOKEN}".encode()


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return (data[start:end] for start, end in pairwise(places))


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_however_a_stream_is_cut_nothing_of_a_secret_gets_through_and_all_else_does(cuts: list[int]) -> None:
    secrets = Redactor([TOKEN])
    stream = RedactedStream(secrets)
    shown = b"".join([*(stream.feed(piece) for piece in pieces(LOG, cuts)), stream.flush()])
    assert shown == secrets.hide_bytes(LOG)
    assert TOKEN.encode() not in shown and b"MIIE" not in shown


def test_a_line_comes_at_once_when_it_ends() -> None:
    stream = RedactedStream(Redactor([TOKEN]))
    assert stream.feed(b"one\ntwo") == b"one\n"
    assert stream.feed(b"\n 10 %\r 20 %") == b"two\n 10 %\r"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3 * HELD_BYTES), st.integers(1000, 40_000))
def test_in_a_line_without_end_memory_is_bounded_and_no_secret_gets_through(place: int, size: int) -> None:
    data = b"x" * place + TOKEN.encode() + b" ya29." + b"y" * 50 + b" " + b"z" * (3 * HELD_BYTES)
    secrets = Redactor([TOKEN])
    stream = RedactedStream(secrets)
    shown = b""
    for start in range(0, len(data), size):
        shown += stream.feed(data[start : start + size])
        assert len(stream._held) <= HELD_BYTES + size
    shown += stream.flush()
    assert shown == secrets.hide_bytes(data)


def test_a_key_that_never_ends_does_not_hold_the_log_back_for_ever() -> None:
    stream = RedactedStream(Redactor())
    body = b"MIIEpAIBAAKCAQEA1234567890abcdefghijklmnopqrstuvwxyz\n"
    shown = stream.feed(b"-----BEGIN PRIVATE KEY-----\n" + 20 * body)
    assert shown == b""
    shown = stream.feed(b"a line of the log\n" * (MAX_KEY_BYTES // 18 + 1))
    assert shown.startswith(MASK.encode()) and body not in shown and b"a line of the log\n" in shown


def test_the_search_stays_quick_where_a_log_is_made_to_be_slow() -> None:
    for line in (b"-----BEGIN PRIVATE KEY", b"Bearer ", b"eyJ", b"ya29.", b"-----BEGIN PRIVATE KEY-----\n", b"A" * 64):
        stream = RedactedStream(Redactor([TOKEN]))
        for _ in range(4):
            stream.feed((line * (HELD_BYTES // len(line))) + b"\n")
        stream.flush()


# -- the whole CLI ---------------------------------------------------------------------------------------------------

JOB = """
tpu: {zone: us-central1-a}
env: {TOKEN: "${env:MY_TOKEN}", PASSWORD: hunter2}
command: |
  echo "plain $TOKEN and $PASSWORD"
  printf %s "user:$TOKEN" | base64
  printf '\\e[1mhun\\e[0mter2 as the terminal shows it\\n'
  echo "{\\"$TOKEN\\": 1, \\"$PASSWORD/loss\\": 2, \\"loss\\": 3}" >$TPUJOB_ARTIFACTS/metrics.jsonl
  printf %s "$TOKEN" | cut -c 1-7 | tr -d '\\n'; sleep 0.2; printf %s "$TOKEN" | cut -c 8-
  printf %s "$TOKEN without a line end"
"""


def test_a_job_that_prints_its_secrets_prints_them_neither_here_nor_into_the_run_directory(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    said = tpujob("run", tpujob.job(JOB))
    assert said.returncode == 0, said.stderr
    lines = [line.removeprefix("worker0 | ") for line in said.stdout.splitlines() if line.startswith("worker0 | ")]
    assert lines[0] == f"plain {MASK} and {MASK}"
    assert MASK in lines[1]
    assert lines[2:] == [f"{MASK} as the terminal shows it", MASK, f"{MASK} without a line end"]
    (log,) = tpujob.directory.glob("runs/*/logs/worker0.log")
    stored = log.read_bytes()
    assert f"plain {MASK} and {MASK}\n".encode() in stored and b"ter2" not in stored
    _, cloud = tpujob.disks()
    for path, content in [*on_disk(tpujob.own_state), *on_disk(cloud)]:
        assert TOKEN.encode() not in content, path
    for form in (TOKEN.encode(), base64.b64encode(b"user:" + TOKEN.encode())[6:-4]):
        assert form not in stored and form not in said.text.encode()
    (log.parents[1] / "worker0" / "artifacts" / "metrics.json").write_text(json.dumps({TOKEN: {"a": TOKEN}}))
    assert MASK in tpujob("show", "--json").stdout and TOKEN not in tpujob("show", "--json").stdout
    (log.parents[1] / "worker0" / "artifacts" / "metrics.json").unlink()
    monkeypatch.delenv("MY_TOKEN")  # and no other command knows the secrets
    (run,) = json.loads(tpujob("list", "--json").stdout)[:1]
    assert tpujob("report", run["run"]).returncode == 0
    page, trace = (log.parents[1] / name for name in ("report.html", "trace.json"))
    told = [
        tpujob(*words, run["run"], *more).text
        for words in (["logs"], ["show"], ["compare"])
        for more in ([], ["--json"])
    ]
    for text in (*told, page.read_text(), trace.read_text()):
        assert TOKEN not in text and "hunter2" not in text
    assert all(f"{MASK}/loss" in text for text in (*told[2:], page.read_text()))


def test_the_traceback_of_a_bug_holds_no_secret(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.places.preparation import code

    def broken(*args: object) -> None:
        raise ValueError(f"cannot read {os.environ['MY_TOKEN']!r} or Bearer abcdefghijklmnop0123")

    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setenv("TMPDIR", str(tpujob.directory))
    monkeypatch.setattr(code, "check_directories", broken)
    said = tpujob("run", tpujob.job("env: {TOKEN: '${env:MY_TOKEN}'}\ncommand: ls\n"))
    assert said.returncode == 70 and f"a bug in tpujob: ValueError: cannot read '{MASK}' or {MASK}" in said.stderr
    (path,) = tpujob.directory.glob("tpujob-bug-*.txt")
    text = path.read_text()
    assert "Traceback" in text and "p@ss" not in text and "abcdefghijklmnop0123" not in text
    assert path.stat().st_mode & 0o777 == 0o600


def test_json_keeps_its_form_when_a_number_looks_like_a_secret(capfd: pytest.CaptureFixture[str]) -> None:
    output.console.cache_clear()
    output.console().secrets.add("123456", TOKEN)
    output.emit_json({"size_bytes": 1234567, "text": [f"a {TOKEN}"], TOKEN: None})
    assert json.loads(capfd.readouterr().out) == {"size_bytes": 1234567, "text": [f"a {MASK}"], MASK: None}
    output.console.cache_clear()


def test_the_emulators_token_is_never_shown(tpujob: Tpujob, capfd: pytest.CaptureFixture[str]) -> None:
    assert tpujob("run", tpujob.job("tpu: {zone: us-central1-a}\ncommand: ls\n")).returncode == 0
    output.console().notice("note", f"the token is {tpujob.emulator.token}")
    assert f"the token is {MASK}" in capfd.readouterr().err


def test_the_request_that_a_dry_run_prints_is_not_torn_by_the_search_for_secrets(tpujob: Tpujob) -> None:
    said = tpujob("up", "dry", "--zone", "us-central1-a", "--dry-run", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["body"]["metadata"]["ssh-keys"].startswith("tpujob:ssh-ed25519 ")
    assert MASK not in said.stdout


@pytest.mark.parametrize(("names", "are_of_secrets"), [
    ("TOKEN WANDB_API_KEY db_password AWS_SECRET_ACCESS_KEY X_PRIVATE_KEY", True),
    ("TOKENIZERS_PARALLELISM KEYBOARD SECRETARY EPOCHS", False),
])  # fmt: skip
def test_names_of_secrets_are_known(names: str, are_of_secrets: bool) -> None:
    assert {*map(redaction.is_secret_name, names.split())} == {are_of_secrets}


def test_whatever_a_token_begins_with_is_seen_by_the_search_for_a_single_byte() -> None:
    for byte, scout, tokens in redaction._GROUPS:
        for anchor in tokens:
            begin = anchor + (b"b-" if anchor == b"xox" else b"")
            assert byte in begin and re.search(scout, begin), anchor


HIDDEN = "s3cr3t-t0ken-that-nobody-may-see"
PASSWORD = "hunter2-hunter2"
SECRETIVE = """
name: secretive
tpu: {zone: us-central1-a, accelerator: v5litepod-8}
env: {TOKEN: "${env:MY_TOKEN}", PASSWORD: "${env:MY_PASSWORD}"}
setup: test -n "$TOKEN"
command: |
  test "$TOKEN" = "$(cat expected)"
  echo started
  while [ ! -e "$TPUJOB_ARTIFACTS/go" ]; do sleep 0.05; done
"""


class Watcher:
    """Reads the command line of every process of this machine, again and again."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def sees(self, program: bytes, words: bytes) -> list[bytes]:
        """Until it does: the lines of that program that have these words."""
        look = lambda: [line for line in self.seen.copy() if line.startswith(program) and words in line]  # noqa: E731
        return until(look, f"{program!r} with {words!r}")

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    self.seen.add((process / "cmdline").read_bytes())


def on_disks(tpujob: Tpujob, secret: str) -> list[Path]:
    """The files that hold it, here and in the cloud."""
    return [path for disk in tpujob.disks() for path in holding(disk, secret.encode())]


def test_no_secret_in_arguments_metadata_or_files(tpujob: Tpujob) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "expected").write_text(HIDDEN)
    job = tpujob.job(SECRETIVE + "code: code\n")
    with Watcher() as watcher:
        process = tpujob.start("run", job, env={"MY_TOKEN": HIDDEN, "MY_PASSWORD": PASSWORD})
        tpujob.until("started", process)
        watcher.sees(sys.executable.encode(), b"orchestrator.cli\0run")
        watcher.sees(b"sleep\0", b"0.05")

        endpoint = tpujob.emulator.endpoint
        nodes = control.request(endpoint, "GET", "/v2/projects/emulated/locations/us-central1-a/nodes")
        text = json.dumps(nodes)
        assert "ssh-ed25519" in text and "startup-script" in text, "the metadata is there to be looked at"
        for secret in (HIDDEN, PASSWORD, "PRIVATE KEY", endpoint.token):
            assert secret not in text
        requests = json.dumps(control.request(endpoint, "GET", "/_emulator/requests"))
        assert HIDDEN not in requests and PASSWORD not in requests

        shipped = on_disks(tpujob, HIDDEN)
        stored = hashlib.sha256(HIDDEN.encode()).hexdigest()
        assert {path.name for path in shipped} == {"expected", stored}, "what the person shipped, no more"
        assert on_disks(tpujob, PASSWORD) == []
        (artifacts,) = (tpujob.state_dir / "vms").glob("*/worker0/home/tpujob/runs/*/artifacts")
        (artifacts / "go").touch()
        out, err = process.communicate()
    assert process.returncode == 0, err
    for each in (HIDDEN, PASSWORD):
        assert not [line for line in watcher.seen if each.encode() in line]
        assert each not in out + err
    assert on_disks(tpujob, PASSWORD) == []


@pytest.mark.exhaustive
def test_a_secret_is_in_no_arguments_of_ssh_either(tpujob: Tpujob) -> None:
    """`tpujob ssh` becomes OpenSSH: it is told where the key lies, never what it is."""
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    wait = "echo started; until [ -e go ]; do sleep 0.05; done"
    with Watcher() as watcher:
        process = tpujob.start("ssh", "alice", "--", wait)
        tpujob.until("started", process)
        lines = watcher.sees(b"ssh\0", wait.encode())
        assert tpujob("ssh", "alice", "--", "touch go").returncode == 0
        process.communicate()
    assert all(b"PRIVATE KEY" not in line and b"-F\0" in line for line in lines)
    (key,) = (tpujob.directory / "state" / "leases").glob("*/id_ed25519")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert tpujob("down", "alice").returncode == 0
