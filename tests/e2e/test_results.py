"""Results beyond any cap, results that do not fit, and the slice that is held for them until `tpujob collect` was there."""

import errno
import html
import json
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from orchestrator.hosts.transfer import collect, places
from orchestrator.report.rows import collected, costs
from tests.cli_fixture import Said, Tpujob, in_ci, press
from tests.faults.world import is_stopped
from tests.waiting import until

JOB = """
name: big
tpu: {zone: us-central1-a}
command: |
  echo small > "$TPUJOB_ARTIFACTS/a"
  head -c 3000000 /dev/zero > "$TPUJOB_ARTIFACTS/b"
  echo small > "$TPUJOB_ARTIFACTS/c"
  exit ${RC:-0}
"""
WORK = "worker0/work"
DEEP = "/".join("d" * 150)
ODD = {
    "best.pt": "0",
    "Model.pt": "1",
    "model.pt": "2",
    "a\\b": "3",
    "a\tb\nc.pt": "4",
    "a\udcffb": "5",
    f"{DEEP}/x": "6",
}
NAMED = rf"""
name: named
command: |
  cd "$TPUJOB_ARTIFACTS"
  echo 0 >../best; ln -s "$PWD/../best" best.pt
  echo 1 >Model.pt; echo 2 >model.pt; echo 3 >'a\b'; echo 4 >$'a\tb\nc.pt'; echo 5 >$'a\xffb'; mkdir -p {DEEP}; echo 6 >{DEEP}/x
  mkdir run-1; ln -s run-1 latest-run; ln -s gone dangling; mkfifo pipe; python3 -c 'import socket; socket.socket(1).bind("s")'
  echo '{{"name": "an app of its own"}}' >manifest.json
  ${{LAST:-true}}
"""
ON_TPU = "tpu: {zone: us-central1-a}\n"
KEPT_BACK = (
    f"{ON_TPU}name: limited\nlimits: {{max_results: 1KB}}\ncommand: 'cd $TPUJOB_ARTIFACTS; echo 1 >a; seq 999 >b'\n"
)
CHATTY = "name: chatty\nlimits: {max_log: 1MB}\nsetup: yes | head -c 2000000\n"
CHATTY += "command: 'echo begin; yes | head -c 20000000; echo the end; exit 7'\n"
FAILING = JOB.replace("${RC:-0}", "7")
SMALL_DISK = 1 << 20


