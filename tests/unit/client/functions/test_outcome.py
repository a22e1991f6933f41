"""The files of a worker that may lie: they are data of one shape and size, or nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.events import RunResult
from orchestrator.client.functions.outcome import ERROR, MAX_RESULT_BYTES, RESULT, remote_error, value_of
from orchestrator.errors import ArtifactError, PayloadFailed, RemoteFunctionError

FAILED = PayloadFailed("the job failed on worker0 with code 1", rc=1, hint="`tpujob logs abc` prints it")
WHOLE = {"schema": 1, "type": "ValueError", "message": "no", "traceback": "T\n  x\n", "file": "/a/b.py", "line": 3}


def run(directory: Path) -> RunResult:
    return RunResult("abc", "fit", "failed", 1, directory, 0.0, 1.0)


def left(directory: Path, name: str, content: Any, worker: int = 0) -> RunResult:
    place = directory / f"worker{worker}" / "artifacts"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return run(directory)


def error_of(result: RunResult) -> RemoteFunctionError | None:
    return remote_error(result, FAILED, lambda text: text.replace("sesame", "***"))


def test_the_value_is_what_the_worker_wrote_whichever_worker_has_process_0(tmp_path: Path) -> None:
    (tmp_path / "worker0").mkdir()
    (tmp_path / "workerx").mkdir()
    value = {"a": [1, 2.5, None, "ü"], "b": 10**30}
    assert value_of(left(tmp_path, RESULT, {"schema": 1, "value": value}, worker=2)) == value


@pytest.mark.parametrize("content", [
    b"", b"[]", b"{}", b'{"schema": 2, "value": 1}', b'{"schema": 1, "value": NaN}',
    b'{"schema": 1, "value": -Infinity}', b'{"schema": 1, "value": 1e999}',
    b'{"schema": 1, "value": ' + b"9" * 5000 + b"}", b'{"schema": 1, "value": "\xff"}',
    b'{"schema": 1, "value": 1} x', b"[" * 200_000,
    b'{"schema": 1, "value": "' + b"x" * MAX_RESULT_BYTES + b'"}',
    b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os",
], ids=lambda content: repr(content[:30]))  # fmt: skip
def test_what_is_no_result_of_a_function_is_an_error_of_the_artifacts(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"function-result\.json is not"):
        value_of(left(tmp_path, RESULT, content))


def test_a_run_without_a_value_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run abc left no result of a function"):
        value_of(run(tmp_path))


def test_a_link_or_a_fifo_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"schema": 1, "value": "mine"}')
    result = left(tmp_path, "other", {})
    path = tmp_path / "worker0" / "artifacts" / RESULT
    path.symlink_to(secret)
    with pytest.raises(ArtifactError):
        value_of(result)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ArtifactError):
        value_of(result)


def test_a_remote_error_is_text_with_its_type_place_and_traceback(tmp_path: Path) -> None:
    error = error_of(left(tmp_path, ERROR, WHOLE, worker=1))
    assert isinstance(error, PayloadFailed) and error is not None
    assert error.message == "ValueError: no (b.py:3, worker1)"
    assert (error.type_name, error.file, error.line, error.worker) == ("ValueError", "/a/b.py", 3, 1)
    assert (error.traceback, error.rc, error.hint) == ("T\n  x", 1, FAILED.hint)
    assert error.__notes__ == [f"hint: {FAILED.hint}", "the traceback on worker1:\nT\n  x"]


def test_the_first_worker_with_an_error_counts_and_a_broken_file_does_not(tmp_path: Path) -> None:
    left(tmp_path, ERROR, b'{"schema": 1, "ty', worker=0)
    left(tmp_path, ERROR, {**WHOLE, "message": "two"}, worker=10)
    error = error_of(left(tmp_path, ERROR, {**WHOLE, "message": "one"}, worker=2))
    assert error is not None and error.message.startswith("ValueError: one")
    assert error_of(run(tmp_path / "none")) is None


def test_hostile_text_is_inert(tmp_path: Path) -> None:
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e sesame"
    found = {
        "type": f"Value{evil}", "message": f"{evil}\nsecond", "traceback": f"{evil}\n" * 5000, "file": evil,
        "line": -1,
    }  # fmt: skip
    error = error_of(left(tmp_path, ERROR, {"schema": 1, **found}))
    assert error is not None
    for text in (error.message, error.traceback, error.file, error.type_name, *error.__notes__):
        assert not {"\x1b", "\x07", "\u202e"} & set(text) and "sesame" not in text
    assert (error.type_name, error.line) == ("Exception", None) and "\n" not in error.message
    assert len(error.traceback) < 100_000


@pytest.mark.parametrize(
    "found", [{}, {"type": 1, "message": [], "traceback": {}, "file": None, "line": True}, {"line": 1 << 40}]
)
def test_an_error_of_another_shape_is_still_an_error(tmp_path: Path, found: Any) -> None:
    error = error_of(left(tmp_path, ERROR, {"schema": 1, **found}))
    assert error is not None and error.message == "Exception (worker0)" and error.line is None


def test_a_package_that_is_missing_there_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    found = {"type": "ModuleNotFoundError", "message": "No module named 'jax'", "traceback": ""}
    error = error_of(left(tmp_path, ERROR, {**WHOLE, **found}))
    assert error is not None and "requirements=" in (error.hint or "") and len(error.__notes__) == 1
