"""Inputs that are wrong, careless or hostile, by the numbers of the design note: each ends in one clear line and an exit code.

What creates nothing is checked against the emulator's billing meter, which knows every node that ever was.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob
from tests.fakes.api import StubApi, StubReply, service_account

COMMAND = "command: ls\n"
HERE = {"tpu": "tpu: {zone: us-central1-a}\n"}

# What is wrong with a file is told the same way whatever it is; each line of it: tests/unit/job/test_mistakes.py
FILES: list[tuple[str, str | bytes, str]] = [
    ("01-empty", "", "job.yaml:1: the job file is empty; `tpujob init` writes one"),
    ("02-python-tag", COMMAND + 'name: !!python/object/apply:os.system ["touch pwned"]\n',
     "job.yaml:2: name: tags (`!!python/object/apply:os.system`) are not allowed; write a plain value"),
    ("03-billion-laughs", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
     "job.yaml:2: b[0]: aliases (`*a`) are not allowed; write the value out"),
    ("05-bom", b"\xef\xbb\xbfcommand: ls\nx: 1\n", "job.yaml:2: x: unknown key"),
    ("05-50-mb", b"#" * (50 << 20), "job.yaml:1: the file has more than 1 MiB"),
    ("10-shell", COMMAND + "tpu: {zone: '; rm -rf ~'}\n", "`; rm -rf ~` is not a zone or a known region"),
    ("12-shell-in-the-name", COMMAND + 'name: "$(reboot)"\n', "`$(reboot)` is not a valid name: letters a-z"),
    ("14-linger", COMMAND + "limits: {linger: 3d}\n", "`3d` is not between 1m and 24h"),
    ("14-results", COMMAND + "limits: {max_results: 50 gigs}\n", "`50 gigs` is not a size: write a number with a unit"),
    ("14-log", COMMAND + "limits: {max_log: 10KB}\n", "`10KB` is less than 1MB; write for example 1GB"),
    ("14-no-results", COMMAND + "limits: {max_results: 0GB}\n", "`0GB` is nothing at all"),
    ("15-labels", COMMAND + "labels: {Tpujob-Run: x}\n", "job.yaml:2: labels: unknown key"),
    ("17-not-set", COMMAND + "env: {TOKEN: '${env:TPUJOB_TEST_MISSING}'}\n",
     "job.yaml:2: env.TOKEN: your variable TPUJOB_TEST_MISSING is not set; export it, or remove this"),
    (
        "18-inline-secret",
        COMMAND + "env: {TOKEN: hf_abcdefghijklmnopqrstuvwx}\n",
        "job.yaml:2: env.TOKEN: looks like a secret, and files are shared; export it and write `env: {TOKEN: ${env:TOKEN}}`",
    ),
    ("18-in-a-command", "command: |\n  curl -H 'Authorization: Bearer abcdefghijklmnopqrstuvwx' example.org\n",
     "job.yaml:1: command: looks like a secret"),
    ("20-missing", COMMAND + "code: nowhere\n", "job.yaml:2: code: "),
    ("21-up", COMMAND + "artifacts: [../../etc]\n", "artifacts[0]: `../../etc` leaves the job's directory"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [pytest.param(*row[1:], id=row[0]) for row in FILES])
def test_a_wrong_job_file_is_one_line_and_creates_nothing(tpujob: Tpujob, text: str | bytes, words: str) -> None:
    with tpujob.creating_nothing():
        said = tpujob("run", tpujob.job(text))
    assert said.returncode == 64
    assert said.stdout == ""
    line, *rest = said.stderr.splitlines()
    assert line.startswith("job.yaml:") and words in line
    assert [word for word in rest if not word.startswith(("hint: ", "job.yaml:"))] == []
    assert not (tpujob.directory / "pwned").exists()


@pytest.mark.parametrize("words", [("submit",), ("plan",), ("plan", "--json"), ("run", "--detach")], ids=" ".join)
def test_every_command_that_reads_a_job_file_refuses_the_same(tpujob: Tpujob, words: tuple[str, ...]) -> None:
    job = tpujob.job(COMMAND + "tpu: {zone: ../..}\n")
    with tpujob.promising_nothing():
        said, as_run = tpujob(*words, job), tpujob("run", job)
    mistake, hint = as_run.stderr.splitlines()  # `plan` does not recommend itself
    assert hint == f"hint: `tpujob plan {job}` checks a file without creating anything"
    expected = mistake if words[0] == "plan" else f"{mistake}\n{hint}"
    assert (said.returncode, said.stdout, said.stderr.strip()) == (as_run.returncode, as_run.stdout, expected)


@pytest.mark.parametrize("text", [text for name, text, _ in FILES if name.startswith("18")])
def test_18_the_secret_itself_is_not_repeated(tpujob: Tpujob, text: str) -> None:
    assert "abcdefghijklmnopqrstuvwx" not in tpujob("plan", tpujob.job(text)).text


ARGUMENTS: list[tuple[str, tuple[str, ...], str]] = [
    ("10-region", ("up", "a", "--zone", "us-centrall1"), "'us-centrall1' is not a zone or region"),
    ("10-shell", ("up", "a", "--zone", "; rm -rf ~"), "'; rm -rf ~' is not a zone or region"),
    ("10-path", ("up", "a", "--zone=../.."), "'../..' is not a zone or region"),
    *(
        (
            f"11-project-{project[:12]}",
            ("up", "a", f"--project={project}"),
            f"--project: {project!r} is not a project id",
        )
        for project in ("-oProxyCommand=x", "ACME-project", "a" * 31, "acme/../x", "acme project", "acme\x1b[31m")
    ),
    ("12-shell", ("up", "$(reboot)"), "'$(reboot)' is not a valid name"),
    ("12-long", ("up", "a" * 200), "has 200 characters; at most 40 are allowed"),
    ("12-option", ("up", "--", "-oProxyCommand=x"), "'-oProxyCommand=x' is not a valid name"),
    ("20-no-file", ("run", "nowhere.yaml"), "nowhere.yaml: there is no such file"),
    ("20-a-directory", ("run", "."), ". is a directory; name a job file"),
    ("20-endless", ("run", "/dev/zero"), "/dev/zero:1: the file has more than 1 MiB"),
    ("32-cancel-a-path", ("cancel", "../../x"), "there is no run '../../x'"),
    ("32-attach", ("attach", "-"), "there is no run '-'"),
    ("32-logs", ("logs", "x\x1b]0;t\x07"), "there is no run 'x\\x1b]0;t\\x07'"),
    ("32-show", ("show", "%"), "there is no run '%'"),
    ("32-down", ("down", "../x"), "no slice was ever named '../x' here"),
    ("32-ssh", ("ssh", "-oProxyCommand=x"), "-o"),
    ("33-keep", ("run", "good.yaml", "--keep", "999d"), "--keep 999d: must be between 1m and 7d"),
    ("33-extend", ("extend", "a", "--by", "999d"), "--by 999d: must be between 1m and 7d"),
    ("33-hold", ("run", "good.yaml", "--keep-on-failure", "25h"),
     "--keep-on-failure 25h: `25h` is not between 1m and 24h"),
    ("33-hold-detached", ("run", "good.yaml", "--detach", "--keep-on-failure"),
     "--keep-on-failure 30m: holds the slice of an attached run; the slice of a detached run deletes itself"),
    ("33-hold-submitted", ("submit", "good.yaml", "--keep-on-failure"), "No such option: --keep-on-failure"),
    ("34-nothing", ("run",), "there is nothing to run: name a job file, or a command after `--`"),
    ("34-no-dashes", ("run", "python", "train.py"), "a command stands after `--`"),
    ("34-value", ("run", "good.yaml", "--set", "env={A: {}}"), "--set env: env.A: expected text or a number"),
    ("34-zone", ("run", "good.yaml", "--zone", "; rm -rf ~"), "--zone ; rm -rf ~: `; rm -rf ~` is not a zone"),
    ("34-type", ("plan", "--accelerator", "v99-8", "--", "ls"),
     "--accelerator v99-8: `v99-8` is not a known accelerator"),
    ("34-name", ("run", "good.yaml", "--name", "$(reboot)"), "--name $(reboot): `$(reboot)` is not a valid name"),
    ("34-control", ("run", "good.yaml", "--name", "a\x1b[31m"), "--name a?[31m: `a?[31m` is not a valid name"),
    ("34-variable", ("run", "good.yaml", "--env", "TPU_NAME=x"), "--env TPU_NAME: is set by tpujob on every worker"),
    ("34-unset", ("run", "good.yaml", "--env", "NOT_SET_HERE"),
     "--env NOT_SET_HERE: your variable NOT_SET_HERE is not set"),
    ("33-ttl", ("run", "good.yaml", "--ttl", "8d"), "--ttl 8d: `8d` is not between 6m and 7d"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), [pytest.param(*row[1:], id=row[0]) for row in ARGUMENTS])
def test_a_wrong_argument_is_said_and_creates_nothing(tpujob: Tpujob, words: tuple[str, ...], message: str) -> None:
    tpujob.job(COMMAND, "good.yaml")
    with tpujob.creating_nothing():
        said = tpujob(*words)
    assert said.returncode == 64
    assert message in said.stderr and "Traceback" not in said.stderr and "\x1b" not in said.text


SECRET = "hf_abcdefghijklmnopqrstuvwx"  # has the shape of one


@pytest.mark.parametrize("words", [
    ("--env", f"TOKEN={SECRET}"), ("--env", SECRET), ("--set", f"env.TOKEN={SECRET}"),
    ("--set", f"command=curl {SECRET}"), ("--set", SECRET), ("--", "curl", SECRET),
], ids=" ".join)  # fmt: skip
def test_34_a_secret_on_the_command_line_is_refused_and_not_repeated(tpujob: Tpujob, words: tuple[str, ...]) -> None:
    said = tpujob("plan", tpujob.job(COMMAND), *words)
    assert said.returncode == 64 and "abcdefghijklmnopqrstuvwx" not in said.text


# -- what is shipped -------------------------------------------------------------------------------------------------


def _loop(code: Path) -> None:
    (code / "loop").symlink_to("loop")


def _out(code: Path) -> None:
    (code / "passwd").symlink_to("/etc/passwd")


def _fifo(code: Path) -> None:
    os.mkfifo(code / "pipe")


def _huge(code: Path) -> None:
    with (code / "data.bin").open("wb") as file:
        file.truncate(80 << 30)  # it has holes, and takes no space


@pytest.mark.parametrize(("make", "words"), [
    pytest.param(_loop, "left out by a link that leads to itself", id="20-symlink-loop"),
    pytest.param(_out, "left out by a link to /etc/passwd, out of the directory", id="20-symlink-out"),
    pytest.param(_fifo, "pipe is neither a file nor a directory", id="20-fifo"),
    pytest.param(_huge, "the biggest: data.bin (85.9 GB)", id="20-80-gb"),
])  # fmt: skip
def test_20_a_code_directory_that_cannot_travel_is_refused_before_anything_is_created(
    tpujob: Tpujob, make: Callable[[Path], None], words: str
) -> None:
    code = tpujob.directory / "code"
    code.mkdir()
    make(code)
    with tpujob.creating_nothing():
        said = tpujob("run", tpujob.job(COMMAND + "code: code\n"))
    assert (said.returncode, said.stdout) == (64, "")
    assert words in said.stderr


# -- who we are ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [None, "no file", "no credentials"])
def test_25_credentials_that_are_none_end_before_anything_is_promised(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    path = tpujob.directory / "adc.json"
    if there == "no credentials":
        path.write_text(there)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    if there is None:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    with tpujob.promising_nothing():
        said = tpujob("run", tpujob.job(COMMAND), "--cloud", "google", "--project", "acme-project")
    assert said.returncode == 77, said.stderr
    assert "hint: " in said.stderr and "Traceback" not in said.stderr
    assert there is not None or "gcloud auth application-default login" in said.stderr


def test_25_a_login_that_ended_is_noticed_before_anything_is_promised(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, stub: StubApi
) -> None:
    """The place where a service account changes its key for a token, on a day when Google does not want to."""
    stub.answers(StubReply(400, {"error": "invalid_grant", "error_subtype": "invalid_rapt"}))
    path = tpujob.directory / "adc.json"
    account = service_account(f"{stub.url}/token")
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with tpujob.promising_nothing():
        said = tpujob("run", tpujob.job(COMMAND), "--cloud", "google")
    assert said.returncode == 77, said.stderr
    assert "sign in again" in said.stderr and "gcloud auth application-default login" in said.stderr
    assert account["private_key"].splitlines()[1] not in said.text


# -- SSH -------------------------------------------------------------------------------------------------------------


def test_27_without_ssh_on_the_path_the_missing_program_is_named(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tpujob.directory))
    said = tpujob("ssh", "a")
    assert said.returncode == 64 and "there is no `ssh` on this machine's PATH" in said.stderr


# -- endpoints -------------------------------------------------------------------------------------------------------


def test_29_a_wrong_token_is_said_and_not_shown(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    (tpujob.directory / "token").write_text("a-token-that-opens-nothing\n")
    monkeypatch.setenv("TPUJOB_ENDPOINT", tpujob.emulator.url)
    monkeypatch.setenv("TPUJOB_TOKEN_FILE", str(tpujob.directory / "token"))
    with tpujob.creating_nothing():
        said = tpujob("run", tpujob.job(HERE["tpu"] + COMMAND))
    assert said.returncode == 77, said.stderr
    assert "a-token-that-opens-nothing" not in said.text
