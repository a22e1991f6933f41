"""The lines of a pod's log, from what the pod writes to what is read here: every byte once, wherever connections break."""

import itertools
import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.places.gke.pods.stream import (
    LINE_BYTES,
    Control,
    Event,
    Line,
    LogLost,
    LogText,
    NodeSays,
    PodLog,
    Text,
    batches,
    parse,
    time_of,
)
from orchestrator.vm.pod import output as pod_output
from orchestrator.vm.pod.output import Output
from tests.fakes.pods import Part, Pod

SETUP = b"making\n::tpujob {}\r\n"
MAIN = [b"one\ntwo\nhalf", b" of it\n\n", b"::tpujob|\\\n", b"\r\n" * 3, b"\xff\x00\n" * 5, b"x" * 9000 + b"\nend"]


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


def on_node(place: Path, times: Iterator[float], stdout: bytes) -> Pod:
    pod = Pod(0, "p", place, clock=lambda: next(times))
    for line in stdout.splitlines(keepends=True) if b"\r" not in stdout else _lines(stdout):
        pod.write(line)
    pod.close()
    return pod


def _lines(stdout: bytes) -> list[bytes]:
    return [line + b"\n" for line in stdout.split(b"\n")[:-1]]


def served(pod: Pod, since: float | None, cut_at: int | None = None) -> bytes:
    return b"".join(pod.served(since, threading.Event()))[:cut_at]


def read(pod: Pod, cuts: Sequence[int]) -> list[Event]:
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


