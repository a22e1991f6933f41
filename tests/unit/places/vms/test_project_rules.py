"""What is remembered of the policies of projects, and for how long."""

from pathlib import Path

import pytest

from orchestrator.core.lease.access import ProjectRules
from orchestrator.errors import BadRequest, CloudError, ExternalAddressRefused, OsLoginRequired
from orchestrator.places.vms.project_rules import REMEMBERED_S, RulesFile


def rules(directory: Path, project: str = "mine", at: float = 1000.0) -> RulesFile:
    return RulesFile(directory / "access.json", "google", project, lambda: at)


@pytest.mark.parametrize(("refusal", "known"), [
    (ExternalAddressRefused("no"), ProjectRules(no_external_addresses=True)),
    (OsLoginRequired("no"), ProjectRules(os_login=True)), (BadRequest("no"), ProjectRules()),
])  # fmt: skip
def test_a_refusal_by_policy_is_known_to_the_next_command(
    tmp_path: Path, refusal: CloudError, known: ProjectRules
) -> None:
    rules(tmp_path).learn(refusal)
    assert rules(tmp_path).known() == known
    assert rules(tmp_path, "another").known() == ProjectRules()


def test_two_refusals_add_up(tmp_path: Path) -> None:
    rules(tmp_path).learn(ExternalAddressRefused("no"))
    rules(tmp_path, "another").learn(OsLoginRequired("no"))
    rules(tmp_path).learn(OsLoginRequired("no"))
    assert rules(tmp_path).known() == ProjectRules(no_external_addresses=True, os_login=True)


def test_a_refusal_is_forgotten_after_a_day_and_after_a_clock_that_went_back(tmp_path: Path) -> None:
    rules(tmp_path).learn(ExternalAddressRefused("no"))
    assert rules(tmp_path, at=1000.0 + REMEMBERED_S - 1).known().no_external_addresses
    assert rules(tmp_path, at=1000.0 + REMEMBERED_S).known() == ProjectRules()
    assert rules(tmp_path, at=999.0).known() == ProjectRules()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"google mine": 3}', '{"google mine": {"os_login": 1}}', "\udcff"])
def test_a_damaged_file_knows_nothing_and_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "access.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert rules(tmp_path).known() == ProjectRules()
    rules(tmp_path).learn(OsLoginRequired("no"))
    assert rules(tmp_path).known() == ProjectRules(os_login=True)


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    rules(missing).learn(OsLoginRequired("no"))
    assert rules(missing).known() == ProjectRules()


@pytest.mark.parametrize("spoiled", ["it cannot be written", "another process writes over it"])
def test_a_process_knows_what_it_has_learned_whatever_becomes_of_the_file(tmp_path: Path, spoiled: str) -> None:
    mine = rules(tmp_path / "missing" if spoiled == "it cannot be written" else tmp_path)
    mine.learn(ExternalAddressRefused("no"))
    mine.path.unlink(missing_ok=True)
    assert mine.known() == ProjectRules(no_external_addresses=True)
