"""docs/install.md: after the commands of its section "Uninstall" nothing of tpujob is left in a home."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.daemon import control
from tests import ROOT
from tests.cli_fixture import sandbox

PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.split("\n## Uninstall\n")[1], re.MULTILINE | re.DOTALL)
USED = """
tpujob run --accelerator v5e-8 --zone us-central1-a -- sh -c 'echo 1 > "$TPUJOB_ARTIFACTS/x"'
tpujob run --set on=local -- true
tpujob up mine --zone us-central1-a
tpujob --install-completion
mkdir -p ~/.config/tpujob ~/.cache/tpujob/data
echo 'zone: us-central1' > ~/.config/tpujob/settings.yaml
grep -q tpujob.sh ~/.bashrc
"""


class Shell:
    """bash with a home of its own, in which `tpujob` is a command."""

    def __init__(self, directory: Path) -> None:
        self.environ = (
            os.environ | sandbox(directory) | {"TPUJOB_STATE_DIR": "", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": ""}
        )
        self.home, self.work, programs = directory / "home", directory / "work", directory / "bin"
        for made in (self.work, programs):
            made.mkdir()
        (programs / "tpujob").write_text(
            f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "orchestrator.cli"])} "$@"\n'
        )
        (programs / "tpujob").chmod(0o755)
        self.environ["PATH"] = f"{programs}:{self.environ['PATH']}"
        (self.home / ".bashrc").write_text("# mine\n")

    def __call__(self, block: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", block], cwd=self.work, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    started = Shell(tmp_path)
    yield started
    control.stop(started.home / ".local" / "state" / "tpujob" / "emulator")


@pytest.mark.exhaustive
def test_nothing_is_left_in_the_home_and_nothing_is_billed(shell: Shell) -> None:
    shell(USED)
    ended, deleted = BLOCKS
    assert "absent (checked" in shell(ended)
    shell(deleted)
    left = {str(path.relative_to(shell.home)): path.read_text() for path in shell.home.rglob("*") if path.is_file()}
    assert {name: text.strip() for name, text in left.items()} == {".bashrc": "# mine"}
