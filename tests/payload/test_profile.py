"""The trace of some steps: which ones, where it is kept, and that a training never fails because of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from payload.clock import Clock
from payload.config import ProfileConfig
from payload.profile import Profile
from tests.payload.command import Run, needs_xla, succeeds

pytestmark = pytest.mark.torch
CONFIG = {"dataset": "synthetic", "examples": 480, "test_examples": 20, "batch_size": 32, "epochs": 2, "model": "mlp"}


class Recorder:
    """A profiler that records what it was asked for, and writes `size_bytes` when it stops. `fails`: the method that raises."""

    def __init__(self, directory: Path, *, fails: str = "", size_bytes: int = 100) -> None:
        self.directory, self.fails, self.size_bytes = directory, fails, size_bytes
        self.steps: list[int] = []
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise RuntimeError(f"{name} of the profiler\nand more lines")

    def start(self) -> None:
        self._called("start")
        self.directory.mkdir()

    def begin_step(self, number: int) -> None:
        self._called("begin_step")
        self.steps.append(number)

    def end_step(self) -> None:
        self._called("end_step")

    def stop(self) -> None:
        self._called("stop")
        if self.size_bytes:
            (self.directory / "vm.xplane.pb").write_bytes(b"x" * self.size_bytes)


class Training:
    """Steps of a training in `directory`, which compiles in its first two."""

    def __init__(
        self, directory: Path, wanted: ProfileConfig | None, *, most_bytes: int = 1000, **options: Any
    ) -> None:
        self.said: list[str] = []
        self.traces: list[Recorder] = []
        self.clock = Clock(0.0)

        def trace(draft: Path) -> Recorder:
            self.traces.append(Recorder(draft, **options))
            return self.traces[-1]

        backend: Any = SimpleNamespace(trace=trace, drain=lambda: None)
        self.profile = Profile(wanted, backend, self.clock, directory, self.said.append, most_bytes=most_bytes)

    def run(self, steps: int, *, after: int = 0) -> Training:
        self.clock.begin_epoch()
        for number, done in enumerate(range(after, steps)):
            self.profile.before(done)
            self.clock.step(1, done + 1)
            self.profile.after(done + 1, compiled=number < 2)
        self.profile.end(steps)
        return self

    @property
    def steps(self) -> list[int]:
        return [step for trace in self.traces for step in trace.steps]


@pytest.mark.parametrize(
    ("start", "steps"), [(1, [1, 2, 3]), (2, [2, 3, 4]), (8, [8, 9, 10]), (19, [19, 20]), (20, [20])]
)
def test_the_steps_from_start_on_are_traced_up_to_the_last_of_the_training(
    tmp_path: Path, start: int, steps: list[int]
) -> None:
    training = Training(tmp_path, ProfileConfig(start, 3)).run(20)
    assert training.steps == steps
    assert training.traces[0].calls.count("stop") == 1
    assert training.profile.described() == {
        "profile": {"first_step": steps[0], "last_step": steps[-1], "size_bytes": 100, "problem": None}
    }
    assert training.said == [f"profile: steps {steps[0]} to {steps[-1]}, 0 KB in profile/"]
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


def test_without_the_key_nothing_is_traced_or_said(tmp_path: Path) -> None:
    training = Training(tmp_path, None).run(20)
    assert (training.steps, training.said, training.profile.described()) == ([], [], {})


def test_a_start_behind_the_last_step_is_reported_once(tmp_path: Path) -> None:
    training = Training(tmp_path, ProfileConfig(100, 5)).run(20)
    assert training.said == ["profile: not written: the training ended after step 20, and `start` is 100"]
    assert training.profile.described()["profile"]["problem"] == training.said[0].partition("written: ")[2]
    assert not training.steps


@pytest.mark.parametrize("start", [5, 10, 11, 12])
def test_a_training_that_was_resumed_at_start_or_behind_it_is_traced_when_it_no_longer_compiles(
    tmp_path: Path, start: int
) -> None:
    assert Training(tmp_path, ProfileConfig(start, 3)).run(20, after=10).steps == [14, 15, 16]


def test_what_an_earlier_attempt_has_traced_is_not_traced_again(tmp_path: Path) -> None:
    Training(tmp_path, ProfileConfig(5, 3)).run(12)
    again = Training(tmp_path, ProfileConfig(5, 3)).run(20, after=6)
    assert not again.steps
    assert again.said == ["profile: an earlier attempt of this run has written it"]
    assert again.profile.described() == {"profile": {"size_bytes": 100, "problem": None}}


@pytest.mark.parametrize("fails", ["start", "begin_step", "end_step", "stop"])
def test_a_profiler_that_fails_costs_one_line_and_nothing_else(tmp_path: Path, fails: str) -> None:
    training = Training(tmp_path, ProfileConfig(5, 3), fails=fails).run(20)
    assert training.said == [f"profile: not written: {fails} of the profiler"]
    assert training.profile.described() == {"profile": {"size_bytes": 0, "problem": f"{fails} of the profiler"}}
    assert not list(tmp_path.iterdir())
    assert len(training.traces) == 1, "it is not tried again"


def test_a_trace_that_is_too_large_is_deleted(tmp_path: Path) -> None:
    training = Training(tmp_path, ProfileConfig(5, 3), size_bytes=2_000_000).run(20)
    assert training.said == ["profile: not written: 2.0 MB are more than 1 KB; trace fewer steps"]
    assert not list(tmp_path.iterdir())


def test_a_profiler_that_writes_nothing_is_reported(tmp_path: Path) -> None:
    training = Training(tmp_path, ProfileConfig(5, 3), size_bytes=0).run(20)
    assert training.said == ["profile: not written: the profiler wrote no file"]


# -- with the real profilers -----------------------------------------------------------------------------------------


@pytest.mark.ci
@needs_xla
def test_torch_xla_writes_the_traced_steps_and_their_programs_as_xprof_reads_them(tmp_path: Path) -> None:
    run = succeeds(tmp_path, {**CONFIG, "profile": {"start": 13, "steps": 5}})
    assert "profile: steps 13 to 17, " in run.stdout
    found = list((run.artifacts / "profile").glob("plugins/profile/*/*.xplane.pb"))
    assert len(found) == 1, "the layout in which xprof looks for it"
    planes = dict(xplanes(found[0].read_bytes()))
    events = [event for plane in planes.values() for event in plane]
    assert {number for name, number in events if name == "train"} == {13, 14, 15, 16, 17}
    assert any("dot" in name for name, _ in events), "operations of the compiled programs"
    assert_marked(run, [(1, 13), (1, 14), (1, 15), (2, 1), (2, 2)])


def test_the_profiler_of_pytorch_writes_the_traced_steps_as_trace_events(tmp_path: Path) -> None:
    run = succeeds(tmp_path, {**CONFIG, "profile": {"start": 4, "steps": 2}}, "--backend", "cpu")
    (path,) = (run.artifacts / "profile").iterdir()
    assert path.name.endswith(".trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert {"train 4", "train 5", "aten::addmm"} <= names
    assert not {"train 3", "train 6"} & names
    assert_marked(run, [(1, 4), (1, 5)])


def assert_marked(run: Run, steps: list[tuple[int, int]]) -> None:
    """The traced steps are marked, counted in no epoch, and part of what the manifest lists."""
    written = [json.loads(line) for line in (run.artifacts / "timing.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in written if line.get("profile")] == steps
    epochs = [line for line in written if "warm_steps" in line]
    compiled = [line for line in written if line.get("compile")]
    assert sum(line["warm_steps"] for line in epochs) == 30 - len(steps) - len(compiled)
    assert run.read("metrics.json")["seconds"]["profile_s"] > 0
    assert any(file["path"].startswith("profile/") for file in run.read("manifest.json")["files"])


def xplanes(content: bytes) -> Iterator[tuple[str, list[tuple[str, int | None]]]]:
    """Yield the name of each plane of an XSpace, and of its events: name and `step_num`."""
    for _, plane in only(content, 1):
        parts = list(fields(plane))
        name = next((value.decode() for number, value in parts if number == 2), "")
        names, stats = ({key: text(value) for key, value in entries(parts, number)} for number in (4, 5))
        found = []
        for line in (value for number, value in parts if number == 3):
            for _, event in only(line, 4):
                inside = list(fields(event))
                which = next((value for number, value in inside if number == 1), 0)
                steps = [stat for number, raw in inside if number == 4 if (stat := dict(fields(raw)))]
                step = next((next(v for k, v in s.items() if k != 1) for s in steps if stats[s[1]] == "step_num"), None)
                found.append((names[which], step))
        yield name, found


def entries(parts: list[tuple[int, Any]], wanted: int) -> Iterator[tuple[int, bytes]]:
    """The entries of a map field: key and message."""
    for number, value in parts:
        if number == wanted:
            entry = dict(fields(value))
            yield entry[1], entry[2]


def text(message: bytes) -> str:
    """Return field 2, the name, of the metadata of an event or a statistic."""
    return next((value.decode() for number, value in fields(message) if number == 2), "")


def only(content: bytes, wanted: int) -> Iterator[tuple[int, Any]]:
    return ((number, value) for number, value in fields(content) if number == wanted)


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message of Protocol Buffers."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield key >> 3, content[at : at + size]
            at += size
