"""What a process and its forked children share of the real world, and what ends when a process that lives on is done."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import fork
from orchestrator.core.lease.lease import Down, Intent
from orchestrator.engine.guardian.process import Guardian
from orchestrator.engine.runtime import world as worlds
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.engine.runtime.world import RealWorld
from orchestrator.places.vms.reach import Reach
from tests.forked import Child
from tests.leases import lease_and_request
from tests.ledgers import LedgerInMemory
from tests.waiting import HANG_S

LEASE = lease_and_request().lease


class Things:
    """A cloud, a fleet: something with an identity that counts its ends."""

    def __init__(self) -> None:
        self.ends = 0
        self.ended = threading.Event()

    def connect(self, deadline_s: float, on_wait: Callable[[str], None]) -> None: ...

    def cancel(self) -> None:
        self.ends += 1
        self.ended.set()

    def canceled(self, timeout_s: float) -> bool:
        return self.ended.wait(timeout_s)


@pytest.fixture
def started() -> list[Guardian]:
    return []


@pytest.fixture
def world(tmp_path: Path, started: list[Guardian]) -> RealWorld:
    opened: Any = Things

    def start() -> Guardian:
        started.append(Guardian(len(started) + 1, fork.pipe()[1]))
        return started[-1]

    clocks: Any = None
    return RealWorld(
        kind="emulated", clocks=clocks, ledger=LedgerInMemory(), locks=FileLocks(tmp_path / "locks"),
        report=lambda told: None, start_guardian=start, open_cloud=opened,
        reach=Reach(lambda: None, lambda lease_id: tmp_path),
        channel="ssh",
    )  # fmt: skip


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Things:
    made = Things()
    monkeypatch.setattr(Reach, "fleet", lambda *_: made)
    return made


def test_the_cloud_is_opened_once_and_again_in_a_forked_child(world: RealWorld) -> None:
    ours: Any = world.cloud
    assert world.cloud is ours
    with Child(lambda: (world.cloud is ours, world.cloud is world.cloud)) as child:
        assert child.said == "(False, True)"
    assert world.cloud is ours


def test_a_guardian_is_started_once_and_again_in_a_forked_child(world: RealWorld, started: list[Guardian]) -> None:
    assert world.arm() and world.arm() and len(started) == 1
    with Child(lambda: (world.arm(), len(started), started[0].waits, started[1].waits)) as child:
        assert child.said == "(True, 2, False, True)"
    assert world.arm() and len(started) == 1


def test_the_end_of_its_work_disconnects_the_workers_and_wakes_the_guardian(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.arm()
    world.connect(LEASE, (), 1.0)
    world.close()
    assert fleet.ends == 1 and not started[0].waits


def test_the_workers_are_disconnected_once_another_process_releases_their_slice(
    world: RealWorld, fleet: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "LOOK_S", 0.01)
    world.ledger.record(Intent(LEASE))
    world.connect(LEASE, (), 1.0)
    assert fleet.ends == 0
    world.ledger.record(Down(LEASE.id, 1.0, "tpujob cancel"))
    assert fleet.ended.wait(HANG_S) and fleet.ends == 1


def test_an_effect_that_was_abandoned_leaves_nothing_open_when_it_is_late(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.close()
    world.connect(LEASE, (), 1.0)
    world.arm()
    assert fleet.ends == 1 and not started[0].waits


def test_a_forked_child_that_is_done_disconnects_nothing_of_its_parents(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.arm()
    world.connect(LEASE, (), 1.0)

    def in_child() -> int:
        world.close()
        return fleet.ends

    with Child(in_child) as child:
        assert child.said == "0"
    assert started[0].waits
