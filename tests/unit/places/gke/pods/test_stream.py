"""The lines of a pod's log, from what the pod writes to what is read here: every byte once, wherever connections break."""

import itertools
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.places.gke.pods.stream import LINE_BYTES, Control, Event, LogText, NodeSays, PodLog, lines, parse
from orchestrator.vm.pod.output import Output
from tests.fakes.pods import NodeLog

SETUP = b"making\n::tpujob {}\r\n"
MAIN = [
    b"one\ntwo\nhalf", b" of it\n\n", b"::tpujob|\\\n", b"\r\n" * 3, b"\xff\x00\n" * 5, b"::tpu", b'job {"n": 1, "of": ',
    b'"main"}\n::tpujob|a|\n|\r', b"\n", b"x" * 9000 + b"\nend",
]  # fmt: skip


def written(place: Path, main: Sequence[bytes] = MAIN) -> bytes:
    """What a pod writes to its stdout, with control lines in between and in the middle of lines."""
    place.mkdir(parents=True, exist_ok=True)
    fd = os.open(place / "stdout", os.O_RDWR | os.O_CREAT)
    output = Output(fd)
    output.control(pod={})
    for phase, pieces in (("setup", [SETUP]), ("main", main)):
        output.begin(phase)
        output.control(began=phase)
        for piece in pieces:
            output.log(piece)
            output.control(metrics="")
        output.flush()
        output.control(ended=phase, rc=0)
    output.control(end={"schema": 1})
    os.close(fd)
    return (place / "stdout").read_bytes()


def on_node(times: Iterator[float], stdout: bytes) -> NodeLog:
    log = NodeLog(clock=times.__next__)
    for line in stdout.split(b"\n")[:-1]:
        log.write(line + b"\n")
    log.close()
    return log


def served(pod: NodeLog, since: float | None, cut_at: int | None = None) -> bytes:
    return b"".join(pod.served(since, threading.Event()))[:cut_at]


def read(pod: NodeLog, cuts: Sequence[int]) -> list[Event]:
    """Read over a connection for each cut, and one more to the end."""
    log = PodLog()
    found: list[Event] = []
    for cut_at in [*cuts, None]:
        found += log.read([served(pod, log.since, cut_at)])
    return [*found, *log.rest()]


def text(events: Sequence[Event], of: str) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, LogText) and event.of == of)


def controls(events: Sequence[Event]) -> list[int]:
    return [event.n for event in events if isinstance(event, Control)]


CLOCKS = {
    "a line a microsecond": lambda: itertools.count(1_800_000_000.5, 1e-6),
    "all at one time": lambda: itertools.repeat(1_800_000_000.5),
    "a line a second": lambda: itertools.count(1_800_000_000.5, 1.0),
}