@contextmanager
def no_file_larger_than(size_bytes: int) -> Iterator[None]:
    """A disk that is full in the middle of a file: the kernel says so to a write of ours (EFBIG)."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def run_on_a_full_disk(tpujob: Tpujob, job: str = JOB) -> Said:
    with no_file_larger_than(SMALL_DISK):
        return tpujob("run", tpujob.job(job))


MEASURED = {"packages.json", "host.jsonl"}  # by tpujob itself, in a job that runs long enough


def came(tpujob: Tpujob) -> set[str]:
    return {path.name for path in tpujob.directory.glob("runs/*/worker0/artifacts/*")} - MEASURED


def held_until(tpujob: Tpujob, how: str = "") -> float:
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert row["mode"] == "hold" and f"`tpujob collect {row['run']}{how}`" in row["remark"]
    return float(row["hold_until"])


@pytest.mark.parametrize("where", ["on: local\n", *in_ci(ON_TPU)], ids=["local", "slice"])
def test_a_log_beyond_its_bound_keeps_both_ends_and_says_what_is_left_out(tpujob: Tpujob, where: str) -> None:
    done = tpujob("run", tpujob.job(where + CHATTY))
    assert done.returncode == 7, done.stderr
    (path,) = tpujob.directory.glob("runs/*/logs/worker0.log")
    assert path.stat().st_size <= 1_000_100
    beginning, size, end = re.split(r"\n?tpujob: (.*) of the log left out here \(limits.max_log\)\n", path.read_text())
    assert 450_000 < len(beginning) <= 500_000 and end.endswith("y\nthe end\n") and re.fullmatch(r"2[01]\.\d MB", size)
    assert tpujob("logs").stdout.endswith("worker0 | y\nworker0 | the end\n")


def test_a_disk_that_is_full_costs_no_results_and_collect_gets_them_once_there_is_room(tpujob: Tpujob) -> None:
    done = run_on_a_full_disk(tpujob)
    assert done.returncode == 65, done.text
    (run,) = re.findall(r"RESULTS NOT COLLECTED: (\w+)", done.stderr)
    assert f"`tpujob collect {run}`" in done.stderr and "about $9.60/h" in done.stderr, done.stderr
    assert "artifacts/b: File too large" in done.stderr and "keeps the results until" in done.stdout
    assert came(tpujob) == {"a"} and len(tpujob.alive()) == 1
    until_then = held_until(tpujob)
    with no_file_larger_than(SMALL_DISK):
        again = tpujob("collect", run)
    assert again.returncode == 65 and held_until(tpujob) == until_then, again.text
    home = tpujob("collect", run)
    assert home.returncode == 0 and "absent (checked" in home.stdout, home.text
    assert came(tpujob) == {"a", "b", "c"} and tpujob.alive() == []
    shown = tpujob.only_run()
    assert (shown["state"], shown["lease"]["state"]) == ("succeeded", "gone")
    idle = tpujob("collect", run)
    assert idle.returncode == 0 and "all results are collected" in idle.stdout


@pytest.mark.parametrize("how", ["run", "local", *in_ci("detached", "failed")])
def test_results_of_any_name_come_and_what_is_no_file_is_a_note(tpujob: Tpujob, how: str) -> None:
    job = NAMED.replace("${LAST:-true}", "exit 7") if how == "failed" else NAMED
    path = tpujob.job(job + ("on: local\n" if how == "local" else ON_TPU))
    if how == "detached":
        submitted = tpujob("submit", path)
        assert submitted.returncode == 0, submitted.text
        done = tpujob("attach", "named")
    else:
        done = tpujob("run", path, *(["--keep-on-failure", "10m"] if how == "failed" else []))
    assert done.returncode == (7 if how == "failed" else 0), done.text
    (directory,) = tpujob.directory.glob("runs/*")
    shown, said = json.loads(tpujob("show", "named", "--json").stdout), tpujob("show", "named").stdout
    places = {row["path"]: row["place"] for row in shown["results"] if row["kind"] == "renamed"}
    of_worker = {f"artifacts/{name}": content for name, content in ODD.items()}
    assert places.keys() == {path for path in of_worker if "\n" in path or "\udcff" in path or DEEP in path}
    for path, content in of_worker.items():
        assert (directory / places.get(path, f"worker0/{path}")).read_text() == f"{content}\n"
    notes = {row["path"].removeprefix("artifacts/") for row in shown["results"] if row["kind"] == "note"}
    assert notes == {"latest-run", "dangling", "pipe", "s", "manifest.json"}
    for text in (done.stderr, said, html.unescape((directory / "report.html").read_text())):
        assert "a\\tb\\nc.pt is worker0/artifacts/a_b_c~" in text and "latest-run · a link to a directory" in text
    if how == "failed":
        assert tpujob("down", "named").returncode == 0
    assert tpujob.alive() == []


@pytest.mark.parametrize("how", ["run", "sweep", *in_ci("detached", "keep_on_failure", "failing sweep")])
def test_a_result_that_cannot_be_stored_keeps_the_slice_as_any_that_is_not_collected(tpujob: Tpujob, how: str) -> None:
    sweep = "matrix: {x: [1, 2]}\nenv: {X: '${params.x}'}\n"
    more = {"sweep": sweep, "failing sweep": sweep, "keep_on_failure": "keep_on_failure: 10m\n"}.get(how, "")
    job = KEPT_BACK.replace(">b'", ">b; exit 7'") if how == "failing sweep" else KEPT_BACK
    path = tpujob.job(job + more)
    if how == "detached":
        assert tpujob("submit", path).returncode == 0
    done = tpujob("attach", "limited") if how == "detached" else tpujob("run", path)
    assert done.returncode == 65, done.text
    assert "   missing     worker0: artifacts/b: 4 KB more than the 1 KB of limits.max_results" in done.stderr
    assert tpujob.lived() == 1 and "tpujob collect" in done.stderr and len(tpujob.alive()) == 1
    held_until(tpujob)
    (run,) = re.findall(r"RESULTS NOT COLLECTED: (\w+)", done.stderr)
    shown = json.loads(tpujob("show", run, "--json").stdout)
    assert [(row["kind"], row["path"]) for row in shown["results"]] == [("missing", "artifacts/b")]
    assert came(tpujob) == {"a"} and tpujob("down", "--all").returncode == 0


def test_on_this_machine_it_stays_where_the_job_made_it(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(KEPT_BACK.replace(ON_TPU, "on: local\n")))
    assert done.returncode == 65 and "missing  worker0: artifacts/b" in done.stderr, done.text
    assert len(list(tpujob.own_state.glob("left/*/artifacts/b"))) == 1


def test_a_sweep_goes_on_after_a_variant_whose_results_are_damaged(tpujob: Tpujob) -> None:
    manifest = '{"schema": 1, "files": [{"path": "gone", "size_bytes": 1, "sha256": ""}]}'
    command = f"  : ${{params.x}}; echo '{manifest}' >$TPUJOB_ARTIFACTS/manifest.json\n"
    job = f"{ON_TPU}name: damaged\nmatrix: {{x: [1, 2]}}\ncommand: |\n{command}"
    done = tpujob("run", tpujob.job(job))
    assert done.returncode == 65 and "kept" not in done.stderr, done.text
    assert (tpujob.lived(), tpujob.alive()) == (1, []) and len(list(tpujob.directory.glob("runs/*/worker0"))) == 2


def test_the_results_of_a_failed_job_are_wanted_too_and_its_own_code_comes_with_them(tpujob: Tpujob) -> None:
    done = run_on_a_full_disk(tpujob, FAILING)
    assert done.returncode == 7 and "RESULTS NOT COLLECTED" in done.stderr, done.text
    assert tpujob("collect", "big").returncode == 7
    assert came(tpujob) == {"a", "b", "c"} and tpujob.alive() == []


def test_what_does_not_fit_is_not_begun_and_the_rest_comes(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(places.shutil, "disk_usage", lambda path: SimpleNamespace(free=places.RESERVED_BYTES + 1000))
        done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 65 and "artifacts/b: no room for 3.0 MB" in done.stderr, done.text
    assert came(tpujob) == {"a", "c"}
    assert tpujob("down", re.findall("tpujob down (\\S+)`", done.stderr)[0]).returncode == 0
    lost = tpujob("collect", "big")
    assert lost.returncode == 65 and "no results are left to collect" in lost.stdout and "absent" in lost.stdout


def test_a_jobs_own_limit_can_be_lifted_for_what_it_kept_back(tpujob: Tpujob) -> None:
    limited = tpujob.job(JOB + "limits: {max_results: 1MB}\n")
    assert "collects 1.0 MB of results at most" in tpujob("plan", limited).stderr
    done = tpujob("run", limited)
    assert done.returncode == 65 and came(tpujob) == {"a", "c"}, done.text
    assert tpujob("collect", "big").returncode == 65
    assert tpujob("collect", "big", "--max-results", "lots").returncode == 64
    assert tpujob("collect", "big", "--max-results", "none").returncode == 0
    assert came(tpujob) == {"a", "b", "c"} and tpujob.alive() == []


@pytest.mark.exhaustive
def test_who_collects_may_be_interrupted_or_killed_and_the_slice_stays_held(tpujob: Tpujob) -> None:
    run_on_a_full_disk(tpujob)
    until_then = held_until(tpujob)
    other = tpujob("run", tpujob.job("name: other\ntpu: {zone: us-central1-a}\ncommand: echo hi\n", "other.yaml"))
    assert other.returncode == 0 and "the held slice of `tpujob up`" not in other.stderr, other.text
    paused = tpujob.start("collect", "big", env={"TPUJOB_CRASH_AT": "WaitForCollection:1:before:STOP"})
    until(lambda: is_stopped(paused.pid), "the moment before the results are looked for")
    second = tpujob("collect", "big")
    assert second.returncode == 64 and "another process is collecting the results of" in second.stderr
    press(paused)
    press(paused, signal.SIGCONT)
    paused.communicate()
    assert paused.returncode == 130 and held_until(tpujob) == until_then
    killed = tpujob.start("collect", "big", env={"TPUJOB_CRASH_AT": "WaitForCollection:1:before"})
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and held_until(tpujob) == until_then
    assert tpujob("collect", "big").returncode == 0
    assert came(tpujob) == {"a", "b", "c"} and tpujob.alive() == []


WRITES = """
name: writes
command: |
  mkdir -p checkpoints; echo best >checkpoints/best.pt; head -c 3000000 /dev/zero >checkpoints/large
  echo a >"$TPUJOB_ARTIFACTS/a"
  echo $(cat notes) >>notes; echo home >~/model.keras; echo s >.env; ${LAST:-true}
