"""`notify:` of a job and of the settings: the forms, the mistakes, and that no address is repeated or recorded."""

import json
from pathlib import Path

import pytest

from orchestrator import settings
from orchestrator.api.jobs.job import Job, Notify
from orchestrator.errors import ConfigError, JobSpecError
from orchestrator.job import job_spec
from orchestrator.job.rules.notify import EVENTS, url_problem
from orchestrator.places.preparation.records import new_run
from orchestrator.promise.lease.run_spec import NotifyWish

COMMAND = "command: ls\n"
SECRET = "https://hooks.example.com/services/T0/B0/s3cr3t-s3cr3t"


def own(tmp_path: Path, text: str) -> NotifyWish | None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return settings.read_settings(path, {}).get("notify")


def refused(text: str) -> str:
    with pytest.raises(JobSpecError) as caught:
        job_spec.load(text, path="job.yaml")
    return str(caught.value)


@pytest.mark.parametrize(("text", "wish"), [
    (f"notify: {SECRET}\n", NotifyWish(SECRET)),
    ("notify: off\n", NotifyWish(on=())),
    ("notify: false\n", NotifyWish(on=())),
    ("notify: {url: '${env:HOOK}', on: [ended, preempted]}\n", NotifyWish("${env:HOOK}", None, ("ended", "preempted"))),
    ("notify:\n  command: cat\n", NotifyWish(None, "cat")),
    ("notify: {command: cat, on: ended}\n", NotifyWish(None, "cat", ("ended",))),
    ("notify: http://127.0.0.1:8080/x\n", NotifyWish("http://127.0.0.1:8080/x")),
    ("project: a-project\n", None),
])  # fmt: skip
def test_the_settings_say_who_is_told(tmp_path: Path, text: str, wish: NotifyWish | None) -> None:
    assert own(tmp_path, text) == wish


@pytest.mark.parametrize(("text", "why"), [
    ("hooks.example.com/s3cr3t", "is not the address of a web server"),
    ("http://hooks.example.com/s3cr3t", "unencrypted"),
    ("https://me:s3cr3t@example.com/x", "has a user name before its host"),
    ("https://example.com/x#s3cr3t", "or a `#`"),
    ("https://example.com:0/s3cr3t", "web server"),
    ("https://example.com:99999/s3cr3t", "wrong host or port"),
    ("https://ex ample/s3cr3t", "without blanks"),
    ("[https://example.com/s3cr3t]", "expected an address, a mapping"),
    ("{url: 5}", "expected an address as text"),
    ("{url: 'https://example.com/s3cr3t', on: [end]}", "is none of started"),
    ("{url: 'https://example.com/s3cr3t', command: cat}", "not to both"),
    ("{on: [ended]}", "needs an address"),
    ("", "needs an address"),
    ("{urll: 'https://example.com/s3cr3t'}", "did you mean `url`?"),
    ("{command: [cat]}", "expected a command"),
    ("{command: ' '}", "expected a command"),
])  # fmt: skip
def test_a_mistake_in_the_settings_has_its_line_and_repeats_no_address(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        own(tmp_path, f"notify: {text}\n")
    said = f"{caught.value.message} {caught.value.hint}"
    assert why in said and "settings.yaml:1: notify" in said
    assert "s3cr3t" not in said


def test_a_job_overrides_the_settings_and_names_a_variable() -> None:
    wish = job_spec.load(COMMAND + "notify: ${env:HOOK}\n", path="job.yaml").notify
    assert wish is not None and wish.wish == NotifyWish("${env:HOOK}")
    off = job_spec.load(COMMAND + "notify: off\n", path="job.yaml").notify
    assert off is not None and off.wish == NotifyWish(on=())
    assert job_spec.load(COMMAND + "notify:\n", path="job.yaml").notify is None
    assert Job(command="ls", notify="${env:HOOK}")._checked.notify.wish == wish.wish  # type: ignore[union-attr]
    assert Job(command="ls", notify=Notify(on=["ended"]))._checked.notify.wish.on == ("ended",)  # type: ignore[union-attr]


def test_an_address_in_a_job_file_is_refused_because_files_are_shared() -> None:
    for text in (f"notify: {SECRET}\n", f"notify: {{url: '{SECRET}'}}\n"):
        said = refused(COMMAND + text)
        assert "job.yaml:2: notify" in said and "is a secret, and files are shared" in said
        assert "s3cr3t" not in said


@pytest.mark.parametrize(("environ", "why"), [
    ({}, "your variable HOOK is not set"), ({"HOOK": "example.com/s3cr3t"}, "your variable HOOK is not the address"),
])  # fmt: skip
def test_a_variable_that_has_no_address_is_a_mistake_of_the_run(environ: dict[str, str], why: str) -> None:
    spec = job_spec.load(COMMAND + "notify: ${env:HOOK}\n", path="job.yaml")
    with pytest.raises(JobSpecError) as caught:
        job_spec.resolve_env(spec, environ)
    assert "job.yaml:2: notify" in str(caught.value) and why in str(caught.value) and "s3cr3t" not in str(caught.value)


def test_a_loaded_job_is_the_same_as_its_file(tmp_path: Path) -> None:
    for text in ("notify: off\n", "notify: ${env:HOOK}\n", "notify: {command: cat, on: [ended]}\n"):
        (tmp_path / "job.yaml").write_text(COMMAND + text)
        loaded = Job.load(tmp_path / "job.yaml")._checked
        assert loaded.notify == job_spec.load(COMMAND + text, path="job.yaml").notify  # type: ignore[union-attr]


def test_the_record_of_a_run_has_the_variable_and_hides_its_value_later(tmp_path: Path) -> None:
    spec = job_spec.load(COMMAND + "notify: {url: '${env:HOOK}', on: [ended]}\n", path="job.yaml")
    run, _ = new_run(spec, Path("job.yaml"), "emulated", tmp_path, 1.0)
    assert run.spec.notify == NotifyWish("${env:HOOK}", None, ("ended",))
    assert run.spec.secret_sources == ("HOOK",)
    assert run.spec.of(json.loads(json.dumps(run.spec.values))).notify == run.spec.notify
    assert "HOOK" not in repr(run.spec.notify), "an address is in no representation"


def test_loopback_alone_is_reached_without_tls() -> None:
    assert all(url_problem(f"http://{host}/x") is None for host in ("localhost:1", "127.0.0.1:8080", "[::1]:80"))
    assert all(url_problem(f"http://{host}/x") for host in ("192.168.0.7", "metadata", "127.0.0.1.example.com"))
    assert url_problem("https://discord.com/api/webhooks/1/a-b_c?wait=true") is None
    assert len(EVENTS) == 7
