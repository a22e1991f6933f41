"""The mistakes of job files that are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import JobSpecError


def refused(load: Callable[..., object], *given: Any, **named: Any) -> list[str]:
    """Return the mistakes for which this call refuses."""
    with pytest.raises(JobSpecError) as caught:
        load(*given, **named)
    assert caught.value.exit_code == 64
    return caught.value.problems
