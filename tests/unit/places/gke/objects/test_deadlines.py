"""Until when a job on a cluster may last."""

import pytest

from orchestrator.places.gke.objects.deadlines import Deadlines, deadlines


@pytest.mark.parametrize(("wait_s", "queued", "found"), [
    (0.0, False, Deadlines(wait_s=900, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=8100)),
    (60.0, False, Deadlines(wait_s=60, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=8100)),
    (21600.0, False, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=28800, kept_s=3600, life_s=28800)),
    (0.0, True, Deadlines(wait_s=3600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=11700)),
    (21600.0, True, Deadlines(wait_s=21600, run_s=7200, pod_s=7320, job_s=8100, kept_s=3600, life_s=29700)),
])  # fmt: skip
def test_a_queue_does_not_count_towards_the_deadline_of_the_job(wait_s: float, queued: bool, found: Deadlines) -> None:
    assert deadlines(7200.0, wait_s=wait_s, linger_s=None, queued=queued) == found


def test_what_is_left_is_kept_for_as_long_as_the_job_says() -> None:
    assert deadlines(7200.0, wait_s=0.0, linger_s=600.0, queued=False).kept_s == 600.0


@pytest.mark.parametrize(("wait_s", "peers_s"), [(0.0, 900.0), (60.0, 900.0), (3000.0, 3000.0)])
def test_pods_wait_for_each_other_for_as_long_as_the_job_may_wait_for_nodes(wait_s: float, peers_s: float) -> None:
    assert deadlines(7200.0, wait_s=wait_s, linger_s=None, queued=False).peers_s == peers_s


@pytest.mark.parametrize(("max_duration_s", "wait_s"), [(7200.0, 21600.0), (900.0, 0.0), (60.0, 60.0)])
def test_a_pod_that_waits_for_others_in_vain_says_so_before_its_own_limit_ends_it(
    max_duration_s: float, wait_s: float
) -> None:
    found = deadlines(max_duration_s, wait_s=wait_s, linger_s=None, queued=False)
    assert found.peers_s == max_duration_s / 2
