"""What is said while workers are connected to, by a clock of numbers."""

from orchestrator.errors import Unreachable
from orchestrator.remote.fleet.connecting import Connecting

UNTIL = 1_700_000_000.0  # 22:13 UTC


def test_the_last_failure_is_said_after_ten_seconds_and_again_when_it_changes() -> None:
    now, said = [0.0], []
    connecting = Connecting("by address", UNTIL, lambda text: said.append((now[0], text)), 10.0, lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        why = "Connection refused" if second < 15 else "it does not accept our key (yet)"
        connecting.failed(0, Unreachable(f"worker0 (192.0.2.1:22): {why}"))
    assert said == [
        (10.0, "worker0 by address: Connection refused, trying until 22:13Z"),
        (20.0, "worker0 by address: it does not accept our key (yet), trying until 22:13Z"),
    ]


def test_workers_that_are_waited_for_are_one_line() -> None:
    said: list[str] = []
    connecting = Connecting("by address", UNTIL, said.append, 0.0, lambda: 0.0)
    for worker in (2, 0, 1):
        connecting.failed(worker, Unreachable(f"worker{worker}: the way to it failed: no bastion"))
    assert said[-1] == "worker0 to worker2 by address: no bastion, trying until 22:13Z"
