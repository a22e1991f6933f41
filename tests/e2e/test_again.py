"""Runs that can be repeated: what a run was made with is kept, and `run --again` runs the same, or says what is missing."""

import json
import re
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.jobs import repeating, snapshot
from orchestrator.report.files import made
from tests.cli_fixture import Tpujob
from tests.waiting import until
from tests.wheels import wheel

JOB = """
name: same
tpu: {zone: us-central1-a}
code: code
env: {DB_PASSWORD: hunter22, PLAIN: "as it is", WANDB_API_KEY: ""}
command: python3 train.py "$PLAIN" "$DB_PASSWORD" | tee "$TPUJOB_ARTIFACTS/out"
"""
WATCHED = """
name: same
tpu: {zone: us-central1-a}
code: code
command: |
  until grep -q cpus "$TPUJOB_ARTIFACTS/host.jsonl" && [ -s "$TPUJOB_ARTIFACTS/packages.json" ]; do sleep 0.05; done 2>/dev/null
  echo done >"$TPUJOB_ARTIFACTS/out"
"""


def write(tpujob: Tpujob, text: str = "old") -> Path:
    (tpujob.directory / "code").mkdir(exist_ok=True)
    path = tpujob.directory / "code" / "train.py"
    path.write_text(f"import sys\nprint({text!r}, sys.argv[1], len(sys.argv[2]))\n")
    return path


def unpacked(tpujob: Tpujob) -> list[Path]:
    """Return what commands left of the code that they took from archives."""
    return list(tpujob.own_state.glob("again/*"))


def runs(tpujob: Tpujob) -> list[dict[str, Any]]:
    """Newest first."""
    found: list[dict[str, Any]] = json.loads(tpujob("list", "--json").stdout)
    return found


def shown(tpujob: Tpujob, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tpujob("show", run, "--json").stdout)
    return found