@pytest.mark.parametrize("clock", [pytest.param(each, marks=[pytest.mark.ci] * (" a " in each)) for each in CLOCKS])
def test_a_cut_at_any_byte_loses_and_repeats_nothing(tmp_path: Path, clock: str) -> None:
    pod = on_node(CLOCKS[clock](), written(tmp_path))
    everything = len(served(pod, None))
    for cut_at in itertools.chain(range(1700), range(1700, everything, 97)):
        events = read(pod, [cut_at, cut_at // 2, cut_at // 3, 600])
        assert text(events, "setup") == SETUP and text(events, "main") == b"".join(MAIN), cut_at
        assert controls(events) == list(range(len(controls(events)))), cut_at


@pytest.mark.parametrize("again", [0, 40, 250])
def test_a_file_that_the_node_serves_twice_is_read_once(tmp_path: Path, again: int) -> None:
    """A kubelet whose reader is slow notices two rotations one after the other, and sends the last file for each."""
    main = [f"line {number}\n".encode() for number in range(300)]
    pod = on_node(itertools.count(1_800_000_000.0, 0.1), written(tmp_path, main))
    lines = served(pod, None).splitlines(keepends=True)
    for until in (again + 2, again + 51, len(lines) - 1):
        log = PodLog()
        events = [*log.read([*lines[:until], *lines[again:]]), *log.rest()]
        assert text(events, "main") == b"".join(main), until
        assert controls(events) == list(range(len(controls(events))))


@pytest.mark.parametrize("lines_before", [400, 401])
def test_a_clock_that_goes_back_costs_the_log_up_to_the_next_control_line(tmp_path: Path, lines_before: int) -> None:
    main = [f"line {number}\n".encode() for number in range(300)]
    before = itertools.islice(itertools.count(1_800_000_000.0, 0.01), lines_before)
    pod = on_node(itertools.chain(before, itertools.count(1_700_000_000.0)), written(tmp_path, main))
    events = read(pod, [])
    lost = set(main) - set(text(events, "main").splitlines(keepends=True))
    assert len(lost) == lines_before - 400 and controls(events) == list(range(len(controls(events))))


def test_a_line_of_stderr_that_overtakes_one_of_stdout_costs_neither() -> None:
    """A runtime gives each of the two its time, and then writes it."""
    times = [100.001, 100.002, 100.004, 100.003, 100.005]
    pod = on_node(iter(times), b'::tpujob {"n": 0, "of": "main"}\n1\n3\n2\n4\n')
    assert text(read(pod, []), "main") == b"1\n3\n2\n4\n"


def test_what_is_written_around_the_program_is_shown_and_changes_nothing(tmp_path: Path) -> None:
    """A process of the job may write to the container's own output."""
    stdout = written(tmp_path)
    first, rest = stdout.split(b"\n", 1)
    mixed = b"early words\n" + first + b"\n" + rest.replace(b"one\n", b"one\nfrom beside\n")
    events = read(on_node(itertools.count(1_800_000_000.0, 0.1), mixed), [700, 900])
    assert text(events, "main") == b"".join(MAIN).replace(b"one\n", b"one\nfrom beside\n")
    assert text(events, "setup") == SETUP
    assert [event.data for event in events if isinstance(event, LogText) and event.of is None] == [b"early words\n"]


def test_a_container_without_the_program_shows_its_words_and_those_of_the_node_are_no_log() -> None:
    log, said = PodLog(), b'failed to watch file "/var/log/pods/x": no space left on device'
    line = b"2027-01-15T08:00:00.000000001Z python3: no file\n"
    assert [*log.read([line, said + b"\n"]), *log.rest()] == [NodeSays(said), LogText(None, b"python3: no file\n")]


def test_lines_come_whole_from_pieces_of_any_size_and_the_last_one_only_with_its_end() -> None:
    sent = b"2027-01-15T08:00:00.5Z a\n2027-01-15T08:00:00.123456789Z b c\n2027-01-15T08:00:01Z cut o"
    for size in (1, 2, 7, 1000):
        found = [each for batch in lines(sent[at : at + size] for at in range(0, len(sent), size)) for each in batch]
        assert [content for _, content in found] == [b"a", b"b c"]
        assert found[0][0] > found[1][0]  # type: ignore[operator]


def test_a_line_without_an_end_takes_no_more_memory_than_a_line_may() -> None:
    found = [each for batch in lines(b"x" * 65536 for _ in range(64)) for each in batch]
    assert len(found) == 64 * 65536 // (LINE_BYTES + 65536) and {moment for moment, _ in found} == {None}


@pytest.mark.parametrize("line", [
    b"::tpujob", b"::tpujob ", b"::tpujob {", b"::tpujob []", b"::tpujob {}", b'::tpujob {"n": -1, "of": null}',
    b'::tpujob {"n": true, "of": null}', b'::tpujob {"n": 1e3, "of": null}', b'::tpujob {"n": 1, "of": []}',
    b'::tpujob {"n": 99999999999999999999999, "of": null}', b'::tpujob {"n": 1, "of": "else"}',
    b"::tpujob " + b'{"a":' * 100_000, b"::tpujob \xff", b"::tpujob|", b"::tpujob|x",
])  # fmt: skip
def test_a_control_line_that_makes_no_sense_is_a_line_of_the_job(line: bytes) -> None:
    assert parse(line) == line + b"\n"


@pytest.mark.parametrize(("of", "said"), [("main", {}), ("setup", {"began": "main"}), ("main", {"ended": "main"})])
def test_lines_before_the_first_control_line_that_is_left_are_of_the_phase_that_goes_on(
    of: str, said: dict[str, str]
) -> None:
    pod = NodeLog(clock=lambda: 1_800_000_000.0)
    pod.write(b"what is left\n")
    pod.write(f"::tpujob {json.dumps({'n': 7, 'of': 'main', **said})}\n".encode())
    pod.close()
    assert text(read(pod, []), of) == b"what is left\n"
