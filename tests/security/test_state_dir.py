"""The state directory: one that cannot be trusted or written, and what a run leaves there is for its user only."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.ledger import file
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.ledger.rows import GcRun
from tests.cli_fixture import Tpujob
from tests.e2e.test_detached import submit

EXHAUSTIVE = pytest.mark.exhaustive
JOB = "tpu: {zone: us-central1-a}\ncommand: ls\n"


@pytest.fixture
def elsewhere(tpujob: Tpujob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own; the emulator is somewhere else, so that it goes on whatever happens to this one."""
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(place))
    monkeypatch.setenv("TPUJOB_ENDPOINT", tpujob.emulator.url)
    monkeypatch.setenv("TPUJOB_TOKEN_FILE", str(tpujob.state_dir / "token"))
    return place


def _shared(place: Path) -> None:
    place.chmod(0o770)


def _link(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to("moved")


@pytest.mark.parametrize(("spoil", "words"), [
    pytest.param(_shared, "other users can write to the state directory", id="28-group"),
    pytest.param(_link, "is a symbolic link", id="28-symlink", marks=EXHAUSTIVE),
])  # fmt: skip
def test_28_in_a_state_directory_that_others_could_change_nothing_is_created_and_everything_ended(
    tpujob: Tpujob, elsewhere: Path, spoil: object, words: str
) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert callable(spoil)
    spoil(elsewhere)
    with tpujob.creating_nothing():
        for command in (("up", "bob"), ("run", tpujob.job(JOB)), ("submit", tpujob.job(JOB)), ("ssh", "alice")):
            said = tpujob(*command)
            assert said.returncode == 64 and words in said.stderr, said.text
    assert alive(tpujob) == 1
    status = tpujob("status")
    assert status.returncode == 0 and "alice" in status.stdout and words in status.stderr
    down = tpujob("down", "alice")
    assert down.returncode == 0 and "absent (checked" in down.stdout, down.text
    assert words in down.stderr and "nothing new is created until that is fixed" in down.stderr
    assert alive(tpujob) == 0


def alive(tpujob: Tpujob) -> int:
    return len(tpujob.alive())


def test_28_a_state_directory_that_cannot_be_made_is_said(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    (tpujob.directory / "file").write_text("")
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tpujob.directory / "file" / "state"))
    with tpujob.creating_nothing():
        said = tpujob("run", tpujob.job(JOB))
    assert said.returncode == 64
    assert (
        "cannot be used: Not a directory" in said.stderr
        and "TPUJOB_STATE_DIR can name another directory" in said.stderr
    )


# -- disks -----------------------------------------------------------------------------------------------------------


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def small_disk(elsewhere: Path) -> Iterator[Path]:
    with mounted(elsewhere, "4m") as place:
        yield place


