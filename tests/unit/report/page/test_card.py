"""The card of a run in a notebook: what it says, its picture, and that nothing in it runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.session.events import RunResult
from orchestrator.errors import PayloadFailed
from orchestrator.report.page import card

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def result(directory: Path, **more: Any) -> RunResult:
    fields: dict[str, Any] = {
        "run": "abc", "name": "fit", "state": "succeeded", "exit_code": 0, "directory": directory, "started_at": 0.0,
        "ended_at": 75.0, "accelerator": "v5litepod-8", "zone": "us-central1-a", "cost_usd": 0.5,
        "report": directory / "report.html", **more,
    }  # fmt: skip
    return RunResult(**fields)


def shown(made: RunResult) -> str:
    found = made._repr_html_()
    assert found is not None
    return found


def curves(directory: Path, *rows: dict[str, Any]) -> Path:
    path = directory / "worker0" / "artifacts" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_it_says_how_the_run_ended_where_it_was_and_what_it_cost(tmp_path: Path) -> None:
    text = text_of(shown(result(tmp_path, metrics={"lr": 1, "loss": 0.25, "seconds": {"train_s": 1}})))
    assert " fit · succeeded abc · v5litepod-8 · us-central1-a · 1 m 15 s · $0.50 loss 0.25 lr 1 Report: " in text
    assert f"{tmp_path}/report.html" in text and "EMULATED" not in text
    text = text_of(shown(result(tmp_path, emulated=True, cost_usd=None)))
    assert "an unknown amount emulated" in text and "EMULATED: its seconds are not those of a real TPU" in text
    error = PayloadFailed("the job failed on worker0 with code 7", rc=7)
    text = text_of(shown(result(tmp_path, state="failed", exit_code=7, error=error, released=False, release="held")))
    assert "failed" in text and "the job failed on worker0 with code 7; not released: held" in text
    text = text_of(shown(result(tmp_path, state="running", exit_code=None, ended_at=None, released=False, report=None)))
    assert "running, goes on abc · v5litepod-8 · us-central1-a " in text and "Report" not in text
    assert "abc · 1 m 15 s · no cost" in text_of(shown(result(tmp_path, accelerator=None, zone=None, cost_usd=None)))


def test_it_draws_the_first_curves_with_gaps_where_a_value_is_no_number(tmp_path: Path) -> None:
    values = (4.0, float("nan"), 2.0, 3.0)
    rows = [{"step": step, "norm": step, "val_acc": 0.5, "loss": value} for step, value in enumerate(values)]
    page = shown(result(curves(tmp_path, *rows)))
    assert re.findall('aria-label="([^"]+)"', page) == [
        "loss over steps: from 4 to 3", "val_acc over steps: from 0.5 to 0.5",
    ]  # fmt: skip
    assert re.findall(' d="([^"]+)"', page)[0] == "M0.0 3.0 M173.3 61.0 L260.0 32.0"


def test_values_that_differ_by_less_than_a_float_can_halve_are_drawn(tmp_path: Path) -> None:
    assert "<svg" in shown(result(curves(tmp_path, {"step": 0, "loss": 0.0}, {"step": 1, "loss": 5e-324})))


def test_a_run_whose_directory_is_gone_or_not_readable_has_a_card_without_a_picture(tmp_path: Path) -> None:
    assert "<svg" not in shown(result(tmp_path / "gone")) and "loss" in shown(result(tmp_path, metrics={"loss": 1.0}))
    broken = curves(tmp_path, {"loss": 1e308, "step": 1}, {"loss": -1e308, "step": 2}, {"loss": "x"})
    assert "<svg" in shown(result(broken)) and "nan" not in shown(result(broken))


def test_nothing_in_it_runs_and_it_is_small_whatever_the_job_calls_its_metrics(tmp_path: Path) -> None:
    rows = [{"step": step, **{f"{HOSTILE}{name}": step**2 for name in range(30)}} for step in range(3000)]
    error = PayloadFailed(HOSTILE * 100, rc=1)
    made = result(curves(tmp_path, *rows), name=f"{HOSTILE}\x1b[2J", error=error, zone=HOSTILE, metrics={HOSTILE: 1.0})
    page = shown(made)
    assert set(re.findall(r"<(\w+)", page)) == {"div", "b", "span", "svg", "path", "code"} and "\x1b" not in page
    assert len(page) < 60_000 and "&lt;script&gt;" in page and "hf_" not in page


def test_a_secret_by_its_shape_is_not_shown(tmp_path: Path) -> None:
    secret = "hf_" + "a1" * 15
    assert secret not in shown(result(tmp_path, error=PayloadFailed(f"no {secret}", rc=1), metrics={secret: 1.0}))


def test_a_card_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "card", lambda *_, **__: 1 / 0)
    assert result(tmp_path)._repr_html_() is None
