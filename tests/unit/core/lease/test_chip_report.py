"""What the workers publish of chips that a job does not use, whatever is in it."""

import json
from typing import Any

import pytest

from orchestrator.core.lease.chip_report import ATTRIBUTE, published

SAID = {"worker": 0, "workers": 3, "attempt": "a-1", "use": "idle", "text": "no process"}


@pytest.mark.parametrize(("records", "found"), [
    ([SAID, {**SAID, "worker": 2}], {"idle": "worker0 and worker2 (2 of 3): no process"}),
    ([{**SAID, "text": "\x1b[31m" + "x" * 999}], {"idle": "worker0 (1 of 3): " + "x" * 195}),
    ([{**SAID, "worker": index, "use": "alone"} for index in range(2)], {}),
    ([{**SAID, "attempt": "a-0"}, {**SAID, "use": "used"}, {**SAID, "use": []}, [SAID], None], {}),
    ([{**SAID, "worker": worker} for worker in (3, -1, "0", True, 1e99)], {}),
])  # fmt: skip
def test_only_what_workers_say_of_this_attempt_counts(records: list[Any], found: dict[str, str]) -> None:
    assert published([{}, {ATTRIBUTE: "{"}, *({ATTRIBUTE: json.dumps(each)} for each in records)], "a-1") == found