def fill(place: Path) -> None:
    with (place / "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@pytest.mark.parametrize("spoil", [read_only, pytest.param(fill, marks=EXHAUSTIVE)])
def test_28_on_a_disk_that_cannot_be_written_nothing_is_created_and_what_exists_is_torn_down(
    tpujob: Tpujob, small_disk: Path, spoil: object
) -> None:
    """As processes: one that has the ledger open for writing keeps a disk from becoming read-only."""
    run = tpujob.as_process
    assert run("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert callable(spoil)
    spoil(small_disk)
    with tpujob.creating_nothing():
        for command in (("up", "bob"), ("run", tpujob.job(JOB))):
            said = run(*command)
            assert said.returncode == 64, said.stderr
            assert "cannot be" in said.stderr and "bug" not in said.stderr
    assert "alice" in run("status").stdout
    down = run("down", "alice")
    assert down.returncode == 0, down.stderr
    assert "the teardown goes on without it" in down.stderr and "absent (checked" in down.stdout
    assert alive(tpujob) == 0


@pytest.mark.exhaustive
def test_28_a_run_directory_on_a_full_disk_costs_the_file_of_the_log_and_never_the_teardown(
    tpujob: Tpujob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    with mounted(tmp_path / "small", "1m") as place:
        monkeypatch.chdir(place)
        (place / "job.yaml").write_text(
            "tpu: {zone: us-central1-a}\ncommand: yes a line of the log | head -c 3000000\n"
        )
        said = tpujob("run", "job.yaml")
        monkeypatch.chdir(tmp_path)
    assert said.returncode == 0 and "bug" not in said.stderr, said.stderr
    assert "what follows of the logs is in no file" in said.stderr
    assert "absent (checked" in said.stdout
    assert alive(tpujob) == 0


@pytest.mark.parametrize("spoil", [fill, read_only])
def test_a_ledger_that_was_closed_well_is_read_where_nothing_can_be_written(small_disk: Path, spoil: object) -> None:
    Ledger(small_disk / "ledger.sqlite3").close()
    assert callable(spoil)
    spoil(small_disk)
    ledger = Ledger(small_disk / "ledger.sqlite3")
    assert ledger.open_leases() == []
    with pytest.raises(LedgerUnavailable):
        ledger.record_gc(GcRun(0.0, "emulated", "emulated", "all", True, 0, 0))
    ledger.close()


def test_a_lock_is_still_seen_and_taken_where_none_can_be_made(small_disk: Path) -> None:
    first = FileLocks(small_disk / "locks")
    assert first.lock("a")
    first.unlock("a")
    read_only(small_disk)
    held, second = FileLocks(small_disk / "locks"), FileLocks(small_disk / "locks")
    assert held.lock("a")
    assert second.is_locked("a") and not second.lock("a")
    assert second.lock("never-made") and second.lock("nor-this") and second.is_held("never-made"), "none waits for it"
    second.unlock("never-made")
    held.unlock("a")
    assert not second.is_locked("a") and second.lock("a")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/local\\040disk tmpfs rw 0 0
server:/data /data ext4 rw 0 0
sshfs /data fuse.sshfs rw 0 0
/dev/sda2 / ext4 rw 0 0
"""


@pytest.mark.parametrize(("path", "network"), [
    ("/var/x", False), ("/home/me/x", True), ("/homeward/x", False), ("/home/me/local disk/x", False),
    ("/data/x", True),
])  # fmt: skip
def test_28_a_disk_of_another_machine_is_noticed(tmp_path: Path, path: str, network: bool) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert file.on_network(Path(path), mounts) is network


def test_28_on_another_machines_disk_the_ledger_keeps_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "on_network", lambda _path: True)
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    assert ledger._db.execute("pragma journal_mode").fetchone() == ("delete",)
    assert list(tmp_path.iterdir()) == [tmp_path / "ledger.sqlite3"]
    ledger.close()


def test_where_mounts_are_not_told_a_disk_counts_as_our_own(tmp_path: Path) -> None:
    assert not file.on_network(tmp_path, tmp_path / "nothing")


LEAVES = """\
metrics: {loss: 'loss (\\d+)'}
command: |
  mkdir -p "$TPUJOB_ARTIFACTS/deep/er"; echo 1 >"$TPUJOB_ARTIFACTS/deep/er/file"; chmod -R a+rwx "$TPUJOB_ARTIFACTS"
  echo '{"step": 1, "x": 2}' >>"$TPUJOB_ARTIFACTS/metrics.jsonl"; echo loss 3
"""
ON_A_SLICE = f"tpu: {{zone: us-central1-a}}\n{LEAVES}"
TOO_LARGE = '  head -c 3000000 /dev/zero >"$TPUJOB_ARTIFACTS/large"\n'


@pytest.fixture(params=[0o000, pytest.param(0o022, marks=pytest.mark.exhaustive)], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def others_may(directory: Path) -> list[str]:
    found = [directory, *directory.rglob("*")]
    assert len(found) > 5, "the run left nothing"
    return [f"{path} {path.stat().st_mode:o}" for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.ci
@pytest.mark.usefixtures("umask")
def test_no_other_user_may_read_or_write_what_a_run_leaves(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    attached = tpujob("run", tpujob.job(f"name: attached\n{ON_A_SLICE}"))
    assert attached.returncode == 0, attached.text
    local = tpujob("run", tpujob.job(f"name: local\non: local\n{LEAVES}"))
    assert local.returncode == 0, local.text
    sweep = tpujob("run", tpujob.job(f"name: sweep\nmatrix: {{seed: [1]}}\n{ON_A_SLICE}  : ${{params.seed}}\n"))
    assert sweep.returncode == 0, sweep.text
    assert (
        tpujob("run", tpujob.job(f"name: full\nlimits: {{max_results: 1MB}}\n{ON_A_SLICE}{TOO_LARGE}")).returncode == 65
    )
    collected = tpujob("collect", "full", "--max-results", "none")
    assert collected.returncode == 0, collected.text
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    attached_later = tpujob("attach", submit(tpujob, f"name: detached\n{ON_A_SLICE}"))
    assert attached_later.returncode == 0, attached_later.text
    runs = tpujob.directory / "runs"
    assert {path.name.partition("-")[0] for path in runs.iterdir()} == {
        "attached",
        "local",
        "sweep",
        "full",
        "detached",
    }
    assert [*runs.glob("full-*/worker0/artifacts/large")] and [*runs.glob("*/worker0/artifacts/deep/er/file")]
    assert others_may(runs) == []
