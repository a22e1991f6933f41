"""What several folders of these tests begin with."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.promise.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite3")


@pytest.fixture
def world() -> Any:
    from tests.simulation.model.bench import Bench  # only where it is used

    return Bench()
