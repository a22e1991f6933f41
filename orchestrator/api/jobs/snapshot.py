"""A job as it was when it was added to a queue, or run, in one archive: later, also on another machine, the same runs from it.

The archive has `job.json`, the keys of the job with the names of its secrets, `requirements.txt`, `constraints.txt` with the
versions that were chosen, `git.json` with the state of the repository of the code, and below `code/` what the job ships, its
data in `code/data/`. The rules about what is left out have been applied: no .tpujobignore of the job is in the archive, and one
that lets everything pass is.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from orchestrator import job as job_file
from orchestrator import places
from orchestrator.errors import UserError
from orchestrator.hosts.shipping import git_state
from orchestrator.hosts.shipping.ignore import OWN
from orchestrator.hosts.shipping.store import Manifest
from orchestrator.hosts.shipping.tree import MAX_BYTES
from orchestrator.job.rules.env import secret_sources
from orchestrator.job.source.lock_file import lock_of
from orchestrator.places.preparation import code, requirements, resolving
from orchestrator.places.preparation.phases import Emulation
from orchestrator.report.files import artifact_files
from orchestrator.system import private_files
from orchestrator.text import parsing
from orchestrator.traits import is_emulated, traits_on

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.job.job_spec import JobSpec

JOB, REQUIREMENTS, CONSTRAINTS, GIT = "job.json", "requirements.txt", "constraints.txt", "git.json"
CODE, DATA = "code", "code/data"
DATA_APART = "data"  # where the archive has no code
# The last word over .gitignore files and built-in rules, but not a part of what is shipped.
EVERYTHING = f"!*\n/{OWN}\n"
MOST_TEXT_BYTES = 16 << 20  # of each file beside the code
MOST_PIECE_BYTES = 1 << 20
# Keys that a job file has with a unit, and a checked job as a number.
_UNITS = (
    *((("limits", key), "s") for key in ("max_duration", "linger", "stall")),
    *((("limits", key), "B") for key in ("max_results", "max_log")),
    (("tpu", "wait"), "s"),
    (("keep_on_failure",), "s"),
    (("gke", "grace"), "s"),
)
_LOCAL = re.compile(r"^(--find-links )?\./", re.M)  # a line of requirements that names a path in the code
# One that names another file of this machine.
_OTHER_FILE = re.compile(rf"\s*(-r|-c|--requirement|--constraint)(?![\s=]*(https?://|{re.escape(CONSTRAINTS)}\s*$))")
# RuntimeError: of links that lead to themselves, before Python 3.13.
_DAMAGED = (OSError, EOFError, ValueError, RuntimeError, tarfile.TarError, zlib.error)


def pack(session: Session, spec: JobSpec, path: Path, to: Path) -> None:
    """Write the archive of a job to this file; the same job, code, versions and commit make the same bytes.

    `path`: as for `start_run`. Raises UserError and JobSpecError for what a run would refuse.
    """
    code.check_directories(spec, path)
    found = code.survey_of(session, spec, path)
    versions = _versions(session, spec, path)
    with ExitStack() as stack:
        shipment = code.shipment_of(session, found, stack)
        state = git_of(session, spec, path, shipped(spec, path, shipment))
        texts = {JOB: _dumped(values_of(spec)), **_requirements(spec, path, versions), GIT: _dumped(state)}
        try:
            _write(to, _members(shipped(spec, path, shipment), shipment, texts, has_code=spec.code is not None))
        except OSError as error:
            raise UserError(f"{to} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a run, to run it again. `env`: its variables as they are stored. `code`: whether it is in the archive."""

    spec: JobSpec
    path: Path
    shipment: Shipment | None
    lock: str
    env: Mapping[str, str]
    state: Mapping[str, Any] | None
    code: bool = True

    def texts(self) -> dict[str, str]:
        """Return the texts of the archive, by their names. Raises JobSpecError for requirements that are not there any more."""
        values = values_of(self.spec) | ({"env": dict(self.env)} if self.env else {})
        if not self.code and self.spec.train is not None and self.spec.train.data_dir is not None:
            values["train"]["data_dir"] = DATA_APART
        asked = _requirements(self.spec, self.path, lock_of(self.lock).versions)
        return {JOB: _dumped(values), **asked, GIT: _dumped(self.state)}

    def write(self, to: Path, texts: Mapping[str, str]) -> None:
        """Write the archive whole, with these texts. Raises OSError."""
        manifest = shipped(self.spec, self.path, self.shipment) if self.code else Manifest(())
        draft = to.with_name(f".{to.name}")
        _write(draft, _members(manifest, self.shipment, texts, has_code=self.code and self.spec.code is not None))
        draft.replace(to)


