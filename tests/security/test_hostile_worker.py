"""A job that took over its VM, and uses our own agent there to attack the machine that collects its artifacts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli_fixture import Said, Tpujob

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
command: python3 plant.py pack.py
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


def planted(tpujob: Tpujob, text: str, module: str = "pack.py") -> Said:
    """Run a job that puts the text in place of the module of the agent."""
    code = tpujob.directory / "code"
    code.mkdir(exist_ok=True)
    (code / module).write_text(text)
    (code / "plant.py").write_text(PLANTER)
    return tpujob("run", tpujob.job(JOB.replace("pack.py", module)))


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
    assert planted(tpujob, RECEIVER % asked, "receive.py").returncode == 0
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
    module = f"from .frames import reply\n\ndef hello():\n    reply({answer})\n"
    assert planted(tpujob, module, "presence.py").returncode == 0
    said = tpujob("run", "job.yaml")
    assert said.returncode == 71 and "worker0: an answer without an address and a port" in said.stderr, said.text
    assert tpujob("down", "mine").returncode == 0
