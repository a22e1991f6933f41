"""The files of `orchestrator.vm` as one small archive, and the command lines that run them on a worker.

The archive is named after its hash and is sent on the stdin of the agent of each connection, so that a worker never runs
another version than this client, and installation needs no step of its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import zlib
from importlib import resources

# -I and -S: no site packages, no PYTHON* variables, half the start-up time.
PYTHON = ("python3", "-IS", "-c")

# With the unpacked directory as its first argument. Not `python3 DIRECTORY`, which takes 20 ms to find out what that is.
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from vm.__main__ import main
sys.exit(main(sys.argv))
""".strip()

# Runs on the worker: reads exactly the archive from stdin, unpacks it under its name, and becomes it. The rest of stdin
# is the agent's. Unpacked, because Python caches the compiled form of files.
BOOT = """
import hashlib, json, os, sys, zlib
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
path = os.path.expanduser("~/tpujob/bin/agent-" + name)
if not os.path.exists(path):
    draft = path + "." + str(os.getpid())
    os.makedirs(draft + "/vm")
    for file_name, text in json.loads(zlib.decompress(data)).items():
        with open(draft + "/vm/" + file_name, "w", encoding="utf-8") as file:
            file.write(text)
    try:
        os.rename(draft, path)
    except OSError:
        if not os.path.exists(path):
            raise
sys.argv[1:3] = [path]
""".lstrip()


@functools.cache
def archive() -> bytes:
    """The same bytes for the same sources."""
    files = [file for file in resources.files("orchestrator.vm").iterdir() if file.name.endswith(".py")]
    return zlib.compress(json.dumps({file.name: file.read_text("utf-8") for file in files}, sort_keys=True).encode(), 9)


@functools.cache
def digest() -> str:
    return hashlib.sha256(archive()).hexdigest()


def versioned_name() -> str:
    """What the agent says first: no other version than this client's can say it."""
    return f"agent-{digest()}"


def serve_command() -> str:
    """Start the agent of a connection; `archive()` must come first on its stdin, then the frames of `vm/serve.py`."""
    return f"exec {shlex.join([*PYTHON, BOOT + RUN, digest(), str(len(archive())), 'serve', versioned_name()])}"


def command(*arguments: str) -> str:
    """The command line of one verb, for the script of a job."""
    return f'exec {shlex.join([*PYTHON, RUN])} "$HOME/tpujob/bin/{versioned_name()}" {shlex.join(arguments)}'


def script(name: str, *arguments: str) -> str:
    """The command line of a file of `orchestrator.vm` as a program of its own, for the job's own Python. The arguments are
    written for bash."""
    return " ".join(["python3", f'"$HOME/tpujob/bin/{versioned_name()}/vm/{name}.py"', *arguments])
