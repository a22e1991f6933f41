"""`tpujob up` of a slice that only deleting would help: it asks on a terminal, and deletes nothing without consent."""

from __future__ import annotations

import json
import os
import pty

import pytest

from tests.cli_fixture import Tpujob
from tests.waiting import until

ZONE = "us-central1-a"


def preempted(tpujob: Tpujob) -> str:
    """Bring up a slice and preempt it. Return its node."""
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert tpujob("emulator", "preempt", row["node"]).returncode == 0
    until(lambda: json.loads(tpujob("status", "--json").stdout)["slices"][0]["state"] == "PREEMPTED", "PREEMPTED")
    return str(row["node"])


def test_without_a_terminal_a_preempted_slice_is_recreated_only_with_yes(tpujob: Tpujob) -> None:
    node = preempted(tpujob)
    refused = tpujob("up", "alice")
    assert refused.returncode == 64, refused.text
    assert "alice is PREEMPTED" in refused.stderr and "`tpujob up alice --yes` does that" in refused.stderr
    done = tpujob("up", "alice", "--yes")
    assert done.returncode == 0 and "alice: recreated; held until" in done.stderr, done.text
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert row["state"] == "READY" and row["node"] != node


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 64)])
def test_on_a_terminal_it_asks_before_a_preempted_slice_is_recreated(tpujob: Tpujob, typed: str, code: int) -> None:
    node = preempted(tpujob)
    ours, terminal = pty.openpty()
    process = tpujob.start("up", "alice", stdin=terminal)
    os.write(ours, typed.encode())
    out, err = process.communicate()
    os.close(ours)
    os.close(terminal)
    assert process.returncode == code, err
    assert "Delete it and create a new one?" in out + err
    assert err.count("cloud    EMULATED") == 1, "one command, one line about its cloud"
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert (row["node"] == node) is (code == 64)
