"""The files of `orchestrator.vm` as one small archive, and the command lines that run it on a worker.

The archive is named by its hash and travels on stdin with the first call over each connection, so that a worker never
runs another version than this one and no separate step is needed to install it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import shlex
import zipfile
from importlib import resources

ENTRY = "import sys\nfrom vm.__main__ import main\nsys.exit(main(sys.argv))\n"

# Runs on the worker: reads exactly the archive from stdin, puts it in its place, and becomes it. The rest of stdin is
# the agent's. -I and -S: no site packages, no PYTHON* variables, half the start-up time.
BOOT = """
import hashlib, os, sys
name, size = sys.argv[1], int(sys.argv[2])
data = b""
while len(data) < size:
    piece = os.read(0, size - len(data))
    if not piece:
        sys.exit("the connection was cut")
    data += piece
if hashlib.sha256(data).hexdigest() != name:
    sys.exit("the agent arrived with another content than its name says")
os.umask(0o077)
path = os.path.expanduser("~/tpujob/bin/agent-" + name + ".pyz")
os.makedirs(os.path.dirname(path), exist_ok=True)
if not os.path.exists(path):
    with open(path + "." + str(os.getpid()), "wb") as file:
        file.write(data)
    os.replace(file.name, path)
os.execv(sys.executable, [sys.executable, "-IS", path] + sys.argv[3:])
"""


@functools.cache
def archive() -> bytes:
    """The same bytes for the same sources."""
    sources = {
        f"vm/{file.name}": file.read_bytes() for file in resources.files("orchestrator.vm").iterdir() if file.is_file()
    }
    sources = {name: text for name, text in sources.items() if name.endswith(".py")}
    sources["__main__.py"] = ENTRY.encode()
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as zip_file:
        for name, text in sorted(sources.items()):
            zip_file.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return memory.getvalue()


@functools.cache
def digest() -> str:
    return hashlib.sha256(archive()).hexdigest()


def first_command(*arguments: str) -> str:
    """For the first call over a connection; `archive()` must come first on its stdin."""
    boot = ["python3", "-IS", "-c", BOOT.strip(), digest(), str(len(archive())), *arguments]
    return f"exec {shlex.join(boot)}"


def command(*arguments: str) -> str:
    return f'exec python3 -IS "$HOME/tpujob/bin/agent-{digest()}.pyz" {shlex.join(arguments)}'
