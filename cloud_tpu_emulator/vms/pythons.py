"""The Pythons of an emulated TPU VM: one for its commands, and one with torch for trainings.

Each worker has its own two, beside its home directory: what a job installs belongs to that worker and is deleted with it. None
of tpujob's own packages is in them. Lent packages (pip, and torch with its requirements) are neither copied nor downloaded:
they are a directory of links into tpujob's environment, which Python searches after the worker's own packages. pip changes
nothing outside its own environment, so another version of a lent package is installed beside it and found first, and a lent
package cannot be uninstalled.

Virtual environments that a job makes from such a Python are lent the same: `tpujob-lent/` beside its `bin/` holds what
`vm.environment.virtualenv` adds to them, for Python the path of the links, for pip and uv the metadata of the packages.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import re
import shlex
import shutil
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_tpu_emulator.vms import foreign_paths

if TYPE_CHECKING:
    from importlib.metadata import Distribution

log = logging.getLogger(__name__)
COMMANDS, TRAINING = "python", "training"  # beside the home directory of each worker
TORCH = ("torch", "torch_xla", "torch_tpu", "numpy")  # what a `train:` job installs on a TPU VM
COMPLETE = "tpujob-complete"
LENT = "tpujob-lent"
WATCH = "tpujob_foreign_paths"  # a module
# As pip writes them: the path may be too long for a first line of the kernel's, and may contain spaces.
SCRIPT = """#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
import sys
from {module} import {name}
sys.exit({function}())
"""


@dataclass(frozen=True, slots=True)
class LentPackages:
    """A directory of links to packages, with their scripts."""

    name: str
    directory: Path
    metadata: Path  # a directory: what names these packages to Python, pip and uv
    scripts: Mapping[str, str]  # from their names to "module:function"


class Pythons:
    """The Pythons of all workers of one daemon. Lent packages are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def make_all(self, *workers: Path, lend_torch: bool) -> None:
        """Make both Pythons of the workers with these directories, in 10 ms each. Complete ones stay as jobs left them.

        Looks each time for what can be lent: torch may have been installed since the daemon started.
        """
        both = (worker / name for worker in workers for name in (COMMANDS, TRAINING))
        places = [place for place in both if not _is_complete(place)]
        if not places:
            return
        with self._lock:
            paths, pip, torch = _paths(self.directory), _pip(self.directory), _torch(self.directory)
        for place in places:
            make(place, (paths, pip, torch) if lend_torch or place.name == TRAINING else (paths, pip))


def make(place: Path, lent: Sequence[LentPackages]) -> None:
    """Make a virtual environment that finds lent packages, and uv; replace what is at `place`."""
    venv.EnvBuilder(clear=True, symlinks=True).create(place)
    to_others = place / LENT / f"python{sys.version_info.major}.{sys.version_info.minor}"
    to_others.mkdir(parents=True)
    # That of PATH, or the one beside tpujob.
    if uv := shutil.which("uv") or shutil.which("uv", path=sysconfig.get_path("scripts")):
        (place / "bin" / "uv").symlink_to(uv)
    for one in lent:
        (to_others / one.name).symlink_to(one.metadata)
        shutil.copy(one.metadata / _pth(place, one.name).name, _pth(place, one.name))
        for script, function in one.scripts.items():
            _write_script(place / "bin" / script, place / "bin" / "python", function)
    (place / COMPLETE).write_text(_mark(place))


def _is_complete(place: Path) -> bool:
    """Return whether it was made completely, at this place, and by this Python."""
    mark = place / COMPLETE
    return mark.exists() and mark.read_text() == _mark(place)


def _mark(place: Path) -> str:
    return "\n".join((str(place), sys.base_prefix, sys.version, LENT))


def lends_torch(worker: Path) -> bool:
    """Return whether torch is lent to a worker's commands, too; this was decided when the worker was created."""
    return _pth(worker / COMMANDS, "torch").exists()


def _pth(place: Path, name: str) -> Path:
    return place / _packages() / f"tpujob-lends-{name}.pth"


@functools.cache  # it is asked for with every command of every worker
def _packages() -> str:
    """Return the directory of the packages in a virtual environment, relative to it."""
    return sysconfig.get_path("purelib", "venv", {"base": ".", "platbase": "."})


def _write_script(path: Path, python: Path, entry: str) -> None:
    module, _, function = entry.partition(":")
    path.write_text(
        SCRIPT.format(
            python=shlex.quote(str(python)), module=module, name=function.partition(".")[0], function=function
        )
    )
    path.chmod(0o755)


# -- lent packages ---------------------------------------------------------------------------------------------------


def _torch(directory: Path) -> LentPackages:
    found = _with_requirements(TORCH)
    scripts = {point.name: point.value for one in found for point in one.entry_points.select(group="console_scripts")}
    return _lent("torch", _linked(directory, "torch", found), scripts)


