"""`gcloud compute tpus … ssh` and `scp` reach emulated workers: two small programs that stand before OpenSSH's on the PATH.

gcloud knows no port but 22, which needs root. It does say which worker it means, as HostKeyAlias=tpu.<id>-<worker>-…, so
the program in between asks the emulator for that worker's port and adds it. Whatever is not about a worker of this
emulator goes to the real program as it came. `control.ssh_programs` writes them, and then gcloud starts them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import orchestrator
from orchestrator.emulator.daemon import control

PROGRAMS = {"ssh": "-p", "scp": "-P"}  # and how each is told a port
ALIAS = re.compile(r"HostKeyAlias=tpu\.(\d+)-(\d+)(?:-|$)")
# A shell first: it is a tenth of Python's start for everything else that uses ssh.
SCRIPT = """\
#!/bin/sh
# ssh of the emulated Cloud TPU at {state_dir}: adds the port of its workers, and leaves everything else alone
case " $* " in
*"HostKeyAlias=tpu."*)
    exec {python} -c {start} {package_root} {state_dir} {program} "$@" ;;
esac
here={directory} path=":$PATH:"
while case "$path" in *":$here:"*) true ;; *) false ;; esac do
    path="${{path%%":$here:"*}}:${{path#*":$here:"}}"
done
path="${{path#:}}"
PATH="${{path%:}}"
exec {program} "$@"
"""
START = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from orchestrator.emulator.daemon import gcloud_ssh
gcloud_ssh.main()
"""


def write(state_dir: Path) -> Path:
    """The directory to put first on the PATH. Written anew each time: the Python or the package may have moved."""
    directory = state_dir.absolute() / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        words = {
            "state_dir": state_dir.absolute(),
            "python": sys.executable,
            "start": START,
            "package_root": orchestrator.ROOT,
            "directory": directory,
        }
        temporary = directory / f"{program}.{os.getpid()}"
        temporary.write_text(
            SCRIPT.format(program=program, **{name: shlex.quote(str(word)) for name, word in words.items()})
        )
        temporary.chmod(0o755)
        temporary.replace(directory / program)
    return directory


def main() -> None:
    """`STATE_DIR PROGRAM ARGUMENTS…`: becomes the real program."""
    state_dir, program, *arguments = sys.argv[1:]
    directory = Path(state_dir) / "bin"
    path = os.pathsep.join(
        each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(each) != directory
    )
    real = shutil.which(program, path=path)
    if real is None:
        print(f"{program} is not installed (looked for it in {path}).", file=sys.stderr)
        sys.exit(127)
    os.environ["PATH"] = path  # scp starts ssh: the port is in its own arguments by then
    port = port_for(Path(state_dir), program, arguments)
    os.execv(real, [program, *(["-o", f"Port={port}"] if port else []), *arguments])  # noqa: S606  becoming it is the point


def port_for(state_dir: Path, program: str, arguments: list[str]) -> int | None:
    """The port of the worker that is meant; None: not ours, or a port was given."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    meant = next((match for word in options if (match := ALIAS.match(word))), None)
    if meant is None or any(word.startswith((PROGRAMS[program], "Port=", "-oPort=")) for word in options):
        return None
    endpoint = control.running(state_dir)
    nodes = control.request(endpoint, "GET", "/_emulator/status")["nodes"] if endpoint else []
    ports: list[int] = next((node["ssh_ports"] for node in nodes if node["uid"] == meant[1]), [])
    worker = int(meant[2])
    return ports[worker] if worker < len(ports) else None
