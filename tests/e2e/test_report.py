"""The report: every run has one, however it ended, and `tpujob report` writes it again, or one of several runs."""

import csv
import io
import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tpujob as api
from orchestrator.client.results import pages as pages_of_runs
from orchestrator.report.page import pages
from tests.cli_fixture import Tpujob, press

JOB = """
name: fit
tpu: {zone: us-central1-a}
command: |
  for step in 1 2 3; do echo "{\\"step\\": $step, \\"loss\\": 0.$step}" >> "$TPUJOB_ARTIFACTS/metrics.jsonl"; done
  echo trained; exit ${RC:-0}
"""
FAILING = JOB.replace("${RC:-0}", "7")
SWEEP = """
name: lr-sweep
tpu: {zone: us-central1-a}
matrix: {lr: [0.1, 0.3]}
command: |
  echo '{"step": 1, "loss": ${params.lr}}' > "$TPUJOB_ARTIFACTS/metrics.jsonl"
"""


def last_event(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])


def only_page(tpujob: Tpujob, name: str = "fit") -> str:
    (path,) = tpujob.directory.glob(f"runs/{name}-*/report.html")
    return path.read_text()


def test_a_run_ends_with_its_page_and_a_trace(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0, done.text
    (where,) = re.findall(r"^run .* · (runs/fit-\w+/report\.html) · tpujob show", done.stderr, re.M)
    page = (tpujob.directory / where).read_text()
    assert "Succeeded after" in page and "EMULATED." in page and '"loss"' in page and "trained" in page
    trace = json.loads((tpujob.directory / where).with_name("trace.json").read_text())
    assert {"job", "releasing"} <= {event["name"] for event in trace["traceEvents"]}
    assert [path.name for path in tpujob.directory.glob("runs/fit-*/.*")] == [".gitignore"], "no draft is left"


def test_a_failed_job_has_its_page_and_its_event_names_it(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(FAILING), "--json")
    assert done.returncode == 7
    assert "the job failed on worker0 with code 7" in Path(last_event(done.stdout)["report"]).read_text()


def test_an_interrupted_run_has_its_page(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(JOB.replace("exit", "sleep 600; exit")))
    tpujob.until("trained", process)
    press(process)
    process.communicate()
    assert process.returncode == 130 and "Interrupted" in only_page(tpujob)


def test_of_a_run_that_was_killed_the_next_command_writes_the_page(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(JOB.replace("exit", "sleep 600; exit")))
    tpujob.until("trained", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [*tpujob.directory.glob("runs/*/report.html")] == []
    assert tpujob("status").returncode == 0 and tpujob.alive() == []
    assert '<span class="badge">interrupted</span> The process that ran it was killed' in only_page(tpujob)


def test_a_detached_run_has_a_page_at_once_and_its_own_at_its_end(tpujob: Tpujob) -> None:
    done = tpujob("submit", tpujob.job(JOB.replace("exit", "sleep 1; exit")), env={"TPUJOB_COLLECTOR": "off"})
    assert done.returncode == 0, done.text
    assert "Not ended" in only_page(tpujob)
    assert tpujob("attach", "fit").returncode == 0
    assert "Succeeded after" in only_page(tpujob)


def test_a_local_run_has_a_page_without_a_slice(tpujob: Tpujob) -> None:
    local = JOB.replace("tpu: {zone: us-central1-a}", "on: local")
    with tpujob.starting_no_emulator():
        assert tpujob("run", tpujob.job(local)).returncode == 0
    page = only_page(tpujob)
    assert "on this machine, without a TPU" in page and "<strong>none</strong>" in page and "EMULATED" not in page


def test_a_report_that_cannot_be_written_costs_one_line_and_no_result(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise ZeroDivisionError("of the page")

    with monkeypatch.context() as patch:
        patch.setattr(pages, "run_page", fail)
        done = tpujob("run", tpujob.job(FAILING))
    assert done.returncode == 7 and done.stderr.count("report was") == 1
    assert "warning  the report was not written: a bug in tpujob; `tpujob report` writes" in done.stderr
    assert "ZeroDivisionError" not in done.stderr
    assert re.search(r"^run .* · runs/fit-\w+ · tpujob show", done.stderr, re.M), "the line names what is there"
    assert [*tpujob.directory.glob("runs/*/report.html")] == []
    assert tpujob("report", "fit").returncode == 0 and "code 7" in only_page(tpujob)


def test_a_disk_that_is_full_costs_the_page_only(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pages_of_runs, "whole_file", SimpleNamespace(replace=full))
        done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0
    assert re.search(r"the report was not written: runs/fit-\w+/report\.html cannot be written: No space", done.stderr)


def test_ctrl_c_while_the_page_is_made_leaves_out_the_page(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*args: Any, **options: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pages, "run_page", pressed)
        done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0 and "the report was left out" in done.stderr and "result   succeeded" in done.stdout


def test_a_sweep_has_a_page_with_all_of_its_runs(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(SWEEP), "--json")
    assert done.returncode == 0, done.text
    path = Path(last_event(done.stdout)["report"])
    page = path.read_text()
    assert path.parent.name.startswith("lr-sweep-") and "2 runs: 2 succeeded." in page
    for link in re.findall(r'href="(\.\./[^"]+)"', page):
        assert (path.parent / link).is_file(), link
    assert len(re.findall(r'href="\.\./lr-sweep-\d-\w+/report\.html"', page)) == 2
    sweep = path.parent.name.removeprefix("lr-sweep-")
    for name in ("lr-sweep", sweep):
        again = tpujob("report", name)
        assert again.returncode == 0 and again.stdout.strip() == str(path.relative_to(tpujob.directory)), name


def test_report_compares_runs_writes_where_it_is_told_and_prints_the_path(tpujob: Tpujob) -> None:
    for rc in ("0", "7"):
        tpujob("run", tpujob.job(JOB.replace("${RC:-0}", rc)))
    runs = [row["run"] for row in json.loads(tpujob("list", "--json").stdout)]
    (tpujob.directory / "both.html").symlink_to("page.html")
    done = tpujob("report", *runs, "--out", "both.html")
    assert (done.returncode, done.stdout) == (0, "both.html\n"), done.text
    page = (tpujob.directory / "page.html").read_text()
    assert "2 runs: 1 failed, 1 succeeded." in page and f'href="./runs/fit-{runs[0]}/report.html"' in page
    table = tpujob("report", *runs, "--csv")
    assert [row["state"] for row in csv.DictReader(io.StringIO(table.stdout))] == ["failed", "succeeded"]
    assert tpujob("report", *runs, "--csv", "--out", "both.csv").stdout == "both.csv\n"
    assert (tpujob.directory / "both.csv").read_text() == table.stdout


def test_a_page_that_lies_elsewhere_links_to_the_files_of_the_run(tpujob: Tpujob) -> None:
    tpujob("run", tpujob.job(JOB))
    (tpujob.directory / "out").mkdir()
    assert tpujob("report", "fit", "--out", "out/page.html").returncode == 0
    links = re.findall(r'href="(\.\./runs[^"]+)"', (tpujob.directory / "out/page.html").read_text())
    assert len(links) >= 2 and all((tpujob.directory / "out" / link).is_file() for link in links)


@pytest.mark.parametrize(("words", "said"), [
    (("report", "nothing"), "nothing"),
    (("report", "fit", "--out", "no/such/place.html"), "no/such/place.html cannot be written: No such file"),
    (("report", "fit", "--csv", "--open"), "--csv writes no page"),
])  # fmt: skip
def test_what_cannot_be_reported_is_one_clear_line(tpujob: Tpujob, words: tuple[str, ...], said: str) -> None:
    local = JOB.replace("tpu: {zone: us-central1-a}", "on: local")
    tpujob("run", tpujob.job(local))
    done = tpujob(*words)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_open_shows_the_page_in_the_browser_of_the_user(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    tpujob("run", tpujob.job(JOB.replace("tpu: {zone: us-central1-a}", "on: local")))
    done = tpujob("report", "fit", "--open")
    assert done.returncode == 0 and opened == [(tpujob.directory / done.stdout.strip()).as_uri()]


def test_the_python_api_has_the_page_of_a_run_and_of_several(tpujob: Tpujob) -> None:
    client = api.Client("emulated")
    job = api.Job(name="fit", command="echo hi", tpu=api.Tpu(zone="us-central1-a"))
    results = [client.run(job) for _ in range(2)]
    assert all(result.report == result.directory / "report.html" and result.report.is_file() for result in results)
    both = client.report(*(result.run for result in results), out="both.html")
    assert both == tpujob.directory / "both.html" and "2 runs" in both.read_text()
    assert client.report(results[0].run) == results[0].report