@pytest.mark.ci
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_cut_at_any_byte_loses_and_repeats_nothing(tmp_path: Path, clock: str) -> None:
    pod = on_node(tmp_path, CLOCKS[clock](), written(tmp_path))
    everything = len(served(pod, None))
    for cut_at in itertools.chain(range(1400), range(1400, everything, 97)):
        events = read(pod, [cut_at, cut_at // 2])
        assert text(events, "setup") == SETUP and text(events, "main") == b"".join(MAIN), cut_at
        assert controls(events) == list(range(len(controls(events)))), cut_at
        assert not [event for event in events if isinstance(event, LogLost)], cut_at


def test_random_logs_cut_at_random_bytes_arrive_as_they_are(tmp_path: Path) -> None:
    dice = random.Random(16)
    words = [
        b"\n",
        b"\r",
        b"\r\n",
        b"::tpujob",
        b"|",
        b"\\",
        b" {",
        b'{"n": 1, "at": 2, "of": "main"}',
        b"a",
        b"\x00",
        b"y" * 5000,
    ]
    for number in range(60):
        main = [b"".join(dice.choices(words, k=dice.randrange(30))) for _ in range(dice.randrange(1, 8))]
        place = tmp_path / str(number)
        pod = on_node(place, itertools.count(1_800_000_000.0, dice.choice([1e-6, 0.3])), written(place, main))
        size = len(served(pod, None))
        events = read(pod, [dice.randrange(size) for _ in range(6)])
        assert text(events, "main") == b"".join(main), number


def test_what_rotation_took_between_two_connections_is_counted_exactly(tmp_path: Path) -> None:
    main = [f"line {number}\n".encode() for number in range(300)]
    pod = on_node(tmp_path, itertools.count(1_800_000_000.0, 0.01), written(tmp_path, main))
    every = _parts(pod)
    log = PodLog()
    events = list(log.read([served(pod, None, 4000)]))
    kept = next(number for number, part in enumerate(every) if part.content == b"line 250")
    pod.rotate(kept)
    events += [*log.read([served(pod, log.since)]), *log.rest()]
    got = text(events, "main")
    lost = sum(event.size_bytes for event in events if isinstance(event, LogLost))
    assert got.endswith(b"".join(main[250:])) and len(got) + lost == len(b"".join(main)) and lost > 0
    assert b"".join(main).startswith(got[: len(got) - len(b"".join(main[250:]))])


@pytest.mark.parametrize("again", [0, 40, 250])
def test_a_file_that_the_node_serves_twice_is_read_once(tmp_path: Path, again: int) -> None:
    """A kubelet whose reader is slow notices two rotations one after the other, and sends the last file for each."""
    main = [f"line {number}\n".encode() for number in range(300)]
    pod = on_node(tmp_path, itertools.count(1_800_000_000.0, 0.01), written(tmp_path, main))
    lines = served(pod, None).splitlines(keepends=True)
    for until in (again + 2, again + 51, len(lines) - 1):
        log = PodLog()
        events = [*log.read([*lines[:until], *lines[again:]]), *log.rest()]
        assert text(events, "main") == b"".join(main), until
        assert controls(events) == list(range(len(controls(events))))


def test_a_clock_of_the_node_that_goes_back_loses_nothing(tmp_path: Path) -> None:
    main = [f"line {number}\n".encode() for number in range(300)]
    clock = itertools.chain(
        itertools.islice(itertools.count(1_800_000_000.0, 0.01), 400), itertools.count(1_700_000_000.0)
    )
    pod = on_node(tmp_path, clock, written(tmp_path, main))
    events = read(pod, [])
    assert text(events, "main") == b"".join(main)


def _parts(pod: Pod) -> list[Part]:
    return pod.parts


def test_what_is_written_around_the_program_is_shown_and_changes_nothing(tmp_path: Path) -> None:
    """A process of the job may write to the container's own output."""
    stdout = written(tmp_path)
    first, rest = stdout.split(b"\n", 1)
    mixed = b"early words\n" + first + b"\n" + rest.replace(b"one\n", b"one\nfrom beside\n")
    events = read(on_node(tmp_path, itertools.count(1_800_000_000.0, 0.1), mixed), [700, 900])
    assert text(events, "main") == b"".join(MAIN).replace(b"one\n", b"one\nfrom beside\n")
    assert text(events, "setup") == SETUP
    assert [event.data for event in events if isinstance(event, LogText) and event.of is None] == [b"early words\n"]


def test_a_container_without_the_program_shows_its_words() -> None:
    log = PodLog()
    line = b"2027-01-15T08:00:00.000000001Z python3: can't open file '/tpujob/in/agent.zip'\n"
    assert [*log.read([line]), *log.rest()] == [LogText(None, b"python3: can't open file '/tpujob/in/agent.zip'\n")]


def test_words_of_the_node_are_no_log() -> None:
    said = b'failed to watch file "/var/log/pods/x": no space left on device\n'
    assert list(PodLog().read([said])) == [NodeSays(said[:-1])]


def lines(pieces: Iterable[bytes]) -> list[Line]:
    return [line for batch in batches(pieces) for line in batch]


def test_lines_come_whole_from_pieces_of_any_size_and_the_last_one_only_with_its_end() -> None:
    sent = b"2027-01-15T08:00:00.123456789Z a\n2027-01-15T08:00:00.5+01:00 b c\n2027-01-15T08:00:01Z cut o"
    for size in (1, 2, 7, 1000):
        found = lines(sent[at : at + size] for at in range(0, len(sent), size))
        assert [line.content for line in found] == [b"a", b"b c"]
    assert [time_of(line.stamp or b"") for line in found] == [pytest.approx(1800000000.123457), 1799996400.5]


def test_a_time_that_is_none_is_none() -> None:
    (line,) = lines([b"9999-99-99T99:99:99Z x\n"])
    assert time_of(line.stamp or b"") is None


def test_a_line_without_an_end_takes_no_more_memory_than_a_line_may() -> None:
    found = lines(b"x" * 65536 for _ in range(64))
    assert len(found) == 64 * 65536 // (LINE_BYTES + 65536) and {line.stamp for line in found} == {None}


@pytest.mark.parametrize("line", [
    b"::tpujob", b"::tpujob ", b"::tpujob {", b"::tpujob []", b"::tpujob {}",
    b'::tpujob {"n": -1, "at": 0, "of": null}', b'::tpujob {"n": true, "at": 0, "of": null}',
    b'::tpujob {"n": 1e3, "at": 0, "of": null}', b'::tpujob {"n": 1, "at": 99999999999999999999999, "of": null}',
    b'::tpujob {"n": 1, "at": 1, "of": []}', b"::tpujob " + b'{"a":' * 100_000, b"::tpujob \xff", b"::tpujob|",
    b"::tpujob|x",
])  # fmt: skip
def test_a_control_line_that_makes_no_sense_is_a_line_of_the_job(line: bytes) -> None:
    assert parse(line) == Text(line + b"\n")


def test_marks_keep_what_a_new_connection_repeats_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_output, "MARK_BYTES", 1000)
    fd = os.open(tmp_path / "stdout", os.O_RDWR | os.O_CREAT)
    output = Output(fd)
    output.begin("main")
    for _ in range(100):
        output.log(b"0123456789" * 10 + b"\n")
    os.close(fd)
    marks = [parse(line) for line in (tmp_path / "stdout").read_bytes().split(b"\n") if line.startswith(b"::tpujob {")]
    at = [mark.at for mark in marks if isinstance(mark, Control)]
    assert len(at) == 10 and at == sorted(at) and at[0] == 1010


def test_a_broken_stdout_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = Output(writing)
    output.begin("main")
    output.log(b"words\n")
    output.control(ended="main", rc=0)
    os.close(writing)
    assert output.broken and output.at == 6
