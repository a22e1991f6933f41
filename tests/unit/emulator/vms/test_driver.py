"""Changes are on disk before their replies leave, and changes that come together share a write."""

import asyncio
import time
from pathlib import Path

import pytest

from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.state.store import Store
from orchestrator.emulator.vms.driver import Driver
from tests.disk import calls_of_depth

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
    driver = Driver(CloudState("key"), store, time.time)

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


def test_it_starts_whatever_tree_a_job_left(store: CountingStore) -> None:
    driver = Driver(CloudState("key"), store, time.time)
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
