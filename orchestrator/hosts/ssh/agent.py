"""The files of `orchestrator.vm` as one small archive, and the command lines that run them on a worker.

The archive is named after its hash and is sent on the stdin of the agent of each connection, so that a worker never runs
another version than this client, and installation needs no step of its own.
"""

import fnmatch
import functools
import hashlib
import io
import shlex
import zipfile
from importlib import resources

# -I and -S: no site packages, no PYTHON* variables, half the start-up time.
PYTHON = ("python3", "-IS")
NOT_SHIPPED = ("pod/*",)
NOT_IN_A_POD = ("agent/serve.py", "files/receive.py", "files/store.py", "buckets/jax_cache.py")
# Runs on the worker: reads exactly the archive from stdin, stores it under its name, and becomes it. The rest of stdin is the
# agent's. Python imports from the archive itself. What it does here without hashlib and pathlib takes a third of the time.
BOOT = """
import gc, os, sys
gc.disable()  # until a verb runs: it only costs time while modules are imported
try:
    from _sha256 import sha256
except ImportError:
    from hashlib import sha256
name, size = sys.argv[1], int(sys.argv[2])
data = b""
while len(data) < size:
    piece = os.read(0, size - len(data))
    if not piece:
        sys.exit("the connection was cut")
    data += piece
if sha256(data).hexdigest() != name:
    sys.exit("the agent arrived with another content than its name says")
os.umask(0o077)
path = os.path.expanduser("~/tpujob/bin/agent-" + name + ".zip")
try:
    found = os.stat(path).st_size
except OSError:
    found = 0
if found < size:  # the first connection, or the machine crashed before all of the file was on its disk
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = path + "." + str(os.getpid())
    with open(draft, "wb") as file:
        file.write(data)
    os.rename(draft, path)
sys.path.insert(0, path)
from vm.__main__ import main
sys.exit(main(["agent", "serve", "agent-" + name]))
""".lstrip()
# Of the archive as a program, `python3 ARCHIVE VERB …`: the job's own Python runs one of its verbs, too.
PROGRAM = """
import sys
from vm.__main__ import main
del sys.path[0]
sys.exit(main(sys.argv))
""".lstrip()


@functools.cache
def archive(left_out: tuple[str, ...] = NOT_SHIPPED) -> bytes:
    """Return a zip file for a worker; the same bytes for the same sources."""
    with resources.as_file(resources.files("orchestrator.vm")) as root:
        files = {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in root.rglob("*.py")}
    texts = {
        f"vm/{name}": text
        for name, text in files.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        for name, text in sorted([*texts.items(), ("__main__.py", PROGRAM)]):
            made.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


pod_archive = functools.partial(archive, NOT_IN_A_POD)  # its verb `pod` runs a job in a pod


@functools.cache
def digest() -> str:
    return hashlib.sha256(archive()).hexdigest()


def versioned_name() -> str:
    """What the agent says first: no other version than this client's can say it."""
    return f"agent-{digest()}"


def serve_command() -> str:
    """Start the agent of a connection; `archive()` must come first on its stdin, then the frames of `vm/agent/serve.py`."""
    return f"exec {shlex.join([*PYTHON, '-c', BOOT, digest(), str(len(archive()))])}"


def command(*arguments: str) -> str:
    """The command line of one verb, for the script of a job."""
    return f"exec {shlex.join(PYTHON)} {_place()} {shlex.join(arguments)}"


def command_of_the_job(*arguments: str) -> str:
    """The command line of one verb for the job's own Python. The arguments are written for bash."""
    return " ".join(["exec python3", _place(), *arguments])


def _place() -> str:
    """Where the agent is: a pod says so in a variable (`vm/pod/pod.py`), a worker has it below its home directory."""
    return f'"${{TPUJOB_AGENT:-$HOME/tpujob/bin/{versioned_name()}.zip}}"'
