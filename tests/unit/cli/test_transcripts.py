"""What a person and a program see: transcripts, exact but for ids and times, and tables on a terminal of any width."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from orchestrator.api.slices.status import SliceRow, WaitingRun
from orchestrator.cli.commands.slices.status import print_slices
from orchestrator.cli.console.tables import print_table
from tests.cli_fixture import Tpujob
from tests.fakes.api import StubReply, stub_api

JOB = """
name: demo
tpu: {zone: us-central1-a}
command: echo hi
limits: {max_duration: 30m}
"""
EMULATED = "EMULATED Cloud TPU on this machine: no Google Cloud project is configured; nothing is billed"


def plain(text: str) -> str:
    """Return the text without what differs each time. (A quick job may end before its watchdog is reported as armed.)"""
    text = re.sub(r"^watchdog .*\n", "", text, flags=re.MULTILINE)
    # A slow machine's slice lives longer, and costs more.
    text = re.sub(r"(<\$0\.01|\$0\.\d\d) emulated", "MONEY emulated", text, flags=re.M)
    text = re.sub(r"Python 3\.\d+ (?=here)", "PYTHON ", text)
    text = re.sub(r"tpujob-[0-9a-z-]{1,20}-[0-9a-z]{10}", "NODE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "DAY", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\dZ", "MINUTE", text)
    text = re.sub(r"\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(
        r"^(|run +|.* runs/demo-)[0-9a-z]{10}(?=\t| ·)", r"\1RUN", text, flags=re.MULTILINE
    )  # perhaps all letters
    text = re.sub(r"(tpujob show |runs/demo-)[0-9a-z]{10}\b", r"\1RUN", text)
    text = re.sub(r"\b(\d+ m )?\d+(\.\d+)? s\b", "SECONDS", text)
    return re.sub(r"\b(?=[0-9a-z]*\d)[0-9a-z]{10}\b", "RUN", text)


def test_a_run(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(JOB))
    assert plain(done.stderr) == (
        f"cloud    {EMULATED}\n"
        "plan     v5litepod-8 · us-central1-a · v2-alpha-tpuv5-lite · on-demand · 1 worker · 8 cores emulated as 2"
        " · ends by DAY at the latest\n"
        "plan     on Google Cloud this would be about $9.60/h, at most $4.80 (30 m at $9.60/h) (price table 2026-11)\n"
        "plan     the job's own code gets PYTHON here; a TPU VM has Python 3.10\n"
        "lease    NODE · no guardian (TPUJOB_GUARDIAN=off)\n"
        "ready    v5litepod-8 us-central1-a in SECONDS · NODE\n"
        "run      RUN · SECONDS · runs/demo-RUN/report.html · tpujob show RUN\n"
    )
    *lines, spans, cost, released = done.stdout.splitlines()
    assert lines == ["worker0 | hi", "result   succeeded"]
    assert spans.startswith("spans ") and plain(released) == "released NODE absent (checked TIME)"
    assert plain(cost) == "cost     MONEY emulated (price table 2026-11)"


def test_a_run_without_a_file_is_shown_with_its_command(tpujob: Tpujob) -> None:
    assert "there is no run yet" in tpujob("show").stderr
    assert tpujob("run", "--zone", "us-central1-a", "--set", "code=null", "--", "echo", "h i").returncode == 0
    shown = tpujob("show").stdout  # of the newest run
    assert plain(shown).startswith("run      RUN · echo · succeeded") and "\njob      echo 'h i'\n" in shown


def test_a_plan(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("plan", tpujob.job(JOB))
    assert done.stdout == ("1\tv5litepod-8\tus-central1-a\ton-demand\tv2-alpha-tpuv5-lite\t9.60\t4.80\tasked for\n")
    assert "request  POST https://tpu.googleapis.com/v2/projects/emulated/locations/us-central1-a/nodes?" in done.stderr


def test_a_plan_of_a_wrong_file_gives_no_hint_to_plan_it(tpujob: Tpujob) -> None:
    done = tpujob("plan", tpujob.job("comand: ls\n"))
    assert done.returncode == 64 and "did you mean `command`?" in done.stderr and "hint:" not in done.stderr


def test_a_plan_as_json_has_the_exact_request_of_every_candidate(tpujob: Tpujob) -> None:
    job = JOB.replace(
        "tpu: {zone: us-central1-a}", "tpu: [{zone: us-central1-a}, {zone: us-east1-b, provisioning: queued}]"
    )
    shape = json.loads(tpujob("plan", tpujob.job(job), "--json").stdout)
    assert sorted(shape) == [
        "asked", "candidates", "cloud", "cores", "dropped", "environment", "job", "max_duration_s", "max_results_bytes",
        "order", "overlap_usd", "project", "race", "request", "ship", "wait_s", "workers", "worst_case_usd",
    ]  # fmt: skip
    assert shape["request"]["method"] == "POST"
    assert shape["request"]["body"]["acceleratorType"] == "v5litepod-8"
    assert shape["request"]["body"]["labels"]["tpujob"] == "1"
    assert shape["worst_case_usd"] == pytest.approx(4.8)
    first, second = shape["candidates"]
    assert first["request"] == shape["request"] and "/us-east1-b/queuedResources?" in second["request"]["url"]


ALTERNATIVES = """
command: echo hi
tpu:
  order: cheapest
  max_price_per_hour: 10
  any_of:
    - {accelerator: v5litepod-8, zone: "us-central1-a, europe-west4-a"}
    - {accelerator: v3-8, zone: any}
