"""A package index on the loopback address, with packages that a test chooses. It answers as PyPI's simple API does, in JSON."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.fakes.api import Request, StubApi, StubReply, stub_api

SETUP = (
    "from setuptools import setup; setup(name={name!r}, version={version!r}); raise SystemExit('no compiler here')\n"
)


@dataclass
class Index:
    """`login`: NAME:PASSWORD, without which nothing is answered."""

    api: StubApi
    login: str = ""
    files: dict[str, dict[str, tuple[bytes, str]]] = field(default_factory=dict)  # by package: name → content, Python

    metadata: dict[str, bytes] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.api.url}/simple"

    def wheel(
        self,
        name: str,
        version: str,
        requires: Sequence[str] = (),
        tag: str = "py3-none-any",
        extras: str = "",
        python: str = "",
    ) -> str:
        """Add a wheel, and return the hash of its file. `extras`: words; `python`: what it requires."""
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras.split())
        metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            info = f"{name}-{version}.dist-info"
            archive.writestr(f"{name}.py", f"version = {version!r}\n")
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        self.metadata[f"{name}-{version}-{tag}.whl.metadata"] = metadata.encode()
        return self._add(name, f"{name}-{version}-{tag}.whl", made.getvalue(), python)

    def source(self, name: str, version: str) -> str:
        """Add a source distribution that only its own code knows, and that cannot be built."""
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for path, text in (
                ("setup.py", SETUP.format(name=name, version=version)),
                ("PKG-INFO", "Metadata-Version: 1.0\n"),
            ):
                member = tarfile.TarInfo(f"{name}-{version}/{path}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        return self._add(name, f"{name}-{version}.tar.gz", made.getvalue(), "")

    def _add(self, package: str, file: str, content: bytes, python: str) -> str:
        self.files.setdefault(package.replace("_", "-"), {})[file] = content, python
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def answer(self, request: Request) -> StubReply:
        expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if self.login and request.headers.get("authorization") != expected:
            return StubReply(401, b"", (("WWW-Authenticate", 'Basic realm="x"'),))
        *_, folder, last = ["", *request.path.strip("/").split("/")]
        if folder == "files":
            found = next((files[last][0] for files in self.files.values() if last in files), self.metadata.get(last))
            return StubReply(404, b"") if found is None else StubReply(200, found)
        if last not in self.files:
            return StubReply(404, b"")
        files = [
            {
                "filename": file,
                "url": f"../../files/{file}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "requires-python": python or None,
                "core-metadata": file.endswith("whl"),
            }
            for file, (content, python) in self.files[last].items()
        ]
        listing = {"meta": {"api-version": "1.1"}, "name": last, "files": files}
        return StubReply(200, listing, (("Content-Type", "application/vnd.pypi.simple.v1+json"),))


@contextmanager
def package_index(login: str = "") -> Iterator[Index]:
    """Serve an empty index."""
    with stub_api() as api:
        index = Index(api, login)
        api.answer_with = index.answer
        yield index