"""


@pytest.mark.parametrize("how", ["run", "local", "held", *in_ci("detached", "failed", "only")])
def test_what_a_job_writes_beside_its_artifacts_comes_home(tpujob: Tpujob, how: str) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "notes").write_text("shipped")
    (tpujob.directory / "code" / "untouched").write_text("shipped")
    last, keys = {"failed": "exit 7"}.get(how, "true"), {"only": "artifacts: [only, notes, '*.gone']\n"}.get(how, "")
    place = "on: local\n" if how == "local" else ON_TPU
    path = tpujob.job(WRITES.replace("${LAST:-true}", last) + keys + place + "code: code\n")
    if how == "detached":
        assert tpujob("submit", path).returncode == 0
    if how == "held":
        assert tpujob("up", "held", "--zone", "us-central1-a").returncode == 0
        before = "name: before\ncommand: echo b >~/before\nartifacts: only\n" + ON_TPU
        assert "result   succeeded · no artifacts\n" in tpujob("run", tpujob.job(before, "b.yaml")).stdout
    done = tpujob("attach", "writes") if how == "detached" else tpujob("run", path)
    assert done.returncode == (7 if how == "failed" else 0), done.text
    (directory,) = tpujob.directory.glob("runs/writes-*")
    came = {
        str(path.relative_to(directory))
        for path in directory.glob("worker0/**/*")
        if path.is_file() and path.name not in MEASURED
    }
    beside = {f"{WORK}/checkpoints/best.pt", f"{WORK}/checkpoints/large", f"{WORK}/notes"}
    home = set() if how == "local" else {"worker0/home/model.keras"}
    assert came == {"worker0/artifacts/a"} | ({f"{WORK}/notes"} if how == "only" else beside | home)
    warned = "warning  `artifacts: *.gone` matches no file" in done.stderr
    assert warned is (how == "only") and (".env · not collected: it looks like" in done.stderr) is (how != "only")
    files = "files in .*" * (how != "only")
    assert re.search(f"{files}, all hashes match, in runs/{directory.name}/worker0/\n", done.stdout), done.text
    page = html.unescape((directory / "report.html").read_text())
    assert (f'{WORK}/checkpoints/best.pt"' in page) is (how != "only")
    assert tpujob("down", "--all").returncode == 0 and tpujob.alive() == []


@pytest.mark.parametrize("gone", [False, *in_ci(True)])
def test_what_is_too_much_beside_the_artifacts_waits_on_the_slice_and_comes_to_another_disk(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(collect, "MOST_BESIDE", 1_000_000)
    monkeypatch.setattr(costs, "between", lambda usd_per_hour, since, until: max(until - since, 0.0))
    done = tpujob("run", tpujob.job(WRITES.replace("${LAST:-true}", "head -c 2000000 /dev/zero >more") + ON_TPU))
    assert done.returncode == 0 and len(tpujob.alive()) == 1, done.text
    left, disk = "checkpoints/large (3.0 MB on worker0", tpujob.directory / "disk"
    assert f"left     {left})" in done.stderr and "--work" in done.stderr
    assert held_until(tpujob, " --work") and tpujob("collect", "writes", "--to", "x").returncode == 64
    (tpujob.directory / "of-another" / "worker0").mkdir(parents=True)
    (tpujob.directory / "of-another" / "worker0" / "more").touch()
    refused = tpujob("collect", "writes", "--work", "--to", "of-another")
    assert refused.returncode == 64 and "of-another has files that are not known as this run's" in refused.stderr
    with monkeypatch.context() as full:
        full.setattr(collected, "fetch", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        warned = tpujob("collect", "writes", "--work", "nothing/*", "--to", "elsewhere")
    assert warned.returncode == 0 and "results.json cannot be written: No space left" in warned.stderr
    first = tpujob("collect", "writes", "--work", "more", "--to", str(disk))
    assert "1 file, 2.0 MB in " in first.stderr and (disk / ".gitignore").read_text().startswith("# of tpujob")
    other = tpujob("collect", "writes", "--work", "nothing/*")
    assert other.returncode == 0 and len(tpujob.alive()) == 1 and "more (" not in other.stderr, other.text
    assert "--work matches no file of the job" in other.stderr and f"left     {left})" in other.stderr
    how = ("down", "--all") if gone else ("collect", "writes", "--work", "checkpoints/*", "--to", str(disk))
    last = tpujob(*how)
    assert last.returncode == 0 and (gone or (disk / WORK / "checkpoints/large").stat().st_size == 3_000_000)
    assert gone or re.findall("cost .* emulated", last.stdout)[0] in tpujob("show").stdout, last.text
    again = tpujob("collect", "writes")
    assert again.returncode == (65 if gone else 0) and ("all results are collected" in again.stdout) is not gone
    assert "succeeded · 1 artifact, 2 bytes · 3 files in home/ and work/" in again.stdout and str(disk) in again.stderr
    for said in (again.stderr, tpujob("show").stdout):
        assert "left  " not in said and (f"lost     {left}: gone with its slice at " in said) is gone, said
    assert tpujob.only_run()["lease"]["state"] == "gone"


@pytest.mark.parametrize("how", ["keep", *in_ci("sweep")])
def test_what_is_left_is_fetched_from_a_kept_slice_and_ends_the_lane_of_a_sweep(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(collect, "MOST_BESIDE", 1_000_000)
    sweep = "matrix: {x: [1, 2, 3]}\nenv: {X: '${params.x}'}\n" if how == "sweep" else ""
    done = tpujob("run", tpujob.job(WRITES + ON_TPU + sweep), *(["--keep", "1h"] if how == "keep" else []))
    assert tpujob.lived() == 1 and len(tpujob.alive()) == 1, done.text
    if how == "keep":
        fetched = tpujob("collect", "writes", "--work")
        assert fetched.returncode == 0 and len(tpujob.alive()) == 1, fetched.text
        assert len(list(tpujob.directory.glob(f"runs/*/{WORK}/checkpoints/large"))) == 1
    else:
        assert "its slice is kept for its results" in done.stderr
    assert tpujob("down", "--all").returncode == 0


@pytest.mark.parametrize("copied", [True, None, *in_ci(False)])  # None: nothing was there when it was copied
def test_what_a_job_has_written_is_here_when_its_command_is_interrupted(tpujob: Tpujob, copied: bool | None) -> None:
    endless = "sleep 0.2; echo last >last; echo ready; sleep 3600"
    job = WRITES.replace("${LAST:-true}", endless) + ON_TPU + ("copy_while_running: false\n" if copied is False else "")
    job = "name: writes\ncommand: echo ready; sleep 3600\n" + ON_TPU if copied is None else job
    running = tpujob.start("run", tpujob.job(job))
    until(lambda: "ready" in "".join(path.read_text() for path in tpujob.directory.glob("runs/*/logs/*")), "the job")
    if copied is None:
        until(lambda: [*tpujob.directory.glob("runs/*/saved/worker0")], "a copy of nothing")
        ended = tpujob("cancel", "writes")
        assert "lost     what the job wrote is not collected" in ended.stderr and "saved" not in ended.stderr
    else:
        press(running)
    _, err = running.communicate()
    assert running.returncode == (71 if copied is None else 130) and tpujob.alive() == []
    saved = {path.name for path in tpujob.directory.glob("runs/*/saved/worker0/**/*") if path.is_file()} - MEASURED
    assert saved == ({"best.pt", "large", "a", "notes", "model.keras", "last"} if copied else set())
    for said in (err, tpujob("show", "writes").stdout):
        assert bool(re.search(r"had written .*, at 20.*Z: \d files, 3.0 MB in .*saved/", said)) is bool(copied)
        assert ("what the job wrote was not copied, and is gone with its slice" in said) is (copied is False)
        assert bool(re.search("what the job wrote after 20.*Z, .*, is gone with its slice", said)) is (copied is None)
