"""The page of a run as text: what it says, also of the device, what it must not let out, and how large it is."""

import base64
import hashlib
import html
import itertools
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator.promise.lease.run_and_attempt import LOCAL, AttemptState, WorkerEnd
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.comparison import groups
from orchestrator.report.files.timing import Piece
from orchestrator.report.page import pages, pictures, summary, timeline
from orchestrator.text.redaction import Redactor
from tests.unit.report.page.world import World, plain_run, preempted_twice, training_steps

HOSTILE = '</script><script>window.owned = 1</script><img src=x onerror="window.owned = 1">\'\u2028&'


def text_of(page: str) -> str:
    """What a person reads of it, roughly."""
    body = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def data_of(page: str) -> Any:
    (text,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def runs_page(*worlds: World) -> str:
    found = [world.data() for world in worlds]
    return pages.runs_page(
        found, title="lr-sweep", links=["a/report.html", *[""] * (len(found) - 1)], hide=lambda text: text
    )


def test_the_top_says_how_it_ended_where_it_ran_and_what_it_cost(tmp_path: Path) -> None:
    text = text_of(plain_run(tmp_path / "b", cloud="emulated").page())
    assert "EMULATED. This TPU was emulated on a CPU" in text and "$0.58 emulated" in text
    text = text_of(plain_run(tmp_path / "a").page())
    top = text[: text.index("Curves")]
    assert "mnist" in top and "Succeeded after 3 m 39 s." in top
    assert "v5litepod-8 · us-central1-a · on-demand" in top and "Cost $0.58" in top
    assert "EMULATED" not in text and "writes it again" not in text and "A dashed line" not in text


def test_a_failed_run_says_why_and_shows_the_end_of_its_log(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    world.end(attempt, world.work(attempt, 3), AttemptState.FAILED, "the job failed on worker0 with code 7")
    world.write("logs/worker0.log", b"x" * 200_000 + b"\nTraceback\nValueError: no\n")
    text = text_of(world.page())
    assert "failed The job failed on worker0 with code 7, after 1 m 42 s." in text and "Exit code 7" in text
    assert "ValueError: no" in text and "bytes are in the file only" in text and len(text) < 20_000


def test_the_top_of_a_failed_run_has_its_parameters_and_the_end_of_its_last_traceback(tmp_path: Path) -> None:
    train = {"entry": None, "model": "mlp", "lr": 0.05, "timing": "stamped"}
    world = World(tmp_path / "a", spec={"params": {"lr": 0.1, "depth": 12}, "train": train})
    attempt = world.begin()
    world.end(attempt, world.work(attempt, 3), AttemptState.FAILED, "the job failed", hint="look at `logs`")
    trace = ["Traceback (most recent call last):", *(f"  File {n}" for n in range(50)), "ValueError: <b>sekret</b>"]
    world.write("logs/worker0.log", "\n".join([trace[0], "KeyError: 1", *trace, "Cleaning up", ""]))
    page = pages.run_page(world.data(), link=".", hide=lambda text: text.replace("sekret", "[redacted]"), trace=False)
    top = text_of(page[: page.index("</header>")])
    assert "model mlp lr 0.1 depth 12 File 39 " in top and "File 49 ValueError: <b>[redacted]</b> look at logs" in top
    assert "KeyError" not in top and "Cleaning up" not in top and "sekret" not in page


@pytest.mark.parametrize(("files", "said"), [
    ({"logs/worker0.log": "one\nno such file\n\n"}, (0, ["no such file"])),
    ({"logs/worker0.log": "boom\n", "worker0/artifacts/function-error.json": json.dumps({"traceback": "x\n\x1b[1my"})},
     (0, ["y"])),
    ({"logs/worker0.log": "boom\n", "worker0/artifacts/function-error.json": json.dumps({"traceback": [1]})}, (0, ["boom"])),
    ({"logs/worker0.log": "\n"}, None),
    ({}, None),
])  # fmt: skip
def test_without_a_traceback_the_last_line_is_the_error(tmp_path: Path, files: dict[str, str], said: Any) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    for path, content in files.items():
        world.write(path, content)
    assert summary.last_words(world.data()) is None, "it has not failed"
    world.end(attempt, world.work(attempt, 3), AttemptState.FAILED, "the job failed")
    assert summary.last_words(world.data()) == said
    assert summary.hyperparameters(world.data().report) == {}


def test_a_failed_run_of_many_workers_says_once_how_they_ended_and_begins_with_a_log_that_says_why(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    ends = tuple(WorkerEnd(index, 0 if index < 20 else 1) for index in range(64))
    why = "the job failed on 44 workers, first on worker20 with code 1"
    world.end(attempt, world.work(attempt, 3), AttemptState.FAILED, why, ends)
    for end in ends:
        world.write(f"logs/worker{end.worker}.log", "ok\n" if end.worker < 20 else "ValueError: no\n")
    page = world.page()
    text = text_of(page)
    assert "worker20 to worker63 ended with 1, alike: ValueError: no worker0 to worker19 succeeded" in text
    assert text.index("worker 20 ValueError: no") < text.index("worker 0 ok") and "worker 21 " not in text
    assert '<details data-key="log 20" open><summary>worker 20</summary>' in page


def test_a_run_that_never_had_a_slice_has_a_page(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    world.refused(attempt)
    world.end(attempt, None, AttemptState.ERROR, "no capacity anywhere")
    text = text_of(world.page())
    assert summary.device_facts(world.data()) == []
    assert "no slice was had" in text and "no capacity anywhere" in text and "Places that gave no slice" in text


def test_a_run_that_goes_on_says_that_it_has_not_ended(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    world.work(world.begin(), 30)
    text = text_of(world.page())
    assert "Not ended: running, 1 m 35 s after its start, when this page was written." in text
    assert f"tpujob report {world.run}" in text


def test_an_attempt_that_begins_while_the_page_is_made_is_on_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "a")
    first = world.begin()
    world.lose(first, world.work(first, 300))
    read, begun = Ledger.attempts_of, []
    for number in range(12):
        moments = itertools.count()

        def attempts_of(self: Ledger, run: str, number: int = number, moments: Any = moments) -> Any:
            attempts = read(self, run)
            if next(moments) == number:
                begun.append(world.begin())
            return attempts

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "attempts_of", attempts_of)
            assert "What the lost slices cost" in text_of(world.page()) or not number
    assert len(begun) > 4


def test_every_attempt_zone_and_wait_is_on_the_timeline_and_each_loss_has_its_price(tmp_path: Path) -> None:
    world = preempted_twice(tmp_path / "a")
    rows = timeline.rows(world.data())
    assert [(row.minor, row.note) for row in rows] == [
        (False, "preempted"), (True, "no capacity"), (False, "preempted"), (True, "no capacity"),
        (False, "succeeded"),
    ]  # fmt: skip
    first = [(span.kind, span.seconds) for span in rows[0].spans]
    assert first == [("wait", 80), ("ship", 5), ("main", 300), ("release", 10)]
    assert [(span.kind, span.seconds) for span in rows[4].spans][-2:] == [("collect", 4), ("release", 30)]
    losses = timeline.losses(world.data())
    assert [(loss.gap_s, loss.redone_s) for loss in losses] == [(95, 45), (75, 100)]
    assert losses[0].usd == pytest.approx(9.6 * (45 + 5) / 3600)
    page = world.page()
    text = text_of(page)
    assert data_of(page)["runs"][0]["restarts"] == [80, 80] and "A dashed line" in text, "where an attempt went on"
    assert (
        "over all 3 attempts" in text
        and "Lost slices 2" in text
        and "What the lost slices cost" in text
        and "goes on at step 80" in text
    )


def test_a_loss_costs_the_time_until_the_job_is_further_than_before(tmp_path: Path) -> None:
    """Not only until the next attempt runs: it starts, restores, compiles and does steps again, on a slice that is paid."""
    world = preempted_twice(tmp_path / "a")
    first, second, _ = world.data().report.attempts
    assert first.ended_at is not None and second.ready_at is not None
    further_at = first.ended_at + 130
    steps = [(79, first.ended_at - 9), (81, further_at), (99, further_at + 9)]
    world.write("logs/steps.jsonl", "".join(json.dumps({"step": step, "at": at}) + "\n" for step, at in steps))
    losses = timeline.losses(world.data())
    assert [loss.behind_s for loss in losses] == [130, None]
    assert losses[0].usd == pytest.approx(9.6 * (further_at - second.ready_at) / 3600)
    assert "set the job back by 3 m 25 s" in text_of(world.page()), "of the second loss, until the next attempt ran"


def test_what_can_be_better_is_among_the_first_figures_and_of_an_evaluation_before_the_rest(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.metrics({"step": step, "lr": 1e-4, "loss": 1 / step, "eval/loss": 2 / step, "norm": step} for step in (1, 2))
    assert [name for name, _ in summary.main_metrics(world.data().report.figures)] == [
        "eval/loss", "loss", "lr", "norm",
    ]  # fmt: skip
    best = {name: each.best for name, each in world.data().report.figures.metrics.items()}
    assert best == {"lr": None, "loss": 0.5, "eval/loss": 1, "norm": None}, "no learning rate is the best"
    assert "What the job reported of itself metric last best at step lowest highest values lr 0.0001 0.0001" in text_of(
        world.page()
    )


def test_the_ticks_of_a_timeline_are_round_times(tmp_path: Path) -> None:
    for seconds, expected in ((30.2, ["0 s", "10 s", "20 s", "30 s"]), (7 * 86_400, ["0 s", "2 d", "4 d", "6 d"])):
        row = timeline.Row("run", (timeline.Span("main", 5.0, 5.0 + seconds),))
        found = pictures.timeline_of([row])
        assert found is not None and [text for _, text in found["ticks"]] == expected


def test_the_last_rate_of_a_training_is_not_that_of_a_few_steps() -> None:
    """The last piece is as long as it happens to be: a single slow step of it would look like a collapse."""
    pieces = [Piece(8 * number, 0.0, 0.0, 8, 8.0) for number in range(1, 11)]
    assert list(pictures._rates([*pieces, Piece(81, 0.0, 0.0, 1, 10.0)], 20))[-2:] == [(72, 1.0), (81, 0.5)]
    assert len(list(pictures._rates(pieces, 20))) == 10 and len(list(pictures._rates(pieces, 5))) == 5
    assert list(pictures._rates([], 5)) == []


def hostile_run(directory: Path) -> World:
    """Return a run whose every word wants to be markup."""
    world = World(directory, name=HOSTILE, spec={"params": {HOSTILE: HOSTILE}, "command": HOSTILE})
    attempt = world.begin()
    world.refused(attempt, HOSTILE)
    world.end(attempt, world.work(attempt, 3), AttemptState.FAILED, HOSTILE)
    name = HOSTILE.replace("\u2028", "")[:60]
    world.metrics([{"step": 1, name: 1.0}, {"step": 2, name: 2.0}])
    return world


def test_nothing_that_a_job_says_becomes_markup_or_script(tmp_path: Path) -> None:
    world = hostile_run(tmp_path / "a")
    world.write("logs/worker0.log", HOSTILE)
    world.write("worker0/artifacts/provenance.json", json.dumps({"device": HOSTILE, "host": {HOSTILE: HOSTILE}}))
    world.write("worker0/artifacts/javascript:alert(1)", "x")
    world.write('worker0/artifacts/<img src=x>".txt', "x")
    page = world.page()
    assert page.count("<script") == 2 and page.count("</script>") == 2 and "<img" not in page
    assert "\u2028" not in page[page.index('<script type="application/json"') :], "to a script it is the end of a line"
    assert data_of(page)["charts"][0]["name"] == HOSTILE.replace("\u2028", "")[:60]
    assert 'href="./worker0/artifacts/javascript%3Aalert%281%29"' in page
    assert not re.search(r'(href|src)="(?!\./|data:,|#)', page)
    assert page.count("owned") > 5, "it is shown, as text"


def test_names_and_texts_that_are_no_unicode_cost_only_themselves(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.write("worker0/artifacts/provenance.json", '{"device": "x\\ud800y", "host": {"\\udcff": 1}}')
    (world.directory / os.fsdecode(b"worker0/artifacts/\xff.bin")).write_bytes(b"x")
    page = pages.run_page(world.data(), link=".", hide=Redactor().hide, trace=True)
    assert 'href="./worker0/artifacts/%FF.bin"' in page and "Succeeded" in page.encode(errors="replace").decode()


def test_the_policy_allows_its_own_script_and_style_and_nothing_else(tmp_path: Path) -> None:
    page = plain_run(tmp_path / "a").page()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    policy = html.unescape(policy)
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", page)
    (style,) = re.findall(r"(?s)<style>(.*?)</style>", page)
    for text in (script, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert " style=" not in page and not re.search(r"\son\w+=", re.sub(r"(?s)<script.*?</script>", "", page))
    assert "Permission is hereby granted" in script, "the licence of what is inlined"


def test_what_is_hidden_is_hidden_everywhere(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a", name="sekret", spec={"params": {"sekret": "sekret"}})
    world.metrics([{"step": 1, "sekret": 1.0}, {"step": 2, "sekret": 2.0}])
    world.write("logs/worker0.log", "the sekret")
    page = pages.run_page(world.data(), link=".", hide=lambda text: text.replace("sekret", "[redacted]"), trace=False)
    assert "sekret" not in page and "the [redacted]" in page


@pytest.mark.parametrize("count", [60_000, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
def test_a_page_stays_small_whatever_the_steps_and_keeps_their_extremes(tmp_path: Path, count: int) -> None:
    assert len(plain_run(tmp_path / "a").page().encode()) < 150_000
    world = plain_run(tmp_path / "b")
    lines = [f'{{"step": {step}, "loss": {1 / step}, "acc": {step / 7e4}}}\n' for step in range(1, count + 1)]
    lines[31_415] = '{"step": 31416, "loss": 123.25, "acc": 0.5}\n'
    world.write("worker0/artifacts/metrics.jsonl", "".join(lines))
    world.timing(training_steps(count))
    page = world.page()
    assert len(page.encode()) < 300_000
    loss = next(chart["series"][0] for chart in data_of(page)["charts"] if chart["name"] == "loss")
    assert max(loss["y"]) == 123.25 and loss["x"][loss["y"].index(123.25)] == 31416
    assert len(loss["x"]) <= 2_002


def test_several_runs_share_a_table_with_the_best_marked_and_one_chart_for_a_metric(tmp_path: Path) -> None:
    one = plain_run(tmp_path / "a", name="lr-1", spec={"params": {"lr": 0.1}})
    two = plain_run(tmp_path / "b", name="lr-2", run="9xk1abcdef", spec={"params": {"lr": 0.3}})
    two.metrics({"step": step, "loss": 2 / step} for step in range(1, 301))
    page = runs_page(one, two)
    text = text_of(page)
    assert (
        "2 runs: 2 succeeded." in text
        and "Best loss 0.006667 lr-2 lr=0.3" in text
        and "Cost $1.17 over all 2 runs" in text
    )
    assert "lr" in text and "0.3" in text
    (row,) = re.findall(r'(?s)<tr><th scope="row">(?:(?!</tr>).)*lr-2.*?</tr>', page)
    assert "best" in row and '<a href="a/report.html">lr-1 lr=0.1</a>' in page
    series_of = {chart["name"]: [series["run"] for series in chart["series"]] for chart in data_of(page)["charts"]}
    assert series_of["loss"] == [0, 1] and series_of["acc"] == [0]


def test_runs_are_named_by_what_differs_and_by_their_names_where_that_is_not_enough(tmp_path: Path) -> None:
    def names(*params: dict[str, Any]) -> list[str]:
        found = []
        for number, said in enumerate(params):
            world = World(tmp_path / f"{number} of {params}", run=f"{number}xk1abcdef", spec={"params": said})
            world.begin()
            found.append(world.data().report.figures)
        return groups.labels(found)

    assert names({"lr": 0.1, "seed": 1}, {"lr": 0.3, "seed": 1}) == ["lr=0.1", "lr=0.3"]
    assert names({"lr": 0.1}, {"lr": 0.1}, {"lr": 0.3}) == ["mnist 0xk1", "mnist 1xk1", "mnist 2xk1"]
    assert names({}, {}) == ["mnist 0xk1", "mnist 1xk1"]


def test_values_without_a_step_have_no_step_axis(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.metrics({"loss": 2 / number} for number in range(1, 51))
    page = world.page()
    drawn = {chart["name"]: chart["series"][0]["stepped"] for chart in data_of(page)["charts"]}
    assert drawn == {"loss": False, "throughput (examples/s)": True, "seconds per step": True}
    assert "loss over values: from 2 to 0.04" in page and "Values of loss Some of the values of loss value" in text_of(
        page
    )


@pytest.mark.ci
def test_a_page_of_fifty_runs_stays_below_a_megabyte(tmp_path: Path) -> None:
    worlds = []
    for number in range(50):
        world = plain_run(tmp_path / f"{number}", name=f"run-{number}", run=f"{number:010d}")
        world.metrics({"step": step, "loss": 1 / step, "acc": step / 999} for step in range(1, 999))
        worlds.append(world.data())
    page = pages.runs_page(worlds, title="fifty", links=[""] * 50, hide=lambda text: text)
    assert len(page.encode()) < 1_000_000


def test_of_values_that_look_alike_none_has_a_star_or_all_have(tmp_path: Path) -> None:
    worlds = [
        plain_run(tmp_path / name, name=name, run=f"{name}xk1abcdef", spec={"params": {"lr": name}}) for name in "abc"
    ]
    for world, loss in zip(worlds, (0.50001, 0.50002, 0.75), strict=True):
        world.metrics([{"step": 1, "loss": loss}])
        world.write("worker0/artifacts/timing.jsonl", "")
    assert "★</span>" not in runs_page(*worlds[:2])
    page = runs_page(*worlds)
    assert page.count("★</span>") == 2 and "Best loss 0.5 a lr=a and 1 more" in text_of(page)


def test_runs_that_did_other_work_have_no_best(tmp_path: Path) -> None:
    one, two = plain_run(tmp_path / "a"), plain_run(tmp_path / "b", run="9xk1abcdef", name="other")
    for world, model in ((one, "mlp"), (two, "alexnet")):
        world.write("worker0/artifacts/metrics.json", json.dumps({"model": model}))
    page = runs_page(one, two)
    assert "★</span>" not in page and "NOT COMPARABLE" in page


GB = 10**9
SAMPLE = {
    "every_s": 10,
    "hbm_used_bytes": [3 * GB, 4 * GB],
    "hbm_total_bytes": [16 * GB] * 2,
    "duty_cycle_percent": [20.0, 40.0],
}


def trained(directory: Path, *, metrics: dict[str, Any] | None = None, **said: Any) -> World:
    world = plain_run(directory, spec={"train": {}, **said.pop("spec", {})}, **said)
    world.write("worker0/artifacts/metrics.json", json.dumps({"images_per_s": 8000.0, **(metrics or {})}))
    return world


def sampled(world: World, *lines: Any) -> World:
    world.write("worker0/artifacts/tpu-metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return world


def said_of(world: World) -> dict[str, str]:
    return {
        fact.label: f"{'not available: ' if fact.is_absent else ''}{fact.text}{fact.command}"
        for fact in summary.device_facts(world.data())
    }


def test_the_device_is_described_by_its_samples(tmp_path: Path) -> None:
    said = said_of(sampled(trained(tmp_path / "run"), {"schema": 1}, SAMPLE, SAMPLE))
    assert said["Throughput per chip"] == "1,000 of 8,000 images/s, on v5litepod-8"
    assert said["Waited for data"] == "0.5 s, 12.6 % of the training"
    assert said["HBM"] == "peak 4.0 of 16.0 GB (25 %), of one chip"
    assert said["Duty cycle"] == "mean 30.0 %, of 2 chips in 2 samples"
    text = text_of(sampled(trained(tmp_path / "page"), SAMPLE).page())
    assert "Throughput 8,000 images/s, 1,000 per chip" in text
    assert text.index(" Speed ") < text.index("peak 4.0 of 16.0 GB (25 %)") < text.index("Duty cycle mean 30.0 %")


@pytest.mark.parametrize("last", ["idle", "used"])
def test_of_what_a_worker_said_of_its_chips_the_last_counts(tmp_path: Path, last: str) -> None:
    said = [{"chips": {"worker": 0, "workers": 1, "use": use, "text": use}} for use in ("idle", last)]
    use = said_of(sampled(trained(tmp_path / "run"), *said)).get("TPU use", "")
    assert use.startswith("worker0 (1 of 1): idle; the run: ") if last == "idle" else not use


@pytest.mark.parametrize(("lines", "why"), [
    (None, "no tpu-metrics.jsonl came from the workers"),
    ([{"schema": 1}], "libtpu reported nothing: no program was loaded, or for less than 10 s"),
    ([{"absent": "the job's python3 has no libtpu.sdk"}], "the job's python3 has no libtpu.sdk"),
])  # fmt: skip
def test_what_a_tpu_did_not_report_is_absent_with_the_reason(tmp_path: Path, lines: Any, why: str) -> None:
    world = trained(tmp_path / "run")
    said = said_of(world if lines is None else sampled(world, *lines))
    assert (said["HBM"], said["Duty cycle"]) == (f"not available: {why}", f"not available: {why}")


def test_an_emulated_tpu_has_neither_and_so_has_a_run_that_turned_it_off_and_a_gpu_has_its_own(tmp_path: Path) -> None:
    said = said_of(trained(tmp_path / "emulated", cloud="emulated"))
    assert said["HBM"] == "not available: emulated (XLA:CPU has no HBM)"
    assert said["Throughput per chip"] == "not available: emulated (processes on the CPU stand for the chips)"
    off = said_of(trained(tmp_path / "off", spec={"tpu_metrics": False}))
    assert off["Duty cycle"] == "not available: turned off by tpu_metrics: false"
    gpu = said_of(trained(tmp_path / "gpu", cloud=LOCAL, metrics={"peak_device_bytes": 5 * GB}))
    assert (gpu["Device memory"], gpu["Duty cycle"]) == ("peak 5.0 GB", "not available: no TPU")


# -- profiles ------------------------------------------------------------------------------------------------------------


def test_a_trace_comes_with_the_command_that_opens_it_whoever_wrote_it(tmp_path: Path) -> None:
    world = trained(tmp_path / "my run", metrics={"profile": {"first_step": 101, "last_step": 105, "problem": None}})
    world.write("worker0/artifacts/profile/plugins/profile/2026_11_23/vm.xplane.pb", b"1")
    world.write("worker0/artifacts/profile/plugins/profile/2026_11_23/vm.trace.json.gz", b"1")
    command = f"xprof --logdir {shlex.quote(f'{tmp_path}/my run/worker0/artifacts/profile')}"
    assert command.endswith("'")
    assert said_of(world)["Profile"] == f"steps 101 to 105; open it with XProf (pip install xprof): {command}"
    assert command in text_of(world.page())
    own = plain_run(tmp_path / "own")
    own.write("worker0/artifacts/traces/plugins/profile/1/host.xplane.pb", b"1")
    assert said_of(own)["Profile"].endswith(f"xprof --logdir {shlex.quote(f'{tmp_path}/own/worker0/artifacts/traces')}")
    of_pytorch = trained(tmp_path / "run")
    of_pytorch.write("worker0/artifacts/profile/vm.trace.json.gz", b"1")
    assert said_of(of_pytorch)["Profile"] == "worker0/artifacts/profile/vm.trace.json.gz opens in Perfetto"


def test_a_profile_that_was_not_written_says_why(tmp_path: Path) -> None:
    problem = "the training ended after step 20, and `start` is 100"
    said = said_of(trained(tmp_path / "a", metrics={"profile": {"size_bytes": 0, "problem": problem}}))
    assert said["Profile"] == f"not available: {problem}"
    assert said_of(trained(tmp_path / "b"))["Profile"] == "not available: train.profile asks for none"
    hostile = said_of(trained(tmp_path / "c", metrics={"profile": {"problem": ["\x1b"], "first_step": "x"}}))
    assert hostile["Profile"] == "not available: train.profile asks for none"


def test_the_histogram_says_that_traced_steps_are_left_out(tmp_path: Path) -> None:
    world = trained(tmp_path / "run")
    world.timing(
        [{"epoch": 1, "step": n, "t_s": n, "dt_s": 1.0, **({"profile": True} if n > 8 else {})} for n in range(1, 11)]
    )
    text = text_of(world.page())
    assert "8 steps: " in text and "2 steps that a profiler traced are left out." in text
