"""The output of a job: every byte but its secrets is in the log file, however it was cut, and lines are events."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.client.events import Event, LogLines, Reporter
from orchestrator.client.jobs.log_output import JobOutput
from orchestrator.core.text.redaction import Redactor

SECRET = "hunter2-and-more"
LOG = (
    b"plain\r\n\x1b[1mbold\x1b[0m\n\xff\x00\n"
    + f"token {SECRET}, again {SECRET}\n".encode()
    + b"10%\r20%\r\n"
    + b"x" * 200_000
    + f" {SECRET} ".encode()
    + b"\nhunter2-\x1b[0mand-more\nno newline"
)


@pytest.mark.parametrize("size", [1, 7, 4096, 65536, 10**6])
def test_the_file_is_the_log_byte_by_byte_but_for_secrets(tmp_path: Path, size: int) -> None:
    events: list[Event] = []
    with closing(JobOutput(tmp_path, Reporter(events.append, Redactor([SECRET])))) as output:
        for at in range(0, len(LOG), size):
            output(0, LOG[at : at + size])
    stored = LOG.replace(SECRET.encode(), b"[redacted]").replace(b"hunter2-\x1b[0mand-more", b"[redacted]")
    assert (tmp_path / "logs" / "worker0.log").read_bytes() == stored
    lines = [line for event in events if isinstance(event, LogLines) for line in event.lines]
    assert lines[:5] == ["plain", "bold", "�", "token [redacted], again [redacted]", "20%"]
    assert lines[6:] == ["[redacted]", "no newline"], "what was torn by an escape sequence is hidden, too"


def test_workers_do_not_mix(tmp_path: Path) -> None:
    events: list[Event] = []
    with closing(JobOutput(tmp_path, Reporter(events.append))) as output:
        for worker, data in ((0, b"a"), (1, b"1\n2"), (0, b"b\n"), (1, b"3\n")):
            output(worker, data)
    assert [(event.worker, event.lines) for event in events if isinstance(event, LogLines)] == [
        (1, ("1",)),
        (0, ("ab",)),
        (1, ("23",)),
    ]
