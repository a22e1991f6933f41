"""The table of commands, the help and the completion: no command is loaded before it is called for."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.cli import completion, dispatching, typer_app
from orchestrator.cli.command_table import COMMANDS, GROUPS, LIGHT, function_of, load
from orchestrator.cli.completion import PLAIN
from orchestrator.cli.console import output
from orchestrator.promise.lease.changes import Began, Intent
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.ledger.rows import SweepRecord
from tests.fakes.leases import lease_and_request
from tests.unit.test_shipped_python import CLOUD_AND_SSH, MAIN, SCIENCE, heavy, imported

LEAVES = [name for name, command in COMMANDS.items() if not command.is_group]


def first_sentence(text: str) -> str:
    joined = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.?]) (?=[A-Z`])", joined)[0]


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tpujob", *words])
    return dispatching.dispatch()


@pytest.mark.parametrize("name", LEAVES)
def test_the_summary_of_the_table_is_the_first_sentence_of_the_docstring(name: str) -> None:
    assert COMMANDS[name].summary == first_sentence(typer_app.everything()[name].help)


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_examples_that_its_parser_takes(name: str) -> None:
    assert COMMANDS[name].examples
    for example in COMMANDS[name].examples:
        plain = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example).partition(" > ")[0]
        words = shlex.split(plain, comments=True)
        own = ["tpujob", *name.split()]
        assert words[: len(own)] == own
        typer_app.everything()[name].make_context(name, words[len(own) :])


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_command_that_is_called_without_typer_gets_what_typer_would_pass(name: str) -> None:
    defaults = {each.name: each.default for each in inspect.signature(load(name)).parameters.values()}
    passed = typer_app.everything()[name].make_context(name, []).params
    assert {
        key: None if value == () else value for key, value in passed.items()
    } == defaults  # typer passes no empty list


@pytest.mark.parametrize("own", [0, 3])
def test_a_command_ends_with_75_if_a_client_of_its_own_could_not_prove_a_release(
    monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    def command(unproven: bool) -> int:
        clients: list[Any] = [SimpleNamespace(unproven=each, leave=lambda: None) for each in (False, unproven)]
        output._clients.extend(clients)
        return own

    for unproven, code in ((False, own), (True, 75), (False, own)):
        monkeypatch.setattr(dispatching, "_call", lambda unproven=unproven: command(unproven))
        assert call(monkeypatch, "any") == code, unproven


def test_light_commands_are_called_without_typer_unless_a_shell_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(dispatching, "load", lambda name: lambda: called.append(name))
    assert call(monkeypatch, "emulator", "status") == 0
    assert called == ["emulator status"]
    monkeypatch.setenv("_TPUJOB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "tpujob st")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert call(monkeypatch, "emulator", "status") == 0
    assert called == ["emulator status"]


def test_commands_of_a_group_live_in_the_folder_of_the_group() -> None:
    wrong = [
        name
        for title, group in GROUPS.items()
        for name, command in group.items()
        if not command.is_group and function_of(name).partition(".")[0] != title.lower()
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_has_the_options_of_output_and_no_other_of_their_names(name: str) -> None:
    command = typer_app.everything()[name]
    names = [
        opt
        for param in command.get_params(command.make_context(name, [], resilient_parsing=True))
        for opt in param.opts
    ]
    assert len(names) == len(set(names)) and {"-q", "--quiet", "-v", "--verbose", "--timestamps"} <= set(names)


@pytest.mark.parametrize("columns", [80, 200])
def test_no_help_page_cuts_a_line_or_is_wider_than_80_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    pages = [
        command.get_help(command.make_context(f"tpujob {name}".strip(), [], resilient_parsing=True))
        for name, command in typer_app.everything().items()
    ]
    assert [line for page in pages for line in page.splitlines() if len(line) > 80] == []
    unwrapped = " ".join(pages[0].split())
    assert [
        name for name, each in COMMANDS.items() if " " not in name and f"{name} {each.summary}" not in unwrapped
    ] == []


def test_the_help_of_each_command_ends_with_its_examples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "emulator", "put", "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: tpujob emulator put [OPTIONS] NODE STATE\n")
    assert text.endswith("\nExamples:\n  tpujob emulator put tpujob-alice-x6qn33t5b8 REPAIRING --for 20s\n")


@pytest.mark.parametrize(("words", "message"), [
    (["rum"], "Error: No such command 'rum'. Did you mean 'run'?"),
    (["emulator", "faul"], "Error: No such command 'faul'. Did you mean 'fault'?"),
    (["emulator", "down"], "Error: No such command 'down'. Did you mean 'stop'?"),
    (["ps"], "Error: No such command 'ps'. Did you mean 'status'?"),
    (["emulator", "fault", "rm"], "Error: No such command 'rm'. Did you mean 'clear'?"),
    (["--nope"], "Error: No such option: --nope"), (["attach"], "Error: Missing argument 'RUN'."),
    (["up", "x", "--via", "ipa"], "Error: Invalid value for '--via': 'ipa' is not one of 'external', 'internal'"),
    (["emulator", "put", "node"], "Error: Missing argument 'STATE'."), ([], "Run training jobs on Cloud TPUs"),
    (["emulator"], "Start, stop and inspect the emulated Cloud TPU"),
])  # fmt: skip
def test_a_mistake_is_answered_with_the_usage_and_exit_64(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert call(monkeypatch, *words) == 64
    out, err = capsys.readouterr()
    assert message in out + err
    assert (out + err).startswith("Usage: tpujob ")


def parsed(name: str, *words: str) -> dict[str, object]:
    found: dict[str, object] = typer_app.everything()[name].make_context(name, list(words)).params
    return {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("name", ["run", "submit", "plan"])
def test_words_after_two_dashes_are_the_command_whatever_they_look_like(name: str) -> None:
    command = ["python", "train.py", "--lr", "3e-4", "--help", "--", "-x"]
    assert parsed(name, "--zone", "us-east5", "--", *command) == {"zone": "us-east5", "command": command}
    assert parsed(name, "job.yaml", "--json", "--", "ls") == {
        "file": Path("job.yaml"),
        "as_json": True,
        "command": ["ls"],
    }
    assert parsed(name, "job.yaml", "--") == {"file": Path("job.yaml")}


def test_the_name_of_a_slice_and_the_command_on_it_are_told_apart() -> None:
    assert parsed("ssh", "trainer", "--", "ls", "-l") == {"name": "trainer", "command": ["ls", "-l"], "worker": "0"}
    assert parsed("ssh", "--", "ls") == {"command": ["ls"], "worker": "0"}


@pytest.mark.parametrize("name", ["run", "submit", "plan"])
def test_what_changes_a_job_may_be_given_several_times(name: str) -> None:
    words = ("--env", "A=1", "--env", "B", "--set", "a=b", "--set", "c.d=e", "--spot", "--name", "x", "job.yaml")
    assert parsed(name, *words) == {
        "file": Path("job.yaml"), "env": ["A=1", "B"], "settings": ["a=b", "c.d=e"], "spot": True, "name": "x",
    }  # fmt: skip


@pytest.mark.parametrize("words", [("run", "python", "train.py"), ("ssh", "trainer", "ls")])
def test_a_command_without_the_dashes_is_answered_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert call(monkeypatch, *words) == 64
    assert f"Got unexpected words ({words[-1]}): a command stands after `--`" in capsys.readouterr().err


def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    monkeypatch.setenv("_TPUJOB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    assert call(monkeypatch) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(("line", "words"), [
    ("tpujob ru", ["run"]), ("tpujob emulator fa", ["fault"]),
    ("tpujob emulator fault ", ["add", "load", "list", "clear"]), ("tpujob run --js", ["--json"]),
    ("tpujob --vers", ["--version"]),
])  # fmt: skip
def test_completion_knows_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    assert complete(monkeypatch, capsys, line) == words


def test_a_completion_is_one_line_also_where_its_help_is_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TPUJOB_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "tpujob ")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert call(monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines] == [name for name in COMMANDS if " " not in name]


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_help_that_cannot_be_written_is_an_error_as_that_of_any_command(word: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", MAIN, word], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 64 and "cannot be written" in done.stderr


@pytest.mark.parametrize(("words", "code"), [
    ("schema", 64), ("list", 64), ("cost --csv", 64), ("offers --json", 64), ("init --example", 0),
])  # fmt: skip
def test_only_a_command_that_is_there_for_its_output_fails_if_that_cannot_be_written(
    ledger: Ledger, words: str, code: int
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == code and done.stderr.count("stdout cannot be written: No space left on device") == 1
    read, write = os.pipe()
    os.close(read)  # a reader that left
    left = subprocess.run(
        [sys.executable, "-c", MAIN, *words.split()], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (left.returncode, left.stderr) == (0, b"")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "state").mkdir(mode=0o700)
    return Ledger(tmp_path / "state" / "ledger.sqlite3")


def begin(ledger: Ledger, run: str, name: str) -> None:
    record = RunRecord(run, name, "job.yaml", "emulated", 1.0, "runs/x")
    ledger.record(Began(record, Attempt(f"{run}-1", run)))


def words(found: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in found]


def test_runs_are_completed_by_name_and_by_id(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "mnist")
    begin(ledger, "m123456789", "mnist")
    begin(ledger, "9123456789", "hello")
    assert words(completion.runs("m")) == ["mnist", "m123456789"]
    assert ("hello", "newest: pending") in completion.runs("h")
    assert words(completion.runs("912")) == ["9123456789"]


def test_whose_log_to_show_is_completed() -> None:
    assert words(completion.logs("")) == ["all", "0"] and words(completion.logs("a")) == ["all"]


def test_sweeps_are_completed_by_name_where_a_command_takes_them(ledger: Ledger) -> None:
    for identity in ("0123456789", "1123456789"):
        ledger.record_sweep(SweepRecord(identity, "lr-sweep", "s.yaml", 1.0))
    assert completion.runs_and_sweeps("lr") == [("lr-sweep", "sweep")] and completion.runs("lr") == []


def test_an_old_run_is_completed_too_once_its_name_begins(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "mnist")
    for number in range(completion.MOST_RUNS):
        begin(ledger, f"1{number:09d}", "hello")
    assert words(completion.runs("mn")) == ["mnist"] and "mnist" not in words(completion.runs(""))


def test_slices_are_completed_by_name_and_nodes_by_id(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    assert completion.slices(lease.handle[:1]) == [(lease.handle, f"{lease.accelerator_type}, {lease.name.zone}")]
    assert words(completion.nodes("")) == [lease.name.node]


def test_types_are_completed_as_people_and_as_the_api_call_them() -> None:
    assert words(completion.types("v5e-1")) == ["v5e-1", "v5e-16", "v5e-128"]
    assert words(completion.types("v5litepod-1")) == ["v5litepod-1", "v5litepod-16", "v5litepod-128"]
    assert {"v6e", "v6e-8"} <= set(words(completion.types("v6")))


def test_places_are_zones_regions_and_what_follows_a_comma() -> None:
    assert set(catalog.zones()) <= set(words(completion.places("")))
    assert words(completion.places("us-central1-a,us-west4-")) == [
        "us-central1-a,us-west4-a",
        "us-central1-a,us-west4-b",
    ]
    assert words(completion.places("any")) == ["any"]


def test_job_files_are_yaml_and_directories_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    for name in ("mnist.yaml", "other.yml", "train.py", ".hidden.yaml", "jobs/deep.yaml", "$(rm).yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert words(completion.job_files("")) == ["jobs/", "mnist.yaml", "other.yml"]
    assert words(completion.job_files("jobs/d")) == ["jobs/deep.yaml"]
    assert words(completion.job_files("missing/")) == []


def test_a_name_that_a_shell_would_not_take_as_it_is_is_not_offered(ledger: Ledger) -> None:
    begin(ledger, "0123456789", "$(reboot)")
    assert words(completion.runs("")) == ["0123456789"]
    assert not PLAIN.fullmatch("a b") and not PLAIN.fullmatch("a\n")


def test_without_a_state_directory_nothing_is_completed_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "none"))
    assert completion.runs("") == [] and not (tmp_path / "none").exists()


def test_a_ledger_that_cannot_be_read_completes_nothing(ledger: Ledger) -> None:
    for path in Path(ledger.path).parent.glob("ledger*"):
        path.write_bytes(b"no database")
    assert completion.runs("") == []


@pytest.mark.parametrize("line", ["tpujob show ", "tpujob run ", "tpujob up --zone "])
def test_a_completion_imports_neither_cloud_nor_ssh_nor_what_reads_job_files(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("_TPUJOB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    assert heavy(imported(MAIN), CLOUD_AND_SSH | SCIENCE | {"rich", "orchestrator.job.job_spec"}) == []


def during(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with Ctrl-C where this code, which is a statement, says `press()`."""
    press = "import os, signal, sys; press = lambda *a, **b: os.kill(os.getpid(), signal.SIGINT)"
    program = f"{press}\n{code}\n{MAIN}"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


