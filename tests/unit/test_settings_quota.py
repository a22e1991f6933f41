"""Granted quota in the settings file: both forms, and the line of each mistake."""

from pathlib import Path

import pytest

from orchestrator.core.planning.grants import Grant
from orchestrator.errors import ConfigError
from orchestrator.settings import resolve, settings_path


def granted(home: Path, text: str) -> tuple[Grant, ...]:
    environ = {"HOME": str(home)}
    path = settings_path(environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return resolve(None, None, environ).grants


def test_grants_are_written_as_keys_or_pasted_from_an_email(tmp_path: Path) -> None:
    text = """\
zone: us-central1-a
quota:
  - {accelerator: v3-8, count: 5, zone: europe-west4-a}
  - accelerator: v2-8
    count: 100
    zone: us-central1-f
    spot: true
  - 32 spot Cloud TPU v4 chips in zone us-central2-b
"""
    assert granted(tmp_path, text) == (
        Grant("v3-8", 5, "europe-west4-a"),
        Grant("v2-8", 100, "us-central1-f", spot=True),
        Grant("v4", 32, "us-central2-b", spot=True),
    )
    assert granted(tmp_path, "quota: []\n") == granted(tmp_path, "zone: us-central1-a\n") == ()


@pytest.mark.parametrize(("text", "line"), [
    ("quota: 5\n", "1: quota: needs a list"), ("quota:\n", "1: quota: needs a list"),
    ("zone: us-central1-a\nquota:\n  - many\n", "3: quota: is not a grant; write for example `5 on-demand"),
    ("quota:\n  - {accelerator: v3-8}\n", "2: quota: lacks count"),
    ("quota:\n  - {accelerator: v3-8, count: [5], zone: x}\n", "2: quota: is neither a line nor a mapping of plain"),
    ("quota:\n  - [5]\n", "2: quota: is neither a line nor a mapping of plain values"),
    ("quota: []\nquota: []\n", "2: quota: set twice"), ("project: [a]\n", "1: project: needs one plain value"),
    ("quotas: []\n", "1: quotas: unknown setting"),
])  # fmt: skip
def test_a_mistake_names_its_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        granted(tmp_path, text)
    assert f"settings.yaml:{line}" in refused.value.message and "\n" not in refused.value.message
