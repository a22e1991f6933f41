"""Writes the `ssh` and `scp` through which `gcloud compute tpus … ssh` and `scp` reach emulated workers.

gcloud uses port 22 only, which needs root. It names the worker in HostKeyAlias=tpu.<id>-<worker>-…, so these two programs come
before OpenSSH's on the PATH and add that worker's port (`ssh_wrapper`); where gcloud tunnels through IAP, they name the relay
of this emulator instead. Everything else goes to the real program unchanged.
"""

import os
import shlex
import sys
from pathlib import Path

import orchestrator

PROGRAMS = {"ssh": "-p", "scp": "-P"}  # with the option for a port
# A shell script, so that every other use of ssh does not wait for Python, which takes ten times as long to start.
SCRIPT = """\
#!/bin/sh
# ssh of the emulated Cloud TPU at {state_dir}: adds the port of its workers, and changes nothing else
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
from orchestrator.emulator.daemon import ssh_wrapper
ssh_wrapper.main()
"""


def write(state_dir: Path) -> Path:
    """Return the directory to put first on the PATH. Written each time, since Python or the package may have moved."""
    directory = state_dir.absolute() / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    names = {"state_dir": state_dir.absolute(), "python": sys.executable, "directory": directory}
    names |= {"start": START, "package_root": orchestrator.ROOT}
    values = {name: shlex.quote(str(value)) for name, value in names.items()}
    for program in PROGRAMS:
        temporary = directory / f"{program}.{os.getpid()}"
        temporary.write_text(SCRIPT.format(program=program, **values))
        temporary.chmod(0o755)
        temporary.replace(directory / program)
    return directory
