"""Completion in real shells, at a real terminal: what a person types before the Tab, and what is run after it."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli_fixture import take_terminal
from tests.waiting import until

SET_UP = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), "source <(tpujob --show-completion)"),
    "zsh": (("zsh", "-f", "-i"), "autoload -Uz compinit; compinit -u -D; source <(tpujob --show-completion)"),
    "fish": (("fish", "-i"), "tpujob --show-completion | source"),
}
# Completes, and prints the completion of a shell; otherwise it writes its arguments down.
PROGRAM = """#!/bin/sh
case "$_TPUJOB_COMPLETE$1" in
"complete"*|"--show"*) exec {python} -m orchestrator.cli "$@" ;;
*) echo "$@" >> {log} ;;
esac
"""
LINES = {  # what is typed before the Tab, and the command that it becomes
    "tpujob exte": "extend",
    "tpujob offers us-west1": "offers us-west1-c",
    "tpujob up --accelerator v5litepod-25": "up --accelerator v5litepod-256",
    "tpujob run resn": "run resnet-job.yaml",
}


@pytest.mark.parametrize("name", SET_UP)
def test_a_tab_completes_commands_zones_types_and_job_files(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "resnet-job.yaml").touch()
    program, log = tmp_path / "bin" / "tpujob", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, log=log))
    program.chmod(0o755)
    log.touch()
    env = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "TPUJOB_STATE_DIR": str(tmp_path / "state"),
    }
    ours, terminal = pty.openpty()
    words, set_up = SET_UP[name]
    shell = subprocess.Popen(
        words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=tmp_path,
        env=env,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - it makes few calls
    )
    os.close(terminal)
    seen = bytearray()
    threading.Thread(target=_read, args=(ours, seen), daemon=True).start()
    try:
        os.write(ours, f"{set_up}; tpujob ready\r".encode())
        expected = ["ready"]
        until(lambda: log.read_text().splitlines() == expected, "the shell")
        for typed, becomes in LINES.items():
            os.write(ours, f"{typed}\t\r".encode())
            expected.append(becomes)
            until(lambda: log.read_text().split("\n")[-2] == expected[-1], f"{becomes!r}; the terminal: {seen!r}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        os.close(ours)


def _read(terminal: int, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 4096):
            seen += data
