"""What a pod starts with: where it stands among the pods of its job, and the code of the job in its working directory.

The variables of the pod (`orchestrator.places.gke.objects.manifest` sets them):

- TPUJOB_SLICE, TPUJOB_SLICES, TPUJOB_HOSTS_PER_SLICE, and JOB_COMPLETION_INDEX, which Kubernetes sets: its place
- TPUJOB_POD, TPUJOB_POD_IP: its own name and address
- TPUJOB_COORDINATOR_NAME: the DNS name of the first pod, `<jobset>-slice-0-0.<jobset>`; others differ in the two numbers
- TPUJOB_COORDINATOR_PORT: the port of the first pod that its job may listen on; the next one is for `starts`

The code comes from the ConfigMap, or from Cloud Storage where it is larger, and is checked against its hash before anything of
it is unpacked. What has this hash was packed by the client (`places.gke.preparation`), which has checked paths and links.
"""

# Paths are text, as in `phases`.
# ruff: noqa: PTH103, PTH104, PTH108
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..buckets.cloud_storage import Storage, split

FIRST = re.compile(r"^(?P<before>.+)-0-0(?P<after>(?:\..*)?)$")
LOOK_S = 0.5
T = TypeVar("T")


class Place:
    """The place of a pod, from its variables. Raises ValueError for variables that make no sense."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.slices, self.hosts = self._number("TPUJOB_SLICES", 1), self._number("TPUJOB_HOSTS_PER_SLICE", 1)
        self.worker = self._number("TPUJOB_SLICE", 0) * self.hosts + self._number("JOB_COMPLETION_INDEX", 0)
        self.workers = self.slices * self.hosts
        self.port = self._number("TPUJOB_COORDINATOR_PORT", 29400)
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"this is pod {self.worker} of {self.workers}: its variables contradict each other")

    def _number(self, name: str, default: int) -> int:
        text = self.environ.get(name, "") or str(default)
        if not text.isdigit():
            raise ValueError(f"{name} is {text!r}, not a number")
        return int(text)

    def names(self) -> list[str]:
        """Return the DNS names of all pods, in the order of workers."""
        first = self.environ.get("TPUJOB_COORDINATOR_NAME", "")
        found = FIRST.match(first)
        if found is None:
            raise ValueError(f"TPUJOB_COORDINATOR_NAME is {first!r}, not the name of the first of {self.workers} pods")
        places = ((index // self.hosts, index % self.hosts) for index in range(self.workers))
        return [f"{found['before']}-{of_slice}-{host}{found['after']}" for of_slice, host in places]

    def coordinator(self, over: Callable[[], bool], most_s: float) -> str | None:
        """Return the address of the first pod, or after `most_s` its name. None: `over` was true before that.

        JAX and torch_xla need no other pod, and its name appears when it has been started. One that has ended has none any
        more: a job whose pods do not meet goes on without.
        """
        if self.worker == 0:
            return self.environ.get("TPUJOB_POD_IP") or "127.0.0.1"
        name = self.names()[0]

        def address() -> str:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])

        return looked_for(address, over, most_s) or (None if over() else name)

    def variables(self, coordinator: str) -> dict[str, str]:
        """Return what the job is told of it (docs/job-file.md)."""
        host = f"[{coordinator}]" if ":" in coordinator else coordinator
        return {
            "TPUJOB_WORKER": str(self.worker),
            "TPUJOB_WORKERS": str(self.workers),
            "TPUJOB_HOSTS": coordinator if self.workers == 1 else ",".join(self.names()),
            "TPUJOB_COORDINATOR": f"{host}:{self.port}",
        }


def looked_for(look: Callable[[], T], over: Callable[[], bool], most_s: float) -> T | None:
    """Return what `look` returns once it finds something; None: not for so long, or it was over before that."""
    began, is_found = time.monotonic(), threading.Event()
    found: list[T] = []

    def waits() -> bool:
        return not over() and time.monotonic() - began < most_s

    def go_on() -> None:
        while not found and waits():
            with contextlib.suppress(OSError, ValueError, TypeError):  # another pod is not there yet
                found.append(look())
                is_found.set()
            time.sleep(LOOK_S)

    threading.Thread(target=go_on, name="look", daemon=True).start()  # a resolver may hang
    while waits():
        if is_found.wait(min(LOOK_S, most_s)):
            return found[0]
    return None


class CodeRefused(Exception):
    """Why there is no code."""


def unpack(inside: str, request: dict[str, Any], into: str, storage: Storage) -> None:
    """Make `into`, the working directory, with the code of the request. Raises CodeRefused, and OSError for a full disk."""
    draft = f"{into}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft)
    expected = request.get("code_sha256")
    if expected is not None:
        archive = f"{inside}/code.tar.gz"
        if request.get("code_object") is not None:
            archive = f"{into}.tar.gz"
            problem = storage.fetch(*split(request["code_object"]), Path(archive))
            if problem is not None:
                raise CodeRefused(f"the code cannot be read from {request['code_object']}: {problem}")
        try:
            digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
        except OSError as error:
            raise CodeRefused(f"there is no code: {error.strerror or error}") from error
        if digest != expected:
            raise CodeRefused("the code arrived with another content than its hash says")
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                member.mtime = time.time()  # the archive has none, and a wheel cannot be made of files from 1970
                packed.extract(member, draft)
        if request.get("code_object") is not None:
            os.unlink(archive)
    os.rename(draft, into)
