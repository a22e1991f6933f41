"""Assertions in the rows explain themselves as those of tests do."""

import pytest

pytest.register_assert_rewrite(
    "tests.faults.world",
    *(
        f"tests.faults.rows_{topic}"
        for topic in ("death", "create", "queue", "delete", "vm", "net", "ledger", "person")
    ),
)
