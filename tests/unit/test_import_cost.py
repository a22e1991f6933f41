"""`tpujob --help` answers before anybody looks away: nothing heavy is imported on the way to it.

`python -X importtime` names every module as it is imported, also those of a process that ends itself with os._exit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.app import app
from tests import ROOT
from tests.unit.test_imports import is_within
from tests.waiting import HANG_S

HEAVY = {
    *("google", "grpc", "requests", "fabric", "paramiko", "cryptography", "aiohttp", "asyncssh", "asyncio"),
    *("torch", "torch_xla", "numpy", "pydantic", "rich", "yaml", "sqlite3"),
}
COMMANDS = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
OFTEN = ("run", "list", "emulator")  # each command is a process: the others are asked in the second tier
MAIN = "import sys; from orchestrator.cli.app import main; sys.argv[0] = 'tpujob'; main()"


def imported(code: str, *argv: str) -> set[str]:
    """Every module that a fresh interpreter imports to run the code; the run must succeed."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *argv],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert said.returncode == 0, said.stderr[-2000:]
    lines = [line for line in said.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def heavy(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if is_within(name, HEAVY))


def test_importing_the_app_imports_nothing_heavy() -> None:
    modules = imported("import orchestrator.cli.app")
    assert "orchestrator.cli.commands.jobs.run" in modules
    assert heavy(modules) == []


@pytest.mark.parametrize("argv", [("--help",), ("--version",)])
def test_answers_about_tpujob_itself_import_nothing_heavy(argv: tuple[str, ...]) -> None:
    assert heavy(imported(MAIN, *argv)) == []


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.exhaustive) for name in COMMANDS]
)
def test_the_help_of_a_command_asks_for_neither_cloud_nor_ssh_nor_torch(command: str) -> None:
    # typer itself reads the options of a command with pydantic
    assert [name for name in heavy(imported(MAIN, command, "--help")) if not is_within(name, {"pydantic"})] == []


def test_a_heavy_import_would_be_noticed() -> None:
    assert "asyncio" in heavy(imported("import asyncio"))


def test_offers_are_shown_without_a_cloud_and_without_what_only_checks_job_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "CLOUDSDK_CONFIG", "TPUJOB_STATE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")
    modules = imported(MAIN, "offers", "--type", "v6e-8")
    assert [name for name in heavy(modules) if not is_within(name, {"pydantic", "sqlite3"})] == []
    assert not any(is_within(name, {"pydantic.main", "orchestrator.core.jobfile.model"}) for name in modules)