def _paths(directory: Path) -> LentPackages:
    """Return what says that a job opens a path of this machine."""
    source = Path(foreign_paths.__file__).read_bytes()

    place = directory / f"paths-{hashlib.sha256(source).hexdigest()[:12]}"
    line = f"import os, sys; 'TPUJOB_RUN' in os.environ and (sys.path.append({str(place)!a}), __import__('{WATCH}'))\n"
    _complete(place, lambda draft: (draft / f"{WATCH}.py").write_bytes(source))

    def fill(draft: Path) -> None:
        (draft / "tpujob-lends-paths.pth").write_text(line)

    return LentPackages("paths", place, _complete(place.with_name(f"{place.name}-metadata"), fill), {})


def _pip(directory: Path) -> LentPackages:
    """Return tpujob's own pip, or, if its environment has none (uv, pipx), the one that Python bundles."""
    names = ("pip", "pip3", f"pip{sys.version_info.major}.{sys.version_info.minor}")
    scripts = dict.fromkeys(names, "pip._internal.cli.main:main")
    found = _with_requirements(["pip"])
    wheel = None if found else _bundled_pip()
    if wheel is not None:
        unpack = functools.partial(shutil.unpack_archive, wheel, format="zip")
        return _lent("pip", _complete(directory / wheel.stem, unpack), scripts)
    if not found:
        log.warning(
            "this Python has neither pip nor ensurepip, so emulated workers have no pip; install one of the two"
        )
    return _lent("pip", _linked(directory, "pip", found), scripts)


def _lent(name: str, directory: Path, scripts: Mapping[str, str]) -> LentPackages:
    """Return the packages in this directory, with their metadata beside it.

    Their RECORD names only themselves: who replaces such a package in a virtual environment deletes nothing of this machine.
    """

    def fill(draft: Path) -> None:
        (draft / f"tpujob-lends-{name}.pth").write_text(f"import site; site.addsitedir({str(directory)!a})\n")
        for original in directory.glob("*.dist-info"):
            copy = draft / original.name
            copy.mkdir()
            for file in ("METADATA", "WHEEL", "entry_points.txt"):
                if (original / file).is_file():
                    shutil.copyfile(original / file, copy / file)
            (copy / "INSTALLER").write_text("tpujob\n")
            names = sorted({*(path.name for path in copy.iterdir()), "RECORD"})
            (copy / "RECORD").write_text("".join(f"{copy.name}/{file},,\n" for file in names))

    return LentPackages(name, directory, _complete(directory.with_name(f"{directory.name}-metadata"), fill), scripts)


def _bundled_pip() -> Path | None:
    ensurepip = importlib.util.find_spec("ensurepip")
    places = [sysconfig.get_config_var("WHEEL_PKG_DIR")]  # where a distribution of Linux keeps it
    places += [Path(at) / "_bundled" for at in (ensurepip and ensurepip.submodule_search_locations) or ()]
    return next((wheel for place in places if place for wheel in Path(place).glob("pip-*.whl")), None)


def _with_requirements(names: Sequence[str]) -> list[Distribution]:
    """Return those that are installed, and their installed requirements, extras excepted. Markers are ignored."""
    found: dict[str, Distribution] = {}
    todo, seen = list(names), set[str]()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        required = [text for text in found[name].requires or () if not re.search(r"\bextra\s*==", text)]
        todo += [match[0] for text in required if (match := re.match(r"[\w.-]+", text))]
    return list(found.values())


def _linked(directory: Path, name: str, distributions: Sequence[Distribution]) -> Path:
    """Return a directory with links to these packages and nothing else, named by a digest of its content."""
    links: dict[str, Path] = {}
    for one in distributions:
        root, record = Path(str(one.locate_file(""))), one.read_text("RECORD")
        files = record.splitlines() if record is not None else [str(file) for file in one.files or ()]
        links |= {link: root / link for link in _links(root, [line.partition(",")[0] for line in files])}
    digest = hashlib.sha256(repr(sorted((link, str(target)) for link, target in links.items())).encode()).hexdigest()

    def fill(draft: Path) -> None:
        for link, target in links.items():
            (draft / link).parent.mkdir(parents=True, exist_ok=True)
            (draft / link).symlink_to(target)

    return _complete(directory / f"{name}-{digest[:12]}", fill)


def _links(root: Path, files: Collection[str], under: str = "") -> Iterator[str]:
    """Yield the fewest paths that cover these files. A directory that distributions may share is not linked as a whole."""
    names = {file[len(under) :].partition("/")[0] for file in files if file.startswith(under)}
    for name in sorted(names - {"", "..", "__pycache__"}):
        path = root / under / name
        shared = path.is_dir() and not (path / "__init__.py").exists()
        if shared and path.suffix not in (".dist-info", ".egg-info"):
            yield from _links(root, files, f"{under}{name}/")
        elif path.exists():
            yield under + name


def _complete(place: Path, fill: Callable[[Path], object]) -> Path:
    """Return `place`, filled atomically: a killed daemon leaves only a draft."""
    if not place.exists():
        draft = place.with_name(f"{place.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        fill(draft)
        draft.rename(place)
    return place
