"""Wheels that tests make, so that a job's `pip install --no-index --find-links DIRECTORY` needs no network."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(directory: Path, name: str, version: str = "0.0.1", requires: Sequence[str] = ()) -> Path:
    """A distribution with one module of the same name, which knows its version."""
    files = {f"{name}/__init__.py": f"__version__ = {version!r}\n"}
    return _packed(directory, name, version, files, "".join(f"Requires-Dist: {one}\n" for one in requires))


def stand_in(directory: Path, name: str, version: str, module: ModuleType, extra: str) -> Path:
    """A distribution without files of its own: with it, an environment finds the module where this process has it."""
    assert module.__file__ is not None
    files = {f"{name}.pth": f"{Path(module.__file__).parents[1]}\n"}
    return _packed(directory, name, version, files, f"Provides-Extra: {extra}\n")


def _packed(directory: Path, name: str, version: str, files: dict[str, str], metadata: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": WHEEL,
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path
