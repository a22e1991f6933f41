"""What several folders of these tests begin with."""

from pathlib import Path

import pytest

from orchestrator.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite3")
