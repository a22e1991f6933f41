"""An API server that starts refuses everyone for a moment; one that takes a right away goes on refusing."""

import pytest

from orchestrator.errors import AuthError, CloudUnavailable
from orchestrator.places.gke.api import kube_api
from orchestrator.places.gke.api.kube_api import Rights, path_of
from tests.unit.places.gke.api.objects import NODE, jobset
from tests.unit.places.gke.api.store import Store, refusal

PLACE = path_of("jobsets", "team", NODE)
FORBIDDEN = 'jobsets.jobset.x-k8s.io is forbidden: User "u" cannot get resource "jobsets"'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    made = Store()
    made.put(PLACE, jobset())
    return made


def refuse(store: Store, code: int = 403) -> None:
    store.instead = lambda request: refusal(code, "Forbidden" if code == 403 else "Unauthorized", FORBIDDEN)


@pytest.mark.parametrize("code", [401, 403])
def test_what_was_allowed_before_is_refused_for_a_while_without_an_end(store: Store, code: int) -> None:
    clock = Clock()
    api = store.api(Rights(clock))
    api.get(PLACE)
    refuse(store, code)
    for clock.now in (10.0, 10.0 + kube_api.PATIENCE_S - 1):
        with pytest.raises(CloudUnavailable, match="refuses what it has allowed before"):
            api.get(PLACE)
    clock.now = 10.0 + kube_api.PATIENCE_S
    with pytest.raises(AuthError):
        api.get(PLACE)


def test_a_right_that_comes_back_begins_anew(store: Store) -> None:
    clock = Clock()
    api = store.api(Rights(clock))
    for clock.now in (0.0, kube_api.PATIENCE_S - 1, 2 * kube_api.PATIENCE_S - 2):
        store.instead = lambda request: None
        api.get(PLACE)
        refuse(store)
        with pytest.raises(CloudUnavailable):
            api.get(PLACE)


def test_what_was_never_allowed_is_refused_at_once(store: Store) -> None:
    api = store.api()
    api.get(PLACE)
    refuse(store)
    with pytest.raises(AuthError):
        api.list(path_of("jobsets", "team"))  # another right
    with pytest.raises(AuthError):
        api.delete(PLACE, "uid-1")
    with pytest.raises(AuthError):
        api.list("/api/v1/nodes")


def test_logs_are_a_right_of_their_own(store: Store) -> None:
    pod = path_of("pods", "team", "p")
    store.put(pod, {"metadata": {"name": "p"}})
    api = store.api()
    api.get(pod)
    refuse(store)
    with pytest.raises(AuthError):
        api.stream(f"{pod}/log", {})
