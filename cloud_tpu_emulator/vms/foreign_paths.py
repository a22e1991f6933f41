"""Says in a job's log once that it opens a path of this machine, which a TPU VM does not have.

The Pythons of emulated workers import a copy of this file as they start: standard library, Python 3.8. It never fails a job.
"""

import os
import sys

WATCHED = ("open", "os.listdir", "os.scandir")
# What every machine has, or a job makes by itself.
SYSTEM = "/bin /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /tmp /usr /var /Library /System /private".split()
OF_PYTHON = ("/site-packages/", "/dist-packages/", "/lib/python")
DEPTH, MOST = 4, 20  # parts of a path that is said, with the empty one before the root; so many in a process


def watch(worker: str, run: str) -> None:
    """Look at what this process opens. `worker`: the directory of the emulated VM."""
    lent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = [*SYSTEM, worker, os.path.realpath(worker), lent, sys.prefix, sys.base_prefix]
    known, said = tuple(each + "/" for each in own), [""]

    def hook(event: str, args: "tuple[object, ...]") -> None:
        if event in WATCHED and args and isinstance(args[0], str) and args[0][:1] == "/" and len(said) < MOST:
            try:
                look(args[0])
            except Exception:  # such as at the end of the interpreter
                pass

    def look(path: str) -> None:
        place = "/".join(path.split("/")[:DEPTH])
        if (path + "/").startswith(known) or any(each in path for each in OF_PYTHON) or place in said:
            return
        if path.rstrip("/").count("/") > 1 and os.path.exists(path):  # every machine has a root, and a /opt or a /home
            said.append(place)
            name = ("said-" + run + place.replace("/", "-"))[:200]
            os.close(os.open(worker + "/" + name, os.O_CREAT | os.O_EXCL, 0o600))  # once for all processes of the job
            text = "emulator: the job opens " + place + " of this machine; a TPU VM does not have it\n"
            os.write(2, text.encode("utf-8", "backslashreplace"))

    sys.addaudithook(hook)


if "TPUJOB_RUN" in os.environ and "TPUJOB_EMULATED_TRAINING" in os.environ:
    watch(os.path.dirname(os.path.dirname(os.environ["TPUJOB_EMULATED_TRAINING"])), os.environ["TPUJOB_RUN"])
