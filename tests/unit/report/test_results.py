"""What `show` says of a run."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import Intent, LeaseChange
from orchestrator.core.lease.run_and_attempt import AttemptChange, Began
from orchestrator.report import results
from tests.unit.report.page.world import plain_run


def events() -> Iterator[type[Any]]:
    yield from (Intent, Began)
    for change in (LeaseChange, AttemptChange):
        for each in change.__subclasses__():
            yield from each.__subclasses__() or [each]


@pytest.mark.parametrize("event", list(events()))
def test_every_event_of_the_ledger_reads_as_a_sentence(event: type[Any]) -> None:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()
    data = {each.name: 1.0 if each.name == "until" else "x" for each in fields(event)}
    assert results._describe(kind, data) != kind


@pytest.mark.parametrize(("dataset", "said"), [
    ({"name": "mnist", "synthetic": False}, []),
    ({"name": "mnist-sample", "synthetic": False}, ["on the mnist sample, 6,000 real images at most"]),
    ({"name": "mnist", "synthetic": True}, ["on generated digits, not real images"]),
])  # fmt: skip
def test_the_result_says_of_which_images_its_accuracy_is(dataset: dict[str, Any], said: list[str]) -> None:
    assert results._describe_metrics({"test_accuracy": 0.5, "dataset": dataset}) == ["test accuracy 50.0 %", *said]


@pytest.mark.parametrize("look", [0, 2])
def test_a_file_that_another_process_renames_meanwhile_ends_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """As the draft of the page that the process of a run and its `tpujob cancel` both write."""
    world, looks, stat = plain_run(tmp_path / "run"), iter(range(9)), Path.stat
    draft = world.directory / ".trace.json.1-2"
    draft.write_text("{}")

    def stat_beside_a_rename(path: Path, **options: Any) -> Any:
        if path == draft and next(looks) == look:
            draft.rename(draft.with_name("trace.json"))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat_beside_a_rename)
    assert "logs/worker0.log" in [file.path for file in world.data().report.files]
