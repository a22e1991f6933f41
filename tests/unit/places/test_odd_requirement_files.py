"""Fifty odd requirements files: each is resolved, or refused with one line that helps, before anything is created.

By the real uv, from an index on the loopback address.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.places.preparation import resolving
from tests.fakes.package_index import Index, package_index

FOR = "for Python 3.10 of a TPU VM: "
NO_START = "Unexpected '{0}', expected '-c', '-e', '-r' or the start of a requirement"
ONLY_TAG = "has no wheels with a matching"
CLOSED = "http://127.0.0.1:9"
HEX = "sha256:" + 64 * "0"
WHEELS = ("own-1.0-py3-none-any", "own-1.0-cp310-cp310-win_amd64", "own-1.0-cp312-cp312-linux_x86_64")


class Odd(NamedTuple):
    """A file; and what is chosen, with all that is said beside it, or how the line begins that refuses it."""

    file: str | bytes
    chosen: dict[str, str] | None = None
    said: str = ""
    refused: str = ""


ALPHA, BOTH = {"alpha": "1.0"}, {"alpha": "1.0", "beta": "1.0"}
LEFT = "requirements.txt: the versions cannot be chosen here, so the workers choose them: "
FILES = {
    # names and versions
    "a typo in a name": Odd("beta\nnumpyy", refused=f"2: `numpyy`: {FOR}Because numpyy was not found"),
    "an unknown version": Odd("alpha==9", refused=f"1: `alpha==9`: {FOR}Because there is no version of alpha==9"),
    "two pins": Odd("alpha==1.0\nalpha==0.1", refused=f"1: `alpha==1.0`, requirements.txt:2: `alpha==0.1`: {FOR}Because"),
    "against a -c file": Odd("-c old.txt\nalpha==1.0", refused=f"2: `alpha==1.0`: {FOR}Because you require alpha==1.0 and"),
    "the same name twice": Odd("alpha\nalpha>=0.1\nalpha", ALPHA),
    "other spellings": Odd("Two_Words\ntwo.words\nTWO-WORDS", {"two-words": "1.0"}),
    "only a prerelease": Odd("soon", {"soon": "1.0a1"}),
    "only for macOS": Odd("mac", refused=f"1: `mac`: {FOR}Because mac==1.0 {ONLY_TAG} platform tag"),
    "too new a Python": Odd("newer", refused=f"1: `newer`: {FOR}Because the requested Python version (>=3.10)"),
    # what is written around a name
    "one equals sign": Odd("alpha=1.0", refused=f"1: `alpha=1.0`: {FOR}not a requirement: no such comparison operator"),
    "a sentence": Odd("beta\npip install alpha", refused=f"2: `pip install alpha`: {FOR}not a requirement: Expected one of"),
    "a bad marker": Odd("alpha; python_versoin > '3'", refused=f"1: `alpha; python_versoin > '3'`: {FOR}not a requirement"),
    "a bad extra": Odd("alpha[x", refused=f"1: `alpha[x`: {FOR}not a requirement: Missing closing bracket"),
    "an unknown extra": Odd("alpha[nope]", ALPHA, "requirements: The package `alpha==1.0` does not have an extra named `nope`"),
    "a marker for nothing": Odd('alpha; python_version < "3.8"', {}, "requirements.txt: by its markers, nothing is for Python"),
    "a line that goes on": Odd("alpha \\\n  ==1.0", ALPHA),
    "a line that goes on at the end": Odd("alpha \\", ALPHA),
    "a list of Python": Odd('beta\n"alpha",', refused="2: `\"alpha\",`: " + FOR + NO_START.format('"')),
    # hashes
    "a wrong hash": Odd(f"alpha==1.0 --hash={HEX}", refused="1: `alpha==1.0`: no file of this version that the index has"),
    "a hash for one of two": Odd("alpha==1.0 --hash={hash}\nbeta", BOTH),
    # bytes
    "a BOM": Odd(b"\xef\xbb\xbfalpha", ALPHA),
    "CRLF": Odd(b"alpha\r\nbeta\r\n", BOTH),
    "tabs": Odd("\talpha\t==\t1.0\t# one\n", ALPHA),
    "UTF-16": Odd("alpha\n".encode("utf-16"), refused=" is UTF-16 or binary; save it as UTF-8"),
    "Latin-1": Odd(b"alpha # caf\xe9", refused=" is not UTF-8 (byte 0xe9 in line 1); save it as UTF-8"),
    "only a comment": Odd("# nothing\n", {}, "requirements.txt: no package is named there"),
    "empty": Odd("", {}, "requirements.txt: no package is named there"),
    # other files and places
    "-r that is missing": Odd("alpha\n-r no.txt", refused="2: no.txt: {here}/no.txt cannot be read: no such file"),
    "-r in a circle": Odd("-r circle.txt", refused="circle.txt:1: requirements.txt leads back to this file"),
    "a wheel by its URL": Odd("alpha @ {files}/alpha-1.0-py3-none-any.whl", {"alpha": "{files}/alpha-1.0-py3-none-any.whl"}),
    "links that do not answer": Odd(f"-f {CLOSED}/w\nalpha", {}, f"{LEFT}Failed to read `--find-links` URL: {CLOSED}/w"),
    "a secret": Odd("-i http://me:hunter2hunter2@x.org/simple\nalpha", refused="1: holds a secret; write ${NAME} in its place"),
    "a variable": Odd(f"-i {CLOSED}/${{TOKEN}}\nalpha", {}, f"{LEFT}Failed to fetch: {CLOSED}/${{TOKEN}}/alpha/"),
    "Git": Odd(f"git+{CLOSED}/x.git", {}, f"{LEFT}Git operation failed"),
    "-e without a project": Odd("-e .", refused=f"1: `./.`: {FOR}`{{here}}` does not appear to be a Python project"),
    "-e outside": Odd("-e ../outside", refused="1: {here}/../outside is not on the workers, because it lies outside of"),
    "a path that is missing": Odd("./missing", refused="1: {here}/missing does not exist"),
    "a path of Windows": Odd("C:\\w\\a.whl", refused="1: names C:\\w\\a.whl, a path of Windows; write one relative to this"),
    "a wheel of the code": Odd(f"./{WHEELS[0]}.whl", {}, "chosen for Python 3.10 of a TPU VM: packages of the code"),
    "a wheel for Windows": Odd(f"./{WHEELS[1]}.whl", refused=f"1: `./{WHEELS[1]}.whl`: {FOR}a wheel for cp310-cp310-win_amd64"),
    "a wheel for Windows alone": Odd(f"./{WHEELS[1]}.whl; sys_platform == 'win32'\nalpha", ALPHA),
    "a wheel for Python 3.12": Odd(f"./{WHEELS[2]}.whl", refused=f"1: `./{WHEELS[2]}.whl`: {FOR}a wheel for cp312-cp312-linux"),
    # options
    "--no-binary": Odd("--no-binary alpha\nalpha", refused=f"2: `alpha`: {FOR}Because all versions of alpha have no source"),
    "an unknown option": Odd("--frobnicate\nalpha", refused=f"1: `--frobnicate`: {FOR}{NO_START.format('-')}"),
    # files of other tools
    "conda": Odd("name: x\ndependencies:\n  - numpy\n", refused=" is a file of conda; name a requirements file"),
    "Pipfile": Odd('[packages]\nalpha = "*"\n', refused=" is a Pipfile; `pipenv requirements` prints a requirements file"),
    "poetry.lock": Odd('[[package]]\nname = "alpha"\n', refused=" is a lock of Poetry, uv or PDM; its `export` command"),
    "a web page": Odd("<!DOCTYPE html>\n<html>", refused=" is a web page; download the file itself"),
    "Git LFS": Odd("version https://git-lfs.github.com/spec/v1\n", refused=" is a pointer of Git LFS; `git lfs pull` fetches"),
    "a conflict of Git": Odd("<<<<<<< HEAD\nalpha\n=======\nbeta\n", refused=" has a conflict that Git left"),
}  # fmt: skip


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with package_index() as made:
        made.wheel("alpha", "0.1")
        made.wheel("alpha", "1.0")
        made.wheel("beta", "1.0")
        made.wheel("two_words", "1.0")
        made.wheel("soon", "1.0a1")
        made.wheel("own", "1.0")
        made.wheel("mac", "1.0", tag="cp310-cp310-macosx_11_0_arm64")
        made.wheel("newer", "1.0", python=">=3.13")
        yield made


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_is_resolved_or_refused_with_a_line_that_helps(
    name: str, index: Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(variable)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
        "UV_CACHE_DIR": str(cache),
        "UV_HTTP_RETRIES": "0",
    }
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    here = tmp_path / "job"
    for directory in (here, tmp_path / "outside"):
        directory.mkdir()
    (here / "old.txt").write_text("alpha<1\n")
    (here / "circle.txt").write_text("-r requirements.txt\n")
    for wheel in WHEELS:
        (here / f"{wheel}.whl").write_bytes(index.files["own"]["own-1.0-py3-none-any.whl"][0])
    odd = FILES[name]
    hashed = hashlib.sha256(index.files["alpha"]["alpha-1.0-py3-none-any.whl"][0]).hexdigest()
    words = {"files": index.url.replace("simple", "files"), "here": str(here), "hash": f"sha256:{hashed}"}
    said: list[str] = []

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    (here / "requirements.txt").write_bytes(odd.file if isinstance(odd.file, bytes) else filled(odd.file).encode())
    spec = job_spec.load("command: ls\ncode: .\nrequirements: requirements.txt\n", path=str(here / "job.yaml"))
    reporter = SimpleNamespace(progress=lambda *_: None, notice=lambda kind, line: said.append(line))
    desk: Any = SimpleNamespace(directory=tmp_path / "state", reporter=reporter)
    try:
        found = resolving.resolve(desk, spec, here / "job.yaml", {"TOKEN": "hunter2hunter2"}, resolving.TPU_VM)
    except JobSpecError as error:
        (line,) = error.message.splitlines()
        where, line = line.split("requirements: ", 1)[1].split(":", 1)
        expected = filled(odd.refused)
        assert (f"{where}:{line}" if where != "requirements.txt" else line).startswith(expected) and expected, line
        assert error.exit_code == 64 and "hunter2" not in str(error) + str(error.hint)
        return
    found.tell(reporter)
    assert (
        found.lock.versions == {key: filled(value) for key, value in (odd.chosen or {}).items()}
        and odd.chosen is not None
    )
    assert any(line.startswith(odd.said) for line in said), said
    assert "hunter2" not in str(said) + found.lock.text
