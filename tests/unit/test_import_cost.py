"""What a start imports: `tpujob --help` no command and no typer, a light command nothing heavy.

`python -X importtime` names every module as it is imported, also those of a process that ends itself with os._exit.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.command_table import COMMANDS, LIGHT, children
from tests import ROOT
from tests.unit.test_imports import is_within
from tests.waiting import HANG_S

CLOUD_AND_SSH = {"google", "grpc", "requests", "fabric", "paramiko", "cryptography", "aiohttp", "asyncssh", "asyncio"}
SCIENCE = {"torch", "torch_xla", "numpy"}
STATE = {"pydantic", "yaml", "sqlite3"}
HEAVY = {"rich", "jinja2"} | CLOUD_AND_SSH | SCIENCE | STATE
OFTEN = ("run", "list", "emulator")  # each command is a process: the second tier starts the others
MAIN = "import sys; from orchestrator.cli.main import main; sys.argv[0] = 'tpujob'; main()"


def imported(code: str, *argv: str) -> set[str]:
    """Every module that a fresh interpreter imports to run the code; the run must succeed."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *argv],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def heavy(modules: set[str], of: set[str] = HEAVY) -> list[str]:
    return sorted(name for name in modules if is_within(name, of))


@pytest.fixture
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "CLOUDSDK_CONFIG", "TPUJOB_STATE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")


@pytest.mark.parametrize("argv", [("--help",), ("-h",), ("--version",)])
def test_answers_about_tpujob_itself_import_neither_typer_nor_a_command(argv: tuple[str, ...]) -> None:
    modules = imported(MAIN, *argv)
    assert heavy(modules, HEAVY | {"typer", "orchestrator.client", "orchestrator.engine"}) == []
    assert [name for name in modules if name.startswith("orchestrator.cli.commands.")] == []


def test_a_command_that_is_not_called_is_not_imported() -> None:
    modules = imported(MAIN, "emulator", "--help")
    assert [name for name in modules if name.startswith("orchestrator.cli.commands.")] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.exhaustive) for name in COMMANDS]
)
def test_the_help_of_a_command_asks_for_neither_cloud_nor_ssh_nor_torch(name: str) -> None:
    assert heavy(imported(MAIN, *name.split(), "--help"), HEAVY - STATE) == []


@pytest.mark.parametrize(
    "argv", [("list",), ("status",), ("offers",), ("offers", "--type", "v6e-8"), ("emulator", "status")]
)
@pytest.mark.usefixtures("empty_state")
def test_a_light_command_without_state_imports_of_heavy_modules_sqlite_alone(argv: tuple[str, ...]) -> None:
    modules = imported(MAIN, *argv)
    assert ("typer" in modules) == (" ".join(argv) not in LIGHT)
    assert heavy(modules, HEAVY - {"sqlite3"}) == []
    assert not any(is_within(name, {"orchestrator.core.jobfile.keys"}) for name in modules)


def test_a_heavy_import_would_be_noticed() -> None:
    assert "asyncio" in heavy(imported("import asyncio"))


def test_every_command_that_is_often_asked_is_one() -> None:
    assert set(OFTEN) <= set(children(""))