"""


def test_a_plan_of_alternatives_knows_what_was_granted_and_what_the_project_has_and_says_what_it_dropped(
    tpujob: Tpujob,
) -> None:
    (tpujob.directory / "home" / ".config" / "tpujob").mkdir(parents=True)
    settings = tpujob.directory / "home" / ".config" / "tpujob" / "settings.yaml"
    settings.write_text("quota: [5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a]\n")
    assert "project  what emulated has, asked on " in tpujob("offers", "--refresh", "--type", "v3-8").stderr
    done = tpujob("plan", tpujob.job(ALTERNATIVES))
    first, *others = done.stdout.splitlines()
    assert first.split()[1:7] == ["v3-8", "europe-west4-a", "on-demand", "tpu-ubuntu2204-base", "granted", "granted"]
    assert first.endswith("your settings say that it is granted (5 on-demand v3-8)")
    assert [line.split()[2] for line in others] == [
        "us-central1-a", "us-central1-b", "us-central1-f", "us-east1-d", "us-central1-a"
    ]  # fmt: skip
    assert "plan     not v5litepod-8 (on-demand) in europe-west4-a: max_price_per_hour: " in done.stderr
    assert "plan     what your project has is as it was asked on " in done.stderr


def test_offers_are_a_table_on_stdout_and_the_rest_is_talk(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("offers", "--type", "v3-8", "--zone", "europe-west4")
        data = tpujob("offers", "--zone", "us-east1-d", "--type", "v3-8", "--json")
    assert done.stdout == "v3-8\t2x2\t4\t1\t128\teurope-west4-a\t8.80\t2.24\n"
    assert done.stderr == (
        "prices   price table 2026-11, for an hour of the whole slice; empty is unknown\n"
        "project  what yours really has: `tpujob offers --refresh`\n"
    )
    shape = json.loads(data.stdout)
    assert (shape["prices_as_of"], shape["project"]) == ("price table 2026-11", None)
    (row,) = shape["offers"]
    assert " ".join(row) == (
        "accelerator_type generation topology chips cores hosts hbm_gib runtime_version zone region usd_per_hour "
        "spot_usd_per_hour granted granted_spot project_has_it"
    )
    assert (row["usd_per_hour"], row["spot_usd_per_hour"]) == (8.0, None)


def test_offers_take_types_and_places_without_an_option(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        named = tpujob("offers", "--type", "v6e-8", "--zone", "us-east5")
        assert named.returncode == 0 and tpujob("offers", "v6e-8", "us-east5").stdout == named.stdout
        assert {line.split("\t")[0] for line in tpujob("offers", "v4").stdout.splitlines()} >= {"v4-8", "v4-64"}
        both = tpujob("offers", "v6e-8", "v5e")
        mars = tpujob("offers", "v6e-8", "mars-north1")
    assert both.returncode == 64 and "one type at a time, not v6e-8 and v5e" in both.stderr
    assert mars.returncode == 64 and "hint: zones with TPUs: asia-" in mars.stderr


def test_a_bucket_in_another_region_stops_a_run_before_anything_is_created(tpujob: Tpujob) -> None:
    with stub_api() as storage, tpujob.starting_no_emulator():
        storage.answers(StubReply(200, {"location": "EUROPE-WEST4"}))
        there = {"STORAGE_EMULATOR_HOST": storage.url}
        job = tpujob.job(JOB + "bucket: gs://my-bucket/runs\n")
        for command in ("plan", "run"):
            done = tpujob(command, job, env=there)
            assert done.returncode == 64
            assert (
                "gs://my-bucket is in europe-west4, not in us-central1: copying between them costs about $"
                in done.stderr
            )
            assert done.stderr.endswith("hint: `allow_egress: true` in the job accepts that\n")
        allowed = tpujob(
            "plan", tpujob.job(JOB + "bucket: gs://my-bucket/runs\nallow_egress: true\n", "allowed.yaml"), env=there
        )
        assert allowed.returncode == 0
        storage.answers(StubReply(501, "objects only"))
        unknown = tpujob("plan", job, env=there)
        assert unknown.returncode == 0 and "bucket   the region of gs://my-bucket is unknown" in unknown.stderr


def test_a_dry_run_of_up_prints_the_request_and_creates_nothing(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("up", "--zone", "us-central1", "--dry-run")
        exact = tpujob("up", "--zone", "us-central1", "--dry-run", "--json")
    assert done.returncode == 0 and len(done.stdout) < 2000
    first, *lines = done.stdout.splitlines()
    assert first.startswith("POST https://tpu.googleapis.com/v2/projects/emulated/locations/us-central1-a/nodes?")
    assert "runtimeVersion: v2-alpha-tpuv5-lite" in lines and "labels:" in lines and "  tpujob: 1" in lines
    assert any(
        re.fullmatch(r"  startup-script: \(\d+\.\d KB, sha256 [0-9a-f]{16}; `--json` has it\)", each) for each in lines
    )
    assert json.loads(exact.stdout)["body"]["runtimeVersion"] == "v2-alpha-tpuv5-lite"


@pytest.mark.parametrize(
    ("said", "idle_s"),
    [((), "3600.0"), (("--idle", "never"), "null"), (("--idle", "2m"), "120.0"), (("--ttl", "30m"), "3600.0")],
)
def test_up_holds_for_an_hour_of_real_time_without_use_unless_told_otherwise(
    tpujob: Tpujob, said: tuple[str, ...], idle_s: str
) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("up", "--zone", "us-central1", "--accelerator", "tpu-v5e-8", "--dry-run", "--json", *said)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)["body"]
    assert body["acceleratorType"] == "v5litepod-8" and f'\n "idle_s": {idle_s},' in body["metadata"]["startup-script"]
    ends = "plan     it is deleted after 1 h without a job or a login (`--idle` sets another time, `--idle never` none)"
    assert (ends in done.stderr) == (not said)


def test_status_of_nothing(tpujob: Tpujob) -> None:
    done = tpujob("status")
    assert plain(done.stdout) == (
        "emulated cloud · asked the API at TIME · all zones, complete\n"
        "Google Cloud · not asked: no project is configured\n"
        "nothing of tpujob is alive there\n"
    )
    assert done.stderr == f"cloud    {EMULATED}\n"


def test_status_of_a_held_slice(tpujob: Tpujob) -> None:
    tpujob("up", "alice", "--zone", "us-central1-a")
    *_, row = re.sub("MINUTE|TIME", "WHEN", plain(tpujob("status").stdout)).splitlines()  # it may be about midnight
    claim, money = "held, idle, until WHEN; if unused, until WHEN", ["MONEY emulated", "$230.40"]
    assert row.split("\t") == ["alice", "v5litepod-8", "us-central1-a", "READY", claim, *money, "NODE"]
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert " ".join(row) == (
        "name node project zone accelerator_type spot purpose lease lease_id state created_at deadline ends_at hold_until "
        "idle_s idle_ends_at down_at in_use followed usd_per_hour usd_so_far usd_at_most budget_usd mode emulated run owner "
        "yours remark"
    )


def test_list_and_show_of_a_run(tpujob: Tpujob) -> None:
    tpujob("run", tpujob.job(JOB))
    listed = "RUN\tdemo\tsucceeded\tv5litepod-8\tus-central1-a\tMINUTE\tSECONDS\t-\tMONEY emulated\n"
    assert plain(tpujob("list").stdout) == listed
    shown = plain(tpujob("show", "demo").stdout)
    assert "run      RUN · demo · succeeded · SECONDS · emulated\n" in shown
    assert "cost     MONEY emulated\n" in shown
    assert "event    DAY  proven gone: get 404, complete list without it, create settled\n" in shown
    assert " ".join(tpujob.only_run()) == (
        "run name state exit_code cloud job started_at ended_at directory cost_usd params sweep variant "
        "accelerator_type zone metric value detail hint spec lease attempts workers events figures metrics files results "
        "made host"
    )


def test_list_has_the_main_figure_of_a_run_and_takes_conditions(tpujob: Tpujob) -> None:
    tpujob("run", tpujob.job(JOB))
    line = 'command: |\n  echo \'{"step": 1, "loss": 0.25}\' > $TPUJOB_ARTIFACTS/metrics.jsonl\n  '
    job = JOB.replace("demo", "fit").replace("command: ", line) + "params: {lr: 0.1}\n"
    assert tpujob("run", tpujob.job(job)).returncode == 0
    listed = tpujob("list", "--filter", "params.LR>0.01", "--filter", "type=v5*").stdout
    assert listed.split("\t")[7:-1] == ["loss 0.25"]
    (found,) = json.loads(tpujob("list", "--json", "--filter", "figure<=0.25").stdout)
    assert [found[key] for key in ("name", "accelerator_type", "zone", "metric", "value")] == [
        "fit", "v5litepod-8", "us-central1-a", "loss", 0.25,
    ]  # fmt: skip
    assert tpujob("list", "--filter", "job=demo").stdout.count("\n") == 1
    assert tpujob("list", "--filter", "state=failed").stdout == "no run meets the conditions\n"
    refused = tpujob("list", "--filter", "colour=red")
    assert refused.returncode == 64 and "--filter `colour=red`: no column `colour`; there are " in refused.stderr


def test_logs_of_a_run(tpujob: Tpujob) -> None:
    tpujob("run", tpujob.job(JOB))
    assert tpujob("logs", "demo").stdout == "worker0 | hi\n"
    assert tpujob("logs", "demo", "-f", "--worker", "0").stdout == "hi\n"
    assert tpujob("logs", "demo", "--json").stdout == '{"worker": 0, "line": "hi"}\n'
    assert tpujob("logs").stdout == "worker0 | hi\n", "without a run, those of the newest one"
    missing = tpujob("logs", "demo", "--worker", "5")
    assert missing.returncode == 64 and "there is no worker5; the only one is worker0" in missing.stderr


@pytest.mark.parametrize(("words", "code", "said"), [
    (["show", "../../x"], 64, "there is no run '../../x'"),
    (["collect", "unknown"], 64, "there is no run 'unknown'"),
    (["run", "missing.yaml"], 64, "missing.yaml: there is no such file"),
    (["up", "Bad_Name"], 64, "'Bad_Name' is not a valid name"),
    (["up", "--zone", "us-centrall1"], 64, "'us-centrall1' is not a zone or region with TPUs"),
    (["up", "--accelerator", "v99-8"], 64, "`v99-8` is not a known accelerator type\nhint: they look like v5lite"),
    (["up", "--ttl", "0"], 64, "--ttl 0: "), (["up", "--cloud", "azure"], 64, "azure"),
    (["stop", "unknown"], 64, "there is no slice named 'unknown'"), (["ssh"], 64, "there is no slice"),
    (["offers", "--type", "v6x"], 64, "--type `v6x` is not a known accelerator type; nearest: v6e-1, v6e-4"),
    (["offers", "--zone", "mars"], 64, "--zone `mars` has no TPUs, by the price table"),
    (["nonsense"], 64, "No such command 'nonsense'"),
    (["emulator", "rehearse", "no.yaml"], 64, "no.yaml cannot be read: No such file or directory\nhint: name another"),
    (["emulator", "fault", "load", "no.json"], 64, "no.json cannot be read: No such file or directory\nhint"),
    (["run", "--acc", "v5e-8"], 64, "No such option: --acc (Possible options: --accelerator)"),
    (["up", "--project", "-oProxyCommand=x"], 64, "-oProxyCommand=x"),
])  # fmt: skip
def test_a_mistake_gets_a_line_a_code_and_no_traceback(tpujob: Tpujob, words: list[str], code: int, said: str) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


HEAD = ("SLICE", "ZONE", "STATE", "CLAIM", "NODE")
ROWS = [
    ("alice", "us-central1-a", "READY", "held, idle, until 2026-11-23 11:02:03Z", "tpujob-alice-x6qn33t5b8"),
    ("lr-sweep-3", "us-east5-b", "CREATING", "run x6qn33t5b8", "tpujob-alice-77qn33t5b8"),
    ("old", "us-east5-b", "unknown: 503", "being deleted", "tpujob-alice-99qn33t5b8"),
]
IDS = ("x6qn33t5b8", "us-central1-a", "lr-sweep-3")


Draw = Callable[..., str]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Draw:
    """Return a function that prints a table on a terminal of this width."""

    def draw(width: int, rows: Any = ROWS, head: Sequence[str] = HEAD, **how: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_table(head, rows, **(how or {"states": (2,), "optional": (4,), "wraps": (3,)}))
        return capsys.readouterr().out

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    return draw


def uncolored(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("width", [70, 80, 120])
def test_a_table_fits_the_terminal_and_breaks_no_id(drawn: Draw, width: int) -> None:
    text = uncolored(drawn(width))
    assert text.startswith("SLICE       ZONE           STATE")
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(name in text for name in IDS)
    assert ("tpujob-alice-x6qn33t5b8" in text) == (width > 70), "the least important column is left out first"


def test_a_name_that_is_cut_keeps_its_end(drawn: Draw) -> None:
    """The names of the runs of a sweep differ in their end."""
    rows = [("x6qn33t5b8", "slow-sweep-4"), ("x6qn33t5b8", "äöü漢字漢字")]
    lines = uncolored(drawn(20, rows, ("RUN", "JOB"), shortens=(1,))).splitlines()
    assert lines[1].split() == ["x6qn33t5b8", "slo…ep-4"] and lines[2].endswith("…漢字")
    assert max(map(cell_len, lines)) <= 20


def test_a_terminal_that_is_narrower_than_the_ids_gets_whole_ids(drawn: Draw) -> None:
    text = uncolored(drawn(20))
    assert all(name in text for name in IDS)


def test_states_are_colored_by_their_meaning(drawn: Draw) -> None:
    text = drawn(120)
    assert "\x1b[32mREADY" in text and "\x1b[33mCREATING" in text and "\x1b[31munknown: 503" in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_color_nothing_but_text_is_printed(
    drawn: Draw, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in drawn(120)


def test_elsewhere_a_row_is_a_line_of_cells_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stdout.isatty()
    print_table(("A", "B"), [("one", "two\tand\nthree"), ("", "x")])
    assert capsys.readouterr().out == "one\ttwo and three\n\tx\n"


def test_headings_that_are_data_are_printed_elsewhere_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", "run a"), [("total", "1.0")], head_is_data=True)
    assert capsys.readouterr().out == "\trun a\ntotal\t1.0\n"


def test_wide_letters_count_as_what_they_take(drawn: Draw) -> None:
    rows = [("名前", "z", "READY", "x", ""), ("ab", "z", "READY", "x", "")]
    first, second = uncolored(drawn(80, rows)).splitlines()[1:]
    assert cell_len(first.partition("z")[0]) == cell_len(second.partition("z")[0])


NOW = 1_795_000_000.0
HOUR = 3600.0


def row(name: str, **other: Any) -> SliceRow:
    known: dict[str, Any] = {
        "name": name, "node": "tpujob-k3f9ab-7q2m4x1pzt", "project": "acme", "zone": "us-central1-a",
        "accelerator_type": "v5litepod-8", "spot": False, "lease": "ready", "lease_id": "7q2m4x1pzt",
        "state": "READY", "created_at": NOW - HOUR, "deadline": NOW + 23.5 * HOUR, "ends_at": NOW + 23.5 * HOUR,
        "usd_per_hour": 9.6, "usd_so_far": 9.6, "usd_at_most": 230.4, "mode": "run", "emulated": True,
        "run": "ygd9h8ty0y", "owner": "k3f9ab", "yours": True, "remark": None, "now": NOW,
    }  # fmt: skip
    return SliceRow(**known | other)


HELD = {"mode": "hold", "in_use": False, "idle_ends_at": NOW + 59 * 60, "run": None}
SLICES = [
    row("alice", **HELD), row("mnist"), row("lr-sweep-12", zone="europe-west4-b", mode="hold", in_use=True),
    row("train", mode="detached", followed=True), row("old", down_at=NOW - 3.0),
]  # fmt: skip
WAITING = [WaitingRun("waiter", "f6c3fe0pff", "emulated", "v5litepod-16", "us-west4")]


Print = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """Return a function that prints these slices on a terminal, and returns its lines."""

    def lines_of(*rows: SliceRow, waiting: Sequence[WaitingRun] = WAITING) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_slices(rows, waiting, complete=True)
        return capsys.readouterr().out.splitlines()

    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return lines_of


def test_at_80_columns_every_slice_and_every_waiting_run_is_a_line(printed: Print) -> None:
    head, *lines = printed(*SLICES)
    assert head.split() == ["SLICE", "TYPE", "ZONE", "STATE", "CLAIM", "COST", "AT", "MOST"]
    assert max(map(len, lines)) <= 80
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert [each[0] for each in cells] == ["alice", "mnist", "lr-sweep-12", "train", "old", "waiter"]
    assert [each[4].strip() for each in cells] == [
        "idle, 59 m left", "run ygd9h8ty0y", "held, in use", "detached, followed", "being deleted",
        "run f6c3fe0pff",
    ]  # fmt: skip
    assert [each.strip() for each in cells[5][1:4]] == ["v5e-16", "us-west4", "waiting"]
    assert [each.strip() for each in cells[0][5:]] == ["$9.60", "$230.40"]


def test_a_long_name_needs_no_second_line(printed: Print) -> None:
    lines = printed(row("keras-tpustrategy"), row("alice", **HELD), waiting=())
    assert len(lines) == 3 and max(map(len, lines)) <= 80


def test_a_remark_is_a_line_below_the_table(printed: Print) -> None:
    assert printed(row("alice", remark="results of 7q2m are on it"))[-1] == "alice: results of 7q2m are on it"


def test_beside_slices_of_google_cloud_a_cost_says_that_it_is_emulated(printed: Print) -> None:
    text = "\n".join(printed(row("alice"), row("bob", emulated=False, usd_so_far=2.0)))
    assert "$9.60 emulated" in text and "$2.00 " in text and "$2.00 emulated" not in text


def test_elsewhere_a_line_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    print_slices([row("alice", **HELD, remark="a remark")], WAITING, complete=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[4].startswith("held, idle, until 2026-") and first.split("\t")[4].endswith("; a remark")
    assert first.split("\t")[5:] == ["$9.60 emulated", "$230.40", "tpujob-k3f9ab-7q2m4x1pzt"]
    assert second == "waiter\tv5litepod-16\tus-west4\twaiting\trun f6c3fe0pff\t-\t-\t"
