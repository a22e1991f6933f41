"""kill -9 of the CLI, of CLI and guardian, of everything local: an empty emulator, a meter within bounds, a closed ledger.

`make kill-sweep` goes through every single effect; here is one point for each kind of moment in a run's life.
"""

import signal
from collections.abc import Callable, Iterator

import pytest

from orchestrator.engine.guardian.process import CRASH_POINTS
from tests.cli_fixture import Tpujob
from tests.e2e.deaths import crash_sweep
from tests.e2e.deaths.crash_sweep import BOTH, CLI, GUARDIAN, LOCAL, RECOVERY, Point, Verdict

MOMENTS = [
    "Record:2:after",  # the intent is written down
    "Create:1:before",
    "Create:1:after",  # the cloud creates, and the operation is not recorded
    "Workers:1:before",
    "StartPhase:1:before",
    "StartPhase:2:after",  # the job runs
    "StartCollection:1:before",
    "Delete:1:after",
    "ListSlices:2:after",  # the proof is there, not yet written down
]
POINTS = [Point(killed, at) for at in MOMENTS for killed in (CLI, BOTH, LOCAL)]
POINTS += [Point(GUARDIAN, f"{name}:1") for name in CRASH_POINTS]
POINTS += [Point(RECOVERY, at) for at in ("Delete:1:before", "Delete:1:after", "Record:2:before")]


@pytest.fixture(scope="module")
def verdict_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Point], Verdict]]:
    """Those that were selected, side by side: each of them mostly waits, and each test for its own."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = list(dict.fromkeys(each["point"] for each in params if isinstance(each.get("point"), Point)))
    verdicts = crash_sweep.sweep(wanted, tmp_path_factory.mktemp("sweep"), at_once=4)
    found: dict[Point, Verdict] = {}

    def verdict_of(point: Point) -> Verdict:
        while point not in found:
            verdict = next(verdicts)
            found[verdict.point] = verdict
        return found[point]

    yield verdict_of
    verdicts.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.killed} at {point.at}")
def test_what_is_left_finishes_within_the_promise(point: Point, verdict_of: Callable[[Point], Verdict]) -> None:
    verdict = verdict_of(point)
    assert verdict.reached, "no such point"
    assert verdict.problem is None, verdict.problem


@pytest.mark.exhaustive
def test_a_point_that_is_not_there_does_not_pass_for_clean(tmp_path_factory: pytest.TempPathFactory) -> None:
    (verdict,) = crash_sweep.sweep([Point(CLI, "StartSlice:1:before")], tmp_path_factory.mktemp("sweep"), at_once=1)
    assert not verdict.reached


def killed(tpujob: Tpujob, point: str, *words: str) -> None:
    done = tpujob.as_process(*words, env={"TPUJOB_CRASH_AT": point})
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.exhaustive
def test_killed_up_is_adopted_by_the_next_up(tpujob: Tpujob) -> None:
    killed(tpujob, "Create:1:after", "up", "alice", "--zone", "us-central1-a")
    again = tpujob("up", "alice")
    assert again.returncode == 0, again.stderr
    assert len(tpujob.alive()) == 1 and tpujob.lived() == 1
    assert tpujob("down", "alice").returncode == 0
    assert tpujob.alive() == []