def shipped(spec: JobSpec, path: Path, shipment: Shipment | None) -> Manifest:
    """Return what the job ships of its own, without what only says what is left out."""
    if shipment is None:
        return Manifest(())
    manifest, of_tpujob = shipment.manifest, _of_tpujob(spec, path)

    def is_own(name: str) -> bool:
        return name not in of_tpujob and PurePosixPath(name).name != OWN

    files = tuple(each for each in manifest.files if is_own(each.path))
    return Manifest(files, tuple(each for each in manifest.links if is_own(each[0])), manifest.directories)


def git_of(session: Session, spec: JobSpec, path: Path, manifest: Manifest) -> dict[str, Any] | None:
    """Return the state of the repository of the code, as JSON values; that of an unpacked archive is the one that it has."""
    if path.parent.is_relative_to(session.directory):
        return artifact_files.read_object(path.parent / GIT, MOST_TEXT_BYTES) or None
    names = {each.path for each in manifest.files if spec.code is not None}
    if spec.train is not None and spec.train.data_dir is not None:  # which is beside the code
        names = {name for name in names if not name.startswith("data/")}
    found = git_state.read(path.parent / (spec.code or ""), names, session.reporter.secrets.hide_bytes)
    return None if found is None else cast("dict[str, Any]", session.reporter.secrets.hide_all(asdict(found)))


def _dumped(values: object) -> str:
    return json.dumps(values, sort_keys=True)


