"""trace.json by the rules of the Trace Event Format, and by those that Perfetto adds: it drops what breaks them."""

import itertools
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.report.page.timeline import RunData, Slice, _laid_out, trace
from tests.unit.report.page.world import HEADER, World, plain_run, preempted_twice, training_steps

Event = dict[str, Any]


def traced(data: RunData) -> dict[str, Any]:
    return trace(data, lambda text: text)


def lines_of(data: RunData) -> list[tuple[str, list[Event]]]:
    """Return the name of each line and its slices, in the order of their numbers."""
    events = traced(data)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    return [(names[line], [event for event in slices if event["tid"] == line]) for line in sorted(names)]


def overlaps(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return the slices of a line that begin in another one and end after it: Perfetto drops the second one."""
    spans = [(event["ts"], event["ts"] + event["dur"], event["name"]) for event in events]
    pairs = itertools.combinations(sorted(spans, key=lambda each: (each[0], -each[1])), 2)
    return [(a[2], b[2]) for a, b in pairs if b[0] < a[1] < b[1]]


def test_the_trace_has_attempts_phases_and_steps_at_their_times(tmp_path: Path) -> None:
    found = traced(plain_run(tmp_path / "a").data())
    spans = {event["name"]: event for event in found["traceEvents"] if event["ph"] == "X"}
    job = spans["job"]
    assert (job["ts"], job["dur"]) == (65_000_000, 120_000_000)
    assert spans["compile"]["ts"] == 65_000_000 + 10_000_000 and spans["step 1 (compiles)"]["dur"] == 4_000_000
    assert sum(
        event["args"]["steps"] for event in spans.values() if event["name"].startswith("step") and "args" in event
    )
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans.values())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_bar_of_an_epoch_has_the_checkpoints_and_the_profile_within_it(tmp_path: Path) -> None:
    def spent(name: str, end_s: float, seconds: float) -> dict[str, Any]:
        return {"span": name, "t_s": end_s, "s": seconds}

    def epoch(number: int, end_s: float, seconds: float) -> dict[str, Any]:
        return {"epoch": number, "t_s": end_s, "s": seconds, "compile_s": 1.0, "warm_steps": 5, "steps": 6}

    world = plain_run(tmp_path / "a")
    within = [spent("checkpoint", 13.0, 2.0), spent("profile", 18.0, 3.0)]
    between, after = [spent("checkpoint", 24.0, 4.0)], [spent("checkpoint", 40.0, 2.0)]
    world.timing([*within, epoch(1, 20.0, 4.0), *between, epoch(2, 30.0, 5.0), *after])
    spans = [each for each in traced(world.data())["traceEvents"] if each["name"].startswith("epoch ")]
    assert [(span["ts"] / 1e6 - 65, span["dur"] / 1e6) for span in spans] == [(10.0, 10.0), (24.0, 6.0)]


def test_a_resumed_training_is_at_the_times_of_its_attempts(tmp_path: Path) -> None:
    world = preempted_twice(tmp_path / "a")
    lines = training_lines()
    world.write("worker0/artifacts/timing.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    steps = [e for e in traced(world.data())["traceEvents"] if e["ph"] == "X" and e["name"].startswith("step ")]
    ran = [each.running_at - world.data().report.started_at for each in world.data().report.attempts]
    assert [step["ts"] / 1e6 for step in steps] == pytest.approx([ran[1] + 1, ran[2] + 1])
    assert [step["name"] for step in steps] == ["step 1", "step 41"]


ODD = st.sampled_from(
    [0, 1, -1, 2, 5e-324, 1e15, 1e308, math.inf, math.nan, None, True, "", "x" * 999, "\ud800", [], [1], {}]
)
KEYS = "t_s dt_s compile epoch warm_steps s span timing schema step loss seconds dataset name train_loss hbm_used_bytes host"
NAMES = ("timing.jsonl", "metrics.jsonl", "tpu-metrics.jsonl", "metrics.json", "provenance.json")


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    lines=st.lists(st.dictionaries(st.sampled_from(KEYS.split()), ODD, max_size=6), max_size=6),
    begin=st.sampled_from(["not json\n", "", "\ud800", "[]\n", f"{json.dumps(HEADER)}\n"]),
)
@example("timing.jsonl", [], "not json\n")
@example("timing.jsonl", [{"t_s": 1, "dt_s": 0}] * 3, f"{json.dumps(HEADER)}\n")
@example("timing.jsonl", [{"t_s": 1, "dt_s": 5e-324}] * 3, f"{json.dumps(HEADER)}\n")
def test_no_file_of_a_worker_ends_the_page_or_the_trace(
    tmp_path_factory: pytest.TempPathFactory, name: str, lines: list[dict[str, Any]], begin: str
) -> None:
    world = plain_run(tmp_path_factory.mktemp("x") / "a")
    content = begin + "".join(json.dumps(line) + "\n" for line in lines)
    world.write(f"worker0/artifacts/{name}", content.encode("utf-8", "surrogatepass"))
    assert "<html" in world.page() and json.dumps(traced(world.data()), allow_nan=False)


def test_no_name_of_the_trace_has_a_secret(tmp_path: Path) -> None:
    world = World(tmp_path / "a", name="sekret")
    attempt = world.begin()
    world.refused(attempt, "no sekret capacity")
    world.end(attempt, world.work(attempt, 3))
    found = trace(world.data(), lambda text: text.replace("sekret", "[redacted]"))
    assert "sekret" not in json.dumps(found) and json.dumps(found).count("[redacted]") == 2


def test_all_lines_are_of_one_process_and_none_of_them_is_its_main_thread(tmp_path: Path) -> None:
    """Perfetto sorts processes by what happens in them, and shows a thread with the number of its process as another kind."""
    events = traced(preempted_twice(tmp_path / "a").data())["traceEvents"]
    assert {event["pid"] for event in events} == {1} and [e["name"] for e in events].count("process_name") == 1
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] == "X"} <= named and 1 not in named


def test_the_lines_are_those_of_the_timeline_and_then_those_of_the_job(tmp_path: Path) -> None:
    world = preempted_twice(tmp_path / "a")
    world.timing(training_steps(10))
    assert [name.partition(" · ")[0] for name, _ in lines_of(world.data())] == [
        *("attempt 1", "v5litepod-8", "attempt 2", "v5litepod-8", "attempt 3"),
        *("job: phases", "job: epochs", "job: steps"),
    ]


@pytest.mark.parametrize("count", [50, 5_000])
def test_no_slice_ends_after_one_in_which_it_begins(tmp_path: Path, count: int) -> None:
    """Times are rounded, each by itself: the ends of steps to 10 µs, what they took to 1 µs."""
    noise = random.Random(1)
    world = preempted_twice(tmp_path / "a")
    steps = training_steps(count, seconds=[round(noise.uniform(0.001, 0.002), 6) for _ in range(997)])
    steps[count // 2]["compile"] = True
    world.timing([*steps, {**HEADER, "resumed_after_step": count - 7}, *steps[:40]])
    found = lines_of(world.data())
    assert [(name, overlaps(events)) for name, events in found if overlaps(events)] == []
    assert sum(event["args"]["steps"] for event in dict(found)["job: steps"]) == count + 40, "no step is lost"


@pytest.mark.parametrize(
    ("slices", "laid_out"),
    [
        ([(0.0, 1.0), (0.9999999, 2.0)], [(0, 1_000_000), (1_000_000, 2_000_000)]),
        ([(0.0, 3.0), (1.0, 2.0), (2.0, 3.0)], [(0, 3_000_000), (1_000_000, 2_000_000), (2_000_000, 3_000_000)]),
        ([(0.0, 3.0), (1.0, 2.0), (1.5, 4.0)], [(0, 3_000_000), (1_000_000, 2_000_000), (3_000_000, 4_000_000)]),
        ([(-1.0, 0.5), (2.0, 1.0)], [(0, 500_000), (2_000_000, 2_000_000)]),
        (
            [(2.0, 7.0), (3.0, 9.0), (5.0, 8.0)],
            [(2_000_000, 7_000_000), (7_000_000, 9_000_000), (7_000_000, 8_000_000)],
        ),
    ],
    ids=["by rounding", "within", "across two", "before the run, and backwards", "within one that was moved"],
)
def test_slices_of_a_line_follow_each_other_or_lie_within_each_other(
    slices: Sequence[tuple[float, float]], laid_out: list[tuple[int, int]]
) -> None:
    events = _laid_out(11, [Slice("x", *each) for each in slices])
    assert [(event["ts"], event["ts"] + event["dur"]) for event in events] == laid_out


def training_lines() -> list[dict[str, Any]]:
    header = {"schema": 1, "timing": "stamped", "device": "tpu", "processes": 1, "batch_size": 8}
    step = {"epoch": 1, "step": 1, "t_s": 2.0, "dt_s": 1.0}
    return [header, step, {**header, "resumed_after_step": 40}, step]
