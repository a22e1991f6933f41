"""The files that the packer takes from a run, those that it refuses, and what a job wrote beside its artifacts."""

import errno
import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disk import calls_of_depth
from tests.unit.vm.conftest import PREFIX, Worker


@pytest.fixture
def run(worker: Worker) -> Path:
    path = worker.path()
    (path / "artifacts").mkdir(parents=True)
    (path / "work").mkdir()
    return path


def packed(worker: Worker, *patterns: str, wanted: str = "[[0, 1000000]]") -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the packed files by path, and the refused ones with the reason. The index must match the archive."""
    request = json.dumps({"attempt": "a1", "patterns": patterns})
    said = worker.output("pack", stdin=f"{request}\n{wanted}\n".encode())
    rows: list[dict[str, Any]] = []
    while not rows or "end" not in rows[-1]:
        line, _, said = said.partition(b"\n")
        rows.append(json.loads(line[len(PREFIX) :]))
    files = [row for row in rows if "sha256" in row]
    assert rows[-1]["end"] == len(files)
    came: dict[str, bytes] = {}
    for first, after in json.loads(wanted):
        for row in files[first:after]:
            came[row["path"]], said = said[: row["size_bytes"]], said[row["size_bytes"] :]
            assert row["sha256"] == hashlib.sha256(came[row["path"]]).hexdigest()
    assert said == b""
    return came, {row["path"]: row["why"] for row in rows if "why" in row}


def test_all_artifacts_and_the_matching_files_of_the_work_directory_come(worker: Worker, run: Path) -> None:
    (run / "artifacts" / "deep" / "er").mkdir(parents=True)
    (run / "artifacts" / "deep" / "er" / "model.pt").write_bytes(b"weights")
    (run / "work" / "out").mkdir()
    for name in ("a.png", "b.txt", "out/c.png"):
        (run / "work" / name).write_text(name)
    came, refused = packed(worker, "*.png", "out/*.png")
    assert came == {"artifacts/deep/er/model.pt": b"weights", "work/a.png": b"a.png", "work/out/c.png": b"out/c.png"}
    assert refused == {}


@pytest.mark.parametrize("pattern", ["**/*.png", "**", "out", "o*"])
def test_deep_patterns_and_directories_deeper_than_functions_may_call_each_other(run: Path, pattern: str) -> None:
    from orchestrator.vm.files import pack

    deep = "work/out" + 100 * "/x"
    (run / deep).mkdir(parents=True)
    (run / deep / "c.png").write_text("c")
    with calls_of_depth(60):
        found = list(pack.rows(str(run), [pattern]))
    assert [row["path"] for row in found] == [f"{deep}/c.png"]


@pytest.mark.parametrize("pattern", ["../../etc/*", "/etc/*", "a/../../*"])
def test_patterns_that_lead_out_are_refused(worker: Worker, run: Path, pattern: str) -> None:
    came, refused = packed(worker, pattern)
    assert came == {}
    assert list(refused.values()) == ["the pattern leads out of the work directory"]


def test_a_link_comes_as_the_file_that_it_names_wherever_that_is_and_any_other_harms_nothing(
    worker: Worker, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.vm.files import pack

    artifacts = run / "artifacts"
    for file in (artifacts / "step9.pt", run / "work" / "step8.pt", tmp_path / "outside"):
        file.write_bytes(b"weights")
    os.mkfifo(artifacts / "pipe")
    files: dict[str, str | Path] = {
        "latest.pt": "step9.pt",
        "of work": run / "work" / "step8.pt",
        "best.pt": tmp_path / "outside",
    }
    links = {"loop": "loop", "etc": "/etc", "run": ".", "nothing": "gone", "file/": "step9.pt/x", "null": "/dev/null"}
    links |= {"to pipe": "pipe", "environ": "/proc/self/environ", "kernel": "/sys/kernel/notes"}
    for name, target in (files | links).items():
        (artifacts / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as server, monkeypatch.context() as there:
        there.chdir(artifacts)  # a longer path is no address
        server.bind("socket")
    assert packed(worker)[0] == {f"artifacts/{name}": b"weights" for name in (*files, "step9.pt")}
    rows = {row["path"].removeprefix("artifacts/"): row for row in pack.rows(str(run), [])}
    assert {name: row["why"] for name, row in rows.items() if row.get("harmless")} == {
        **dict.fromkeys(("loop", "nothing", "file"), "a link to nothing"),
        **dict.fromkeys(("etc", "run"), "a link to a directory"),
        **dict.fromkeys(("pipe", "to pipe", "socket", "null", "environ", "kernel"), "not a regular file"),
    }


def test_a_link_to_a_directory_of_the_job_brings_what_comes_by_no_other_way(worker: Worker, run: Path) -> None:
    artifacts, work = run / "artifacts", run / "work"
    for directory in (work / "out", work / "wandb" / "run-1", artifacts / "v1"):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"weights")
    links = [(artifacts / "out", work / "out"), (work / "out" / "again", work / "out"), (artifacts / "all", work)]
    links += [(work / "wandb" / "latest", work / "wandb" / "run-1"), (artifacts / "v", artifacts / "v1")]
    for link, target in links:
        link.symlink_to(target)
    came, left = packed(worker, "wandb")
    assert came == dict.fromkeys(("artifacts/out/file", "artifacts/v1/file", "work/wandb/run-1/file"), b"weights")
    assert {*left} == {"artifacts/out/again", "artifacts/all", "work/wandb/latest", "artifacts/v"}


@pytest.mark.parametrize(("pattern", "place", "is_named"), [
    ("", "artifacts/deep", True), ("out", "work/out/deep", True), ("**", "work/out/deep", True),
    ("**/deep", "work/out/deep", True),
    ("out/deep/**/*.pt", "work/out/deep", True),
    ("**/deep/*.pt", "work/out/deep", True),
    ("out/**/*.pt", "work/out/deep", False),
    ("**/*.pt", "work/deep", False),
])  # fmt: skip
def test_a_directory_that_cannot_be_read_counts_where_a_pattern_names_it_or_takes_it_whole(
    run: Path, pattern: str, place: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.vm.files import pack

    (run / place).mkdir(parents=True)
    listed = os.listdir

    def refusing(directory: str) -> list[str]:
        if directory.endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(directory)

    monkeypatch.setattr(os, "listdir", refusing)
    named = [{"path": place, "why": "Permission denied"}]
    assert list(pack.rows(str(run), [pattern])) == (named if is_named else [])


@pytest.mark.parametrize("gone", ["0/b", "1"])
@pytest.mark.parametrize("pattern", ["artifacts", "work/*", "work/*/*", "work/**/[a-z]"])
def test_what_vanishes_while_it_is_looked_at_is_nothing_and_what_came_in_its_place_is_found(
    run: Path, pattern: str, gone: str
) -> None:
    from orchestrator.vm.files import pack

    top, _, inside = pattern.partition("/")
    for name in ("0/a", "0/b", "1/a"):
        (run / top / name).parent.mkdir(exist_ok=True)
        (run / top / name).write_bytes(b"x")

    def rotate(count: int) -> None:
        if count and (run / top / gone).exists():  # 0/a was read; what is to vanish was listed before
            (run / top / gone).rename(run / "elsewhere")
            (run / top / "2").mkdir()
            (run / top / "2" / "a").write_bytes(b"x")

    rows = list(pack.rows(str(run), [inside], rotate))
    left = {"0/b": ["0/a", "1/a", "2/a"], "1": ["0/a", "0/b", "2/a"]}[gone]
    assert sorted(row["path"] for row in rows if "sha256" in row) == [f"{top}/{name}" for name in left]
    assert len(rows) == 3, rows


@pytest.mark.parametrize("name", [b"Model.pt", b"a\\b", b"a\tb\nc", b"\xff\xfe", b"/".join([b"d" * 50] * 60)], ids=repr)
def test_a_file_of_any_name_comes(worker: Worker, run: Path, name: bytes) -> None:
    path = run / "artifacts" / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    (run / "artifacts" / "model.pt").write_text("y")
    came, refused = packed(worker)
    assert came == {f"artifacts/{os.fsdecode(name)}": b"x", "artifacts/model.pt": b"y"} and refused == {}


def test_patterns_never_go_through_a_link(worker: Worker, run: Path) -> None:
    (run / "work" / "etc").symlink_to("/etc")
    assert packed(worker, "etc/*", "**/passwd") == ({}, {})


def test_only_requested_files_are_sent(worker: Worker, run: Path) -> None:
    for number in range(9):
        (run / "artifacts" / f"f{number}").write_text("x")
    came, _ = packed(worker, wanted="[[0, 1], [3, 5], [8, 9]]")
    assert list(came) == [f"artifacts/f{number}" for number in (0, 3, 4, 8)]
    assert packed(worker, wanted="[]") == ({}, {})


def test_a_worker_that_hashes_a_large_file_sends_progress(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.vm.files import pack

    (large := run / "artifacts" / "large").write_bytes(bytes(3 << 20))
    assert next(pack.rows(str(run), [], lambda count: os.utime(large, (count, count))))["changing"]
    monkeypatch.setattr(pack, "SAY_EVERY_S", 0.0)
    (row,) = pack.rows(str(run), [], pack.ActivitySignal())
    assert row["size_bytes"] == 3 << 20 and "changing" not in row
    said = [json.loads(line.removeprefix("tpujob:")) for line in capfd.readouterr().out.splitlines()]
    assert said == [{"hashed": 0}, *[{"hashed": 1 << 20}] * 3], "of the directory, and of each piece"


def test_a_file_that_is_refused_for_its_size_is_not_read(run: Path) -> None:
    from orchestrator.vm.files import pack

    read: list[int] = []
    for name, size_bytes in (("large", 3 << 20), ("small", 10)):
        (run / "artifacts" / name).write_bytes(bytes(size_bytes))
    rows = pack.rows(str(run), [], read.append, lambda size_bytes: "too large" if size_bytes > 10 else None)
    assert {row["path"]: row.get("why") for row in rows} == {"artifacts/large": "too large", "artifacts/small": None}
    assert sum(read) == 10


def test_a_file_that_is_gone_or_shorter_when_its_turn_comes_is_filled_up_and_its_hash_tells(run: Path) -> None:
    from orchestrator.vm.files import pack

    for name in ("gone", "longer", "pipe", "short", "unreadable"):
        (run / "artifacts" / name).write_bytes(b"x" * 1000)
    files = list(pack.rows(str(run), []))
    for name in ("gone", "pipe", "unreadable"):
        (run / "artifacts" / name).unlink()
    os.mkfifo(run / "artifacts" / "pipe")
    (run / "artifacts" / "unreadable").symlink_to("/proc/self/mem")  # EIO, as from a damaged disk
    (run / "artifacts" / "short").write_bytes(b"x")
    (run / "artifacts" / "longer").write_bytes(b"x" * 1001)
    came = {row["path"]: b"".join(pack.content(str(run / row["path"]), row["size_bytes"])) for row in files}
    assert came == {
        "artifacts/gone": bytes(1000),
        "artifacts/longer": b"x" * 1000,
        "artifacts/pipe": bytes(1000),
        "artifacts/short": b"x" + bytes(999),
        "artifacts/unreadable": bytes(1000),
    }


@pytest.mark.parametrize("size_bytes", [0, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_file_of_any_size_comes_with_its_hash(worker: Worker, run: Path, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    (run / "artifacts" / "data").write_bytes(data)
    assert packed(worker)[0] == {"artifacts/data": data}


def test_nothing_to_pack_is_an_empty_stream(worker: Worker, run: Path) -> None:
    assert packed(worker, "*.png") == ({}, {})


ABOVE = {"above/data/a", "above/b", "home/tpujob/runs/c", "home/tpujob/x/d"}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


Rows = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def rows(worker: Worker) -> Rows:
    """Run a job over what lies in its directory and its home already, and return the rows of what lies beside by path."""
    work = worker.path("work")
    work.mkdir(parents=True)
    worker.path("artifacts").mkdir()
    worker.env["TPUJOB_EMULATED_TRAINING"] = ""  # what other programs of this machine write to /tmp is not looked at

    def answer(script: str, *patterns: str, **more: Any) -> dict[str, dict[str, Any]]:
        if not worker.path("main").exists():
            worker.start(script)
            worker.ended()
        request = json.dumps({"attempt": "a1", "patterns": patterns, "beside": {"most_bytes": None, **more}})
        lines = worker.output("pack", stdin=f"{request}\n[]\n".encode()).splitlines()
        found = [json.loads(line[len(PREFIX) :]) for line in lines]
        return {row["path"]: row for row in found if row.get("beside")}

    return answer


@pytest.mark.parametrize(("script", "found"), [
    ("mkdir -p checkpoints/a && echo new >checkpoints/a/best.pt", {"work/checkpoints/a/best.pt"}),
    ("echo new >../../../../model.keras", {"home/model.keras"}),
    ("mkdir ../data ../../../x; tee ../data/a ../b ../../c ../../../x/d <train.py", ABOVE),
    ("echo more >>train.py", {"work/train.py"}),
    ("sleep 0.01; printf 'same size' >train.py", {"work/train.py"}),
    ("chmod 600 train.py; touch -r train.py train.py", set()),
    ("cp train.py other && mv other train.py", {"work/train.py"}),
    ("mv train.py renamed.py", {"work/renamed.py"}),
    ("rm -rf ../work ../artifacts; echo new >~/kept", {"home/kept"}),
    ("mkdir .hydra && echo a >.hydra/config.yaml; exit 3", {"work/.hydra/config.yaml"}),
    ("mkdir wandb && echo a >wandb/run && ln -s wandb latest && ln -s wandb/run last", {"work/wandb/run"}),
    ("echo a >../artifacts/a; ln ../artifacts/a b; echo c >c; ln -sr c ../artifacts/c", set()),
    ("echo a >one.png; echo b >two.csv", {"work/two.csv"}),  # the pattern of the test brings the other
    ("mkdir ~/.cache; echo a >~/.cache/blob; ln -s ~/.cache/blob model; ln -s ~/.cache all", {"work/model"}),
    ("echo '{\"type\": \"authorized_user\"}' >~/.config; ln -s ~/.config settings.json", {"work/settings.json"}),
    ("mkfifo pipe; ln -s gone nothing; ln -s /etc/hostname host; ln -s /etc etc", {"work/host", "work/etc"}),
    ("mkdir -p .git .cache v/lib; echo a | tee .git/a .cache/a v/lib/a v/pyvenv.cfg", set()),
    ("mkdir -p ~/.cache ~/.ssh ~/tpujob/envs; echo a | tee ~/.cache/a ~/.ssh/a ~/tpujob/envs/a ~/.netrc a.pyc", set()),
])  # fmt: skip
def test_what_is_new_in_the_directory_and_the_home_of_a_job_is_told_and_nothing_else(
    worker: Worker, rows: Rows, script: str, found: set[str]
) -> None:
    worker.path("work", "train.py").write_text("same siza")
    (worker.home / "of-an-earlier-run").write_text("a")
    assert rows(script, "*.png").keys() == found


def test_secrets_stay_and_are_named_and_so_is_what_cannot_be_read_or_is_too_much(
    rows: Rows,
) -> None:
    script = f"echo a >.env; echo '{KEY}' >notes.txt; printf 12345678 >large; printf 12 >small; printf 123 >middle"
    found = rows(script, most_bytes=5)
    assert {name.removeprefix("work/"): row.get("why", row.get("size_bytes")) for name, row in found.items()} == {
        ".env": "not collected: it looks like an environment file",
        "notes.txt": "not collected: it looks like a private key",
        "small": 2,
        "middle": 3,
        "large": 8,
    }
    assert [name for name, row in found.items() if "sha256" in row] == ["work/small", "work/middle"], "by their sizes"
    assert rows("", only="l*").keys() == rows("", only="work/large").keys() == {"work/large"}


def test_what_an_earlier_attempt_left_is_the_jobs_and_without_a_record_nothing_is_told(
    worker: Worker, rows: Rows
) -> None:
    for name in ("restored.pt", "shipped.py"):
        worker.path("work", name).write_text(name)
    worker.path("restored.json").write_text('["restored.pt"]')
    assert rows("true").keys() == {"work/restored.pt"}
    worker.path("before.json").unlink()
    assert rows("true").keys() == {"(its home)", "work/restored.pt", "work/shipped.py"}, "rather too much than nothing"
    worker.path("main", "started.json").unlink()
    assert rows("true") == {}, "the job has not begun"


def test_what_is_new_in_tmp_is_named_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.vm.files import beside

    run, place = tmp_path / "run", tmp_path / "tmp"
    (run / "work").mkdir(parents=True)
    for name in ("old", "ckpt", "grown"):
        (place / name).mkdir(parents=True)
        (place / name / "a").write_text("a")
    monkeypatch.setattr(beside, "PLACES", (str(place),))
    beside.remember(str(run), str(tmp_path / "home"))
    (place / "grown" / "b").write_text("bb")
    (place / "model.pt").write_text("weights")
    (place / "tmpx8_abc12").write_text("of a library")
    os.utime(place / "old")
    record = beside.recorded(str(run))
    assert record is not None
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    for name in (".ssh/a", ".mymodel"):
        (tmp_path / "home" / name).write_text("12345")
    found = set(beside.elsewhere(record, lambda count: None))
    assert found == {(f"{place}/grown", 2, 3), (f"{place}/model.pt", 1, 7), (f"{tmp_path}/home/.mymodel", 1, 5)}
    monkeypatch.setattr(beside, "LOOKED_AT", 0)
    beside.remember(str(run), str(tmp_path / "home"))
    (place / "new").write_text("n")
    assert [row[0] for row in beside.elsewhere(beside.recorded(str(run)) or {}, lambda count: None)] == [f"{place}/new"]
