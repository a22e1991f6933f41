"""Writes the table of gcloud's commands in docs/emulator.md out of the contract test that runs them.

Run it (`python docs/gcloud_table.py`) after changing tests/emulator/contract/api/gcloud_commands.py; a test fails until then.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "emulator.md"
BEGIN, END = "<!-- gcloud: written by docs/gcloud_table.py -->", "<!-- end of gcloud -->"


def with_table(text: str) -> str:
    """The page with the table as it should be."""
    sys.path.insert(0, str(ROOT))
    from tests.emulator.contract.api.gcloud_commands import table

    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