IMPORTING = """
class Finder:
    def find_spec(name, *_):
        if name == {!r}:
            press()
sys.meta_path.insert(0, Finder)
"""
NOTHING = "stop     Ctrl-C: no slice was created or deleted\n"


@pytest.mark.parametrize("module", ["orchestrator.cli.command_table", "typer", "orchestrator.api.command_line"])
@pytest.mark.parametrize("words", [("down", "eta"), ("list", "--json")], ids=" ".join)
def test_ctrl_c_while_modules_are_loaded_is_one_line(ledger: Ledger, module: str, words: tuple[str, ...]) -> None:
    done = during(IMPORTING.format(module), *words)
    is_known_to_read = words[0] == "list" and module == "orchestrator.api.command_line"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "" if is_known_to_read else NOTHING)


def test_ctrl_c_on_a_command_that_only_looks_names_no_slice(ledger: Ledger) -> None:
    ledger.record(Intent(lease_and_request()[0]))
    code = "from orchestrator.api.live import serving, top\nserving.Served.wait = press\n"
    done = during(f"{code}top.ask = lambda _: top.Asked()", "top", "--open")  # which would start an emulator
    assert done.returncode == 130 and "stop" not in done.stderr, done.stderr


def test_ctrl_c_on_down_says_what_is_not_deleted(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    code = "from orchestrator.api.session.session import Session\nSession.on_cloud = press"
    done = during(code, "down", "alice")
    left = f"in this machine's ledger: alice ({lease.name.node}), intent"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, f"{NOTHING.rstrip()}; {left}")
