"""The state directory of the emulator: on disk before a reply leaves, read by the next daemon, and when a daemon ends."""

import asyncio
import fcntl
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_tpu_emulator.daemon import control, daemon
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.state import FILE, AlreadyRunning, DamagedState, Store, steady_clock
from cloud_tpu_emulator.vms.driver import Driver
from orchestrator.system import boot_clock
from tests.disk import calls_of_depth
from tests.emulator.unit.model.queue_fixture import PLACE, QueueCloud
from tests.waiting import HANG_S


def test_every_request_restarts_the_time_after_which_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def slept(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 10:
            idle.last = 7  # a request

    monkeypatch.setenv("TPUJOB_EMULATOR_IDLE_S", "10")
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(daemon, "asyncio", SimpleNamespace(sleep=slept))
    driver: Any = SimpleNamespace(state=SimpleNamespace(holds_anything=False))
    idle = daemon._Idle(driver)
    asyncio.run(idle.watch(asyncio.Event()))
    assert now == [17]


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a daemon that stops after a hundred polls."""
    polls = []
    daemon = (tmp_path / "daemon.lock").open("w")
    fcntl.flock(daemon, fcntl.LOCK_EX)

    def slept(pause_s: float) -> None:
        polls.append(pause_s)
        if len(polls) >= 100:  # other threads sleep, too
            daemon.close()

    monkeypatch.setattr("cloud_tpu_emulator.daemon.control.time.sleep", slept)
    return tmp_path


def test_stop_waits_for_the_end_of_the_daemon(stopping: Path) -> None:
    control.stop(stopping)
    assert not control._is_running(stopping)


def test_a_start_waits_for_the_end_of_the_last_daemon_and_starts_another(
    stopping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(state_dir: Path, port: int, ends_with: int | None) -> None:
        assert not control._is_running(state_dir)
        raise InterruptedError

    monkeypatch.setattr(control, "_spawn", spawn)
    with pytest.raises(InterruptedError):
        control.ensure_running(stopping)


SPOT: dict[str, Any] = {"schedulingConfig": {"spot": True}}


def reopened(store: Store) -> Store:
    """Open it as the next daemon does: the lock of the last one ended with its process."""
    import os

    os.close(store._lock)
    return Store(store.directory)


def live(cloud: QueueCloud, store: Store, lives: int) -> None:
    """Create, preempt and delete nodes and queued resources; save every change; leave some operations under way."""
    for _ in range(lives):
        cloud.create(**SPOT)
        store.save(cloud.state)
        cloud.wait(10)
        cloud.queue()
        cloud.wait(20)
        store.save(cloud.state)
        cloud.state.preempt(f"{PLACE}/nodes/n", cloud.now)
        cloud.unqueue(force=True)
        cloud.delete("n")
        store.save(cloud.state)
        cloud.wait(20)
    cloud.queue("under-way")
    cloud.create("alive")
    cloud.wait(3)


def test_the_next_daemon_reads_what_the_last_one_saved(tmp_path: Path) -> None:
    cloud, store = QueueCloud(), Store(tmp_path)
    live(cloud, store, 3)
    store.save(cloud.state)
    again = reopened(store)
    assert again.load().dump() == cloud.state.dump()
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["torn", "[]"])
def test_a_damaged_file_is_reported_and_not_overwritten(tmp_path: Path, damage: str) -> None:
    cloud, store = QueueCloud(), Store(tmp_path)
    live(cloud, store, 1)
    store.save(cloud.state)
    path = tmp_path / "state.json"
    path.write_text(path.read_text()[:-30] if damage == "torn" else damage)
    again = reopened(store)
    with pytest.raises(DamagedState, match="to begin with an empty cloud, move it away"):
        again.load()


def test_a_state_file_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    cloud, store = QueueCloud(), Store(tmp_path)
    live(cloud, store, 1)
    store.save(cloud.state)
    saved = json.loads((tmp_path / "state.json").read_text())
    saved["agenda"] = saved.pop("events")
    (tmp_path / "state.json").write_text(json.dumps(saved))
    with pytest.raises(
        DamagedState, match=r"state\.json is damaged or of another version \('events'\); .*, move it away"
    ):
        reopened(store).load()


def test_a_daemon_waits_for_the_lock_while_a_client_checks_whether_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    def slept(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) >= 100:  # other threads sleep, too
            checking.close()

    monkeypatch.setattr("cloud_tpu_emulator.model.state.time.sleep", slept)
    checking = (tmp_path / "daemon.lock").open("w")
    fcntl.flock(checking, fcntl.LOCK_SH)
    Store(tmp_path)
    assert len(pauses) >= 100


def test_a_daemon_writes_nothing_to_the_directory_of_the_next_one(tmp_path: Path) -> None:
    directory = tmp_path / "emulator"
    cloud, store = QueueCloud(), Store(directory)
    cloud.create()
    shutil.rmtree(directory)
    following = Store(directory)
    store.save(cloud.state)
    assert not store.is_ours() and following.is_ours()
    assert not following.load().nodes


def test_a_directory_in_whose_place_is_something_else_belongs_to_no_daemon(tmp_path: Path) -> None:
    store = Store(tmp_path / "emulator")
    shutil.rmtree(store.directory)
    store.directory.write_text("a file")
    assert not store.is_ours()


def test_a_second_daemon_is_refused_at_once(tmp_path: Path) -> None:
    first = Store(tmp_path)
    with pytest.raises(AlreadyRunning):
        Store(first.directory)


def test_a_directory_that_cannot_be_on_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot contain ':'"):
        Store(tmp_path / "a:b")


# The clock of the emulated cloud is steady, also from one daemon to the next.

NOW = 1_800_000_000.0


@pytest.fixture
def up_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the machine started, for the test to move."""
    now = [500.0]
    monkeypatch.setattr(boot_clock, "boot_s", lambda: now[0])
    return now


def test_a_step_of_the_wall_clock_does_not_change_it(tmp_path: Path, up_s: list[float]) -> None:
    clock = steady_clock(tmp_path, 0.0, wall=lambda: NOW)
    up_s[0] += 30.0
    assert clock() == NOW + 30.0
    assert steady_clock(tmp_path, 0.0, wall=lambda: NOW + 7200.0)() == NOW + 30.0, "the next daemon"


def test_after_a_restart_it_begins_with_the_wall_clock_and_never_goes_back(
    tmp_path: Path, up_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    steady_clock(tmp_path, 0.0, wall=lambda: NOW)
    monkeypatch.setattr(boot_clock, "boot_id", lambda: "the next boot")
    assert steady_clock(tmp_path, NOW + 900.0, wall=lambda: NOW + 600.0)() == NOW + 900.0
    monkeypatch.setattr(boot_clock, "boot_id", lambda: "one more")
    assert steady_clock(tmp_path, NOW + 900.0, wall=lambda: NOW + 3600.0)() == NOW + 3600.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot": "b", "zero": []}'])
def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path, up_s: list[float], text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert steady_clock(tmp_path, 0.0, wall=lambda: NOW)() == NOW
    up_s[0] += 1.0
    assert steady_clock(tmp_path, 0.0, wall=lambda: 0.0)() == NOW + 1.0


WORKERS = 64


class CountingStore(Store):
    """Notes with each write how many changes there were."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.changes = 0
        self.writes: list[int] = []

    def save(self, state: CloudState) -> None:
        self.writes.append(self.changes)
        super().save(state)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "emulator")


def publish_all(store: CountingStore) -> None:
    driver = Driver(CloudState("key"), store, time.time)  # type: ignore[arg-type]

    async def publish() -> None:
        store.changes += 1
        mine = store.changes
        driver.changed()
        await driver.saved()
        assert store.writes[-1] >= mine, "its reply would leave before it is on disk"

    async def all_at_once() -> None:
        await asyncio.gather(*(publish() for _ in range(WORKERS)))
        await driver.saved()

    asyncio.run(all_at_once())


def test_what_many_workers_publish_at_once_is_written_once(store: CountingStore) -> None:
    publish_all(store)
    assert store.writes == [WORKERS]


@pytest.mark.parametrize("turns", range(5))
def test_it_ends_when_it_is_cancelled_just_as_something_happens(
    turns: int, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(CloudState("key"), store, time.time)  # type: ignore[arg-type]
    waits = asyncio.Event()

    def next_due() -> float:
        waits.set()
        return time.time() + 3600

    monkeypatch.setattr(driver.state, "next_due", next_due)

    async def run() -> None:
        running = asyncio.create_task(driver.run())
        await waits.wait()
        await asyncio.sleep(0)
        driver.changed()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running}, timeout=HANG_S)
        assert running.cancelled()

    asyncio.run(run())


def test_it_starts_whatever_tree_a_job_left(store: CountingStore) -> None:
    driver = Driver(CloudState("key"), store, time.time)  # type: ignore[arg-type]
    deep = driver.vms / "one.deleted" / "/".join("d" * 400)
    deep.mkdir(parents=True)
    with calls_of_depth(300):
        asyncio.run(driver.recover())
    assert list(driver.vms.iterdir()) == []


def test_a_write_that_fails_fails_every_reply_that_waits_for_it(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_state: CloudState) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save", full)
    with pytest.raises(OSError, match="No space left"):
        publish_all(store)