def _write(to: Path, members: Iterable[tuple[tarfile.TarInfo, bytes | Path]]) -> None:
    with (
        private_files.open_file(to, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, content in members:
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                archive.addfile(member, source)


def values_of(spec: JobSpec) -> dict[str, Any]:
    """Return the keys of the job as a file beside its code would have them."""
    values = spec.model_dump(mode="json", exclude_unset=True)
    for (*section, key), unit in _UNITS:
        keys = values.get(section[0], {}) if section else values
        if keys.get(key) is not None:
            keys[key] = f"{keys[key]}{unit}"
    if spec.code is not None:
        values["code"] = CODE
    if spec.train is not None and spec.train.data_dir is not None:
        values["train"]["data_dir"] = DATA
    if spec.requirements is not None:
        values["requirements"] = REQUIREMENTS
    return values


def _versions(session: Session, spec: JobSpec, path: Path) -> dict[str, str]:
    """Return the versions that are chosen now for `requirements:`."""
    target = places.place_on(spec.on).compiles_for(session, spec) if spec.requirements is not None else None
    if target is None:
        return {}
    env = job_file.job_spec.resolve_env(spec, {**dict.fromkeys(secret_sources(spec.env), ""), **os.environ})
    emulated = traits_on(spec.on).by_target and is_emulated(session.target.kind)
    workers, emulation = (resolving.EMULATED, Emulation(1)) if emulated else (target.workers, None)
    chosen = resolving.resolve(session, spec, path, env, workers, emulation)
    for line in chosen.warnings:
        session.reporter.notice("warning", line)
    return chosen.lock.versions


def _requirements(spec: JobSpec, path: Path, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the files for `requirements:`, with all that it names; these versions are constraints."""
    if spec.requirements is None:
        return {}
    asked = requirements.read(spec, path)
    pins = (f"{name}=={version}\n" for name, version in versions.items() if version[0].isdigit())  # else a URL
    local = rf"\g<1>./{CODE}/"
    return {
        REQUIREMENTS: f"-c {CONSTRAINTS}\n" + _LOCAL.sub(local, asked.requirements),
        CONSTRAINTS: "".join([_LOCAL.sub(local, asked.constraints), *pins]),
    }


def _members(
    manifest: Manifest, shipment: Shipment | None, texts: Mapping[str, str], *, has_code: bool
) -> Iterator[tuple[tarfile.TarInfo, bytes | Path]]:
    """Yield what the archive consists of, with contents."""
    names = [*(each.path for each in manifest.files), *(name for name, _ in manifest.links)]
    has_data = any(each.startswith("data/") for each in names)
    tops = [*([CODE] if has_code and names else []), *([DATA] if has_data else [])]
    for name, text in {**texts, **{f"{top}/{OWN}": EVERYTHING for top in tops}}.items():
        content = text.encode()
        yield _member(name, tarfile.REGTYPE, len(content)), content
    yield _member(CODE, tarfile.DIRTYPE), b""
    for name in manifest.directories:
        yield _member(f"{CODE}/{name}", tarfile.DIRTYPE), b""
    for each in manifest.files:
        assert shipment is not None
        member = _member(f"{CODE}/{each.path}", tarfile.REGTYPE, each.size_bytes, 0o755 if each.executable else 0o644)
        yield member, shipment.contents[each.sha256] if each.size_bytes else b""
    for name, leads_to in manifest.links:
        member = _member(f"{CODE}/{name}", tarfile.SYMTYPE)
        member.linkname = leads_to
        yield member, b""


def _of_tpujob(spec: JobSpec, path: Path) -> set[str]:
    """Return what is shipped of tpujob itself with a training: each machine ships its own."""
    if spec.train is None:
        return set()
    train = spec.train.model_copy(update={"data_dir": None})
    found = code.survey(spec.model_copy(update={"code": None, "train": train}), path, emulated=True)
    return set() if found is None else set(found.entries)


def _member(name: str, kind: bytes, size: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)  # owner 0, time 0
    member.type, member.size, member.mode = kind, size, mode
    return member


def unpack(archive: Path, directory: Path, hint: str | None = None) -> tuple[JobSpec, Path]:
    """Unpack an archive in place of this directory; return its job, and the path to whose directory its paths are relative.

    Whoever wrote it is not trusted: it writes and names nothing outside of the directory. Raises UserError for one that cannot
    be read, with this hint; then the directory is as it was.
    """
    try:
        private_files.make_directory(directory.parent)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=directory.parent) as scratch:
            draft = Path(scratch, "job")
            with _Pieces(archive, "rb") as unzipped, tarfile.open(fileobj=unzipped, mode="r:") as packed:
                _extract(packed, draft)
            spec = _read(draft)
            if directory.exists():
                shutil.rmtree(directory)
            draft.rename(directory)
    except _DAMAGED as error:
        raise UserError(f"{archive} cannot be unpacked: {error}", hint=hint) from error
    return spec, directory / f"Job({spec.name})"


class _Pieces(gzip.GzipFile):
    """A file that is read in pieces only: no header of an archive fills the memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MOST_PIECE_BYTES:
            raise ValueError("one of its headers is too large")
        return super().read(size)


def _extract(packed: tarfile.TarFile, into: Path) -> None:
    """Raises ValueError for what does not belong there."""
    links, left = dict[PurePosixPath, str](), MAX_BYTES + 4 * MOST_TEXT_BYTES
    for member in packed:
        name = PurePosixPath(member.name)
        is_inside = name.parts[:1] == (CODE,) and ".." not in name.parts
        may_be_text = member.isreg() and member.size <= MOST_TEXT_BYTES
        is_text = may_be_text and str(name) in (JOB, REQUIREMENTS, CONSTRAINTS, GIT)
        if not (is_inside or is_text):
            raise ValueError(f"{member.name!r} does not belong there")
        left -= member.size
        if left < 0 or member.size < 0:
            raise ValueError(f"{member.name!r} is too large")
        target = into / name
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        elif member.issym() and len(name.parts) > 1:
            links[name] = member.linkname
        elif member.isreg():
            target.parent.mkdir(parents=True, exist_ok=True)
            source = packed.extractfile(member)
            assert source is not None, "a regular file has contents"
            with source, target.open("xb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
        else:
            raise ValueError(f"{member.name!r} is neither a file nor a directory nor a link")
    for name, leads_to in links.items():  # the last: nothing is written through one
        if not links.keys().isdisjoint(name.parents):
            raise ValueError(f"{str(name)!r} is behind a link")
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).symlink_to(leads_to)
    for name in links:
        if not (into / name).resolve().is_relative_to((into / CODE).resolve()):
            raise ValueError(f"{str(name)!r} is a link that leads out of the code")
        with suppress(FileNotFoundError, NotADirectoryError):  # one may lead to nothing
            (into / name).stat()  # since Python 3.13, to resolve one that leads to itself is no error


def _read(directory: Path) -> JobSpec:
    """Return the job. Raises JobSpecError, and ValueError for one that names other files than its own."""
    values = parsing.loads((directory / JOB).read_bytes())
    if not isinstance(values, dict):
        raise ValueError(f"{JOB} is not a job")
    spec = job_file.job_spec.from_values(values)
    data = spec.train.data_dir if spec.train is not None else None
    named = {spec.code: CODE, data: DATA_APART if data == DATA_APART else DATA}
    if isinstance(spec.requirements, str):
        named[spec.requirements] = REQUIREMENTS
        for file in filter(Path.exists, (directory / REQUIREMENTS, directory / CONSTRAINTS)):
            if found := next(filter(_OTHER_FILE.match, parsing.text_of(file.read_bytes()).splitlines()), None):
                raise ValueError(f"{file.name} names another file: {found!r}")
    if other := next((name for name, own in named.items() if name not in (None, own)), None):
        raise ValueError(f"its job names {other!r}")
    return spec
