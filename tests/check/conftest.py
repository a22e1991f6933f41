"""The TPU compiler for the tests."""

import os
import pwd
from pathlib import Path

import pytest

from orchestrator.check import compiler
from orchestrator.errors import NotJudged


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all processes of the tests share, with the compiler in it: it is large."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if base.name.startswith("popen-") else base) / "compiler-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made))
        # A Python 3.12 of this machine may be one of pyenv, which is below the real home; uv downloads one otherwise.
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        patch.setenv("PYENV_ROOT", os.environ.get("PYENV_ROOT") or str(home / ".pyenv"))
        try:
            compiler.install(lambda stage, text: None)
        except NotJudged as error:
            if "no Python 3.12" not in error.message:
                raise
            pytest.skip(error.message)
    return made


@pytest.fixture(autouse=True)
def pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command finds the same Python."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    monkeypatch.setenv("PYENV_ROOT", os.environ.get("PYENV_ROOT") or str(home / ".pyenv"))