def git(tpujob: Tpujob, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@x")
    command = ["git", *who, *words]
    return subprocess.run(
        command, cwd=tpujob.directory / "code", check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_same_code_and_arguments_run_again_although_the_directory_has_changed(tpujob: Tpujob) -> None:
    write(tpujob)
    first = tpujob("run", tpujob.job(JOB))
    assert first.returncode == 0 and "worker0 | old as it is 8\n" in first.stdout, first.text
    (run,) = runs(tpujob)
    write(tpujob, "new").rename(tpujob.directory / "code" / "other.py")
    missing = tpujob("run", "--again", "same")
    assert missing.returncode == 64 and "your variable DB_PASSWORD is not set" in missing.stderr, missing.text
    again = tpujob("run", "--again", run["run"][:6], env={"DB_PASSWORD": "hunter22"})
    assert again.returncode == 0 and "worker0 | old as it is 8\n" in again.stdout, again.text
    assert f"again    from {run['run']} · code as shipped then\n" in again.stderr
    assert "left out" not in again.stderr and unpacked(tpujob) == []
    newest, _ = runs(tpujob)
    assert (newest["name"], newest["params"]) == (run["name"], run["params"])
    found = shown(tpujob, newest["run"])["made"]
    assert (found["again_of"], found["missing"]) == (run["run"], "")
    assert found["code"]["sha256"] == shown(tpujob, run["run"])["made"]["code"]["sha256"]
    changed = tpujob("run", "--again", newest["run"], "--set", "env.PLAIN=x", env={"DB_PASSWORD": "1"})
    assert "worker0 | old x 1\n" in changed.stdout, changed.text


def test_no_secret_is_in_what_is_kept(tpujob: Tpujob) -> None:
    write(tpujob)
    git(tpujob, "init", "-q")
    git(tpujob, "add", ".")
    git(tpujob, "commit", "-qm", "x")
    (tpujob.directory / "code" / "train.py").write_text("import sys\n# hunter22\n")
    assert tpujob("run", tpujob.job(JOB)).returncode == 0
    directory = Path(runs(tpujob)[0]["directory"])
    assert shown(tpujob, "same")["made"]["code"]["not_kept"] == "has a secret in train.py"
    for name in (made.NAME, made.PATCH):
        assert b"hunter22" not in (directory / name).read_bytes()
    with tarfile.open(directory / made.ARCHIVE) as archive:
        files = [member.name for member in archive if member.isreg()]
        texts = [file.read() for each in files if (file := archive.extractfile(each)) is not None]
    assert sorted(files) == [snapshot.GIT, snapshot.JOB] and not any(b"hunter22" in text for text in texts)
    assert (directory / made.ARCHIVE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "text"), [(".env", "PLACE=here\n"), ("k.yaml", "users:\n- user:\n    client-key-data: aGVsbG8=\n")]
)
def test_code_with_a_file_that_looks_like_a_secret_and_is_allowed_is_not_kept(
    tpujob: Tpujob, name: str, text: str
) -> None:
    write(tpujob)
    (tpujob.directory / "code" / name).write_text(text)
    (tpujob.directory / "code" / ".tpujobignore").write_text(f"!{name}\n")
    assert tpujob("run", tpujob.job(JOB)).returncode == 0
    assert shown(tpujob, "same")["made"]["code"]["not_kept"] == f"has a secret in {name}"
    with tarfile.open(Path(runs(tpujob)[0]["directory"]) / made.ARCHIVE) as archive:
        assert not any(member.name.endswith(name) for member in archive)
    done = tpujob("run", "--again", "same", env={"DB_PASSWORD": "hunter22"})
    assert done.returncode == 0 and "the code where it was, unchanged" in done.stderr, done.text


def test_a_run_of_another_cloud_than_that_of_the_command_is_repeated_where_the_command_says(tpujob: Tpujob) -> None:
    write(tpujob)
    assert tpujob("run", tpujob.job(JOB), "--cloud", "emulated").returncode == 0
    (run,) = runs(tpujob)
    google = {"TPUJOB_CLOUD": "google", "TPUJOB_PROJECT": "of-theirs", "DB_PASSWORD": "hunter22"}
    with tpujob.creating_nothing():
        done = tpujob("run", "--again", "same", env=google)
    assert done.returncode == 64, done.text
    assert f"{run['run']} (same) ran on the emulated cloud, and --again would run it on the google cloud" in done.stderr
    assert "`--cloud emulated` or `--cloud google`" in done.stderr
    again = tpujob("run", "--again", "same", "--cloud", "emulated", env=google)
    assert again.returncode == 0 and "worker0 | old as it is 8\n" in again.stdout, again.text


def test_a_run_of_no_cloud_of_the_command_is_repeated_whatever_that_is(tpujob: Tpujob) -> None:
    write(tpujob)
    job = JOB.replace("tpu: {zone: us-central1-a}", "on: local").replace("DB_PASSWORD: hunter22, ", "")
    assert tpujob("run", tpujob.job(job)).returncode == 0
    done = tpujob("run", "--again", "same", env={"TPUJOB_CLOUD": "google", "TPUJOB_PROJECT": "of-theirs"})
    assert done.returncode == 0 and "worker0 | old as it is 0\n" in done.stdout, done.text


@pytest.mark.ci
def test_versions_count_as_those_of_then_where_tpujob_has_chosen_them(tpujob: Tpujob) -> None:
    wheel(tpujob.directory / "wheels", "alpha", "2.5")
    write(tpujob)
    (tpujob.directory / "requirements.txt").write_text("alpha\n-c own.txt\n")
    (tpujob.directory / "own.txt").write_text("beta==1.0\n")
    job = JOB.replace("DB_PASSWORD: hunter22", f"PIP_NO_INDEX: '1', PIP_FIND_LINKS: 'file://{tpujob.directory}/wheels'")
    assert tpujob("run", tpujob.job(f"{job}requirements: requirements.txt\n")).returncode == 0
    about = Path(runs(tpujob)[0]["directory"]) / made.NAME
    done = tpujob("run", "--again", "same", "--set", "command=exit 3")
    assert " · the versions of then\n" in done.stderr, done.text
    about.write_text(json.dumps(json.loads(about.read_text()) | {"lock": None}))
    done = tpujob("run", "--again", about.parent.name[-10:], "--set", "command=exit 3")
    assert " · versions are chosen anew: none were chosen here then\n" in done.stderr, done.text


def test_the_repository_the_packages_and_the_host_are_shown(tpujob: Tpujob) -> None:
    write(tpujob)
    git(tpujob, "init", "-q", "-b", "<b>trunk")
    git(tpujob, "add", ".")
    git(tpujob, "commit", "-qm", "x")
    write(tpujob, "<script>changed")
    done = tpujob("run", tpujob.job(WATCHED))
    assert done.returncode == 0 and "succeeded · 1 artifact, 5 bytes" in done.stdout, done.text
    found, commit = shown(tpujob, "same"), git(tpujob, "rev-parse", "HEAD")
    assert (found["made"]["git"]["commit"], found["made"]["git"]["dirty"]) == (commit, ["train.py"])
    assert found["made"]["packages"] and found["host"]["samples"] > 0
    text = tpujob("show", "same").stdout
    assert f"git      {commit[:12]} · <b>trunk · 1 file changed\n" in text and "this machine, which runs" in text
    assert re.search(r"^packages \d+ · Python 3", text, re.M)
    page = (Path(found["directory"]) / "report.html").read_text()
    assert "How it was made" in page and commit in page and "&lt;b&gt;trunk" in page and "<b>trunk" not in page
    assert "+print(&#39;&lt;script&gt;changed" in page


@pytest.mark.parametrize("change", ["none", "content", "gone"])
def test_code_that_is_too_much_to_keep_is_taken_from_where_it_was_if_it_is_the_same(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(repeating, "MOST_BYTES", 10)
    path = write(tpujob)
    assert tpujob("run", tpujob.job(JOB)).returncode == 0
    if change == "content":
        write(tpujob, "new")
    elif change == "gone":
        path.parent.rename(tpujob.directory / "elsewhere")
    done = tpujob("run", "--again", "same", env={"DB_PASSWORD": "hunter22"})
    if change == "none":
        assert done.returncode == 0 and "the code where it was, unchanged" in done.stderr, done.text
        assert "worker0 | old as it is 8\n" in done.stdout
    else:
        why = {"content": "has changed since", "gone": "is not there any more"}[change]
        assert done.returncode == 64 and "is not kept: it is more than 10 bytes" in done.stderr and why in done.stderr


def test_what_cannot_be_repeated_is_refused_with_its_reason(tpujob: Tpujob) -> None:
    write(tpujob)
    assert tpujob("run", tpujob.job(JOB)).returncode == 0
    directory = Path(runs(tpujob)[0]["directory"])
    for words, why in {
        ("--set", "code=elsewhere"): "cannot be changed",
        ("--set", "matrix.a=[1,2]", "--set", "command=echo ${params.a}"): "--again repeats one run",
        ("--resume", "same"): "give one of them",
    }.items():
        done = tpujob("run", "--again", "same", *words)
        assert done.returncode == 64 and why in done.stderr, done.text
    done = tpujob("run", "--again", "same", "--", "python3", "other.py", env={"DB_PASSWORD": "1"})
    assert "`other.py` is not in the code of same as it was kept, where the commands of the job start" in done.stderr
    assert unpacked(tpujob) == []
    (directory / made.ARCHIVE).write_bytes(b"damaged")
    done = tpujob("run", "--again", "same")
    assert done.returncode == 64 and "cannot be unpacked" in done.stderr
    assert "job.yaml` runs the job as it is now" in done.stderr and unpacked(tpujob) == []
    (directory / made.ARCHIVE).unlink()
    done = tpujob("run", "--again", "same")
    assert done.returncode == 64 and "cannot be run again: again.tar.gz, which has" in done.stderr
    assert "`tpujob run job.yaml` runs the job as it is now, in the directory where it was started" in done.stderr
    (directory / made.NAME).write_text("{")
    assert "cannot be run again" in tpujob("run", "--again", "same").stderr
    assert tpujob("show", "same").returncode == 0
    assert tpujob("run", "--again", "nothing").returncode == 64
    assert len(runs(tpujob)) == 1


def test_what_goes_wrong_with_keeping_costs_one_line_and_no_result(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write(tpujob)
    monkeypatch.setattr(snapshot, "_write", full)
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0 and "note     what the run was made with is not kept: [Errno 28]" in done.stderr
    assert tpujob("run", "--again", "same").returncode == 64


def test_a_run_whose_command_was_killed_can_be_repeated(tpujob: Tpujob) -> None:
    write(tpujob)
    process = tpujob.start("run", tpujob.job(JOB.replace("| tee", "; sleep 600 | tee")))
    tpujob.until("old as it is", process)
    until(lambda: list(tpujob.directory.glob(f"runs/*/{made.ARCHIVE}")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert tpujob("status").returncode == 0 and tpujob.alive() == []
    write(tpujob, "new")
    done = tpujob("run", "--again", "same", "--set", "command=python3 train.py x y")
    assert "worker0 | old x 1\n" in done.stdout or "DB_PASSWORD" in done.stderr, done.text
    done = tpujob("run", "--again", "same", "--set", "command=python3 train.py x y", env={"DB_PASSWORD": "1"})
    assert done.returncode == 0 and "worker0 | old x 1\n" in done.stdout, done.text


def test_a_local_run_is_repeated_too(tpujob: Tpujob) -> None:
    write(tpujob)
    job = JOB.replace("tpu: {zone: us-central1-a}", "on: local").replace("DB_PASSWORD: hunter22, ", "")
    with tpujob.starting_no_emulator():
        assert tpujob("run", tpujob.job(job)).returncode == 0
        write(tpujob, "new")
        done = tpujob("run", "--again", "same")
    assert done.returncode == 0 and "worker0 | old as it is 0\n" in done.stdout, done.text


def test_a_variant_of_a_sweep_is_repeated_as_a_run(tpujob: Tpujob) -> None:
    sweep = JOB.replace("DB_PASSWORD: hunter22, ", "").replace('"$PLAIN"', "${params.lr}") + "matrix: {lr: [1, 2]}\n"
    write(tpujob)
    assert tpujob("run", tpujob.job(sweep)).returncode == 0
    variant = next(run for run in runs(tpujob) if run["params"] == {"lr": 2})
    write(tpujob, "new")
    done = tpujob("run", "--again", variant["run"])
    assert done.returncode == 0 and "worker0 | old 2 0\n" in done.stdout, done.text
    newest = runs(tpujob)[0]
    assert (newest["name"], newest["sweep"]) == (variant["name"], None)
    whole = "job.yaml` runs the whole sweep as it is now, in the directory where it was started"
    done = tpujob("run", "--again", "same")
    assert done.returncode == 64 and f"{whole}; its runs are same-1 to same-2" in done.stderr, done.text
    (Path(variant["directory"]) / made.ARCHIVE).unlink()
    done = tpujob("run", "--again", variant["run"])
    assert done.returncode == 64 and whole in done.stderr, done.text


def test_the_code_of_a_repeated_run_is_there_as_long_as_its_command_and_no_longer(tpujob: Tpujob) -> None:
    write(tpujob)
    job = JOB.replace("DB_PASSWORD: hunter22, ", "")
    quick = tpujob("run", tpujob.job(job), "--set", "command=exit 0")
    assert quick.returncode == 0, quick.text
    process = tpujob.start("run", "--again", "same", "--set", "command=echo begun; sleep 600")
    tpujob.until("begun", process)
    assert unpacked(tpujob) != []
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130 and unpacked(tpujob) == []
    tpujob.fault("stockout")
    refused = tpujob("run", "--again", "same")
    assert refused.returncode == 69 and unpacked(tpujob) == [], refused.text
