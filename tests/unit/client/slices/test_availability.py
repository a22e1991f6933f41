"""Asking a project what it has: every zone, in parallel, and a zone that does not answer is not a zone without TPUs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.events import Reporter
from orchestrator.client.slices import availability
from orchestrator.core.lease.cloud_api import Listing
from orchestrator.errors import AuthError, CloudUnavailable
from orchestrator.places.vms.plans import AVAILABILITY, known_availability


class Cloud:
    """Three zones, of which some do not answer."""

    def __init__(self, **silent: Exception) -> None:
        self.silent = silent

    def zones(self, project: str) -> Listing[str]:
        return Listing(("a", "b", "c"))

    def accelerator_types(self, project: str, zone: str) -> Listing[str]:
        if zone in self.silent:
            raise self.silent[zone]
        return Listing((f"v4-{project}", f"v6e-{zone}"))


def session(directory: Path, project: str = "p") -> Any:
    return SimpleNamespace(
        reporter=Reporter(lambda event: None),
        directory=directory,
        target=SimpleNamespace(kind="google", project=project),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Cloud]:
    clouds: list[Cloud] = []
    monkeypatch.setattr("orchestrator.client.guarantee.teardown_client.connect", lambda target, secrets: clouds[-1])
    return clouds


def test_what_every_zone_said_is_remembered_for_this_project_only(tmp_path: Path, asked: list[Cloud]) -> None:
    assert known_availability(session(tmp_path)) is None
    asked.append(Cloud(b=CloudUnavailable("timed out")))
    found = availability.refresh(session(tmp_path))
    assert found.zones == {"a": ("v4-p", "v6e-a"), "c": ("v4-p", "v6e-c")} and found.unreachable == {"b": "timed out"}
    assert known_availability(session(tmp_path)) == found
    assert known_availability(session(tmp_path, "other")) is None
    assert [path.name for path in tmp_path.iterdir()] == [AVAILABILITY]


def test_when_no_zone_answers_the_old_answer_stays(tmp_path: Path, asked: list[Cloud]) -> None:
    asked.append(Cloud())
    before = availability.refresh(session(tmp_path))
    asked.append(Cloud(a=AuthError("denied"), b=AuthError("denied"), c=AuthError("denied")))
    with pytest.raises(AuthError, match="denied"):
        availability.refresh(session(tmp_path))
    assert known_availability(session(tmp_path)) == before


def test_a_file_that_cannot_be_read_is_as_if_there_was_none(tmp_path: Path) -> None:
    (tmp_path / AVAILABILITY).write_text("{")
    assert known_availability(session(tmp_path)) is None
