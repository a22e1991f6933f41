"""The bash scripts that a job's phases run on every worker. Pure text; they are shipped as files, never passed to a shell.

The working directory is the attempt's `work/`, into which the code was unpacked.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence

# An emulated worker has an environment with this machine's torch, and names it in a variable.
LENT_BIN = "${TPUJOB_EMULATED_TRAINING:?the emulator is older than this tpujob: run tpujob emulator stop}"
LENT_PYTHON = "$TPUJOB_EMULATED_TRAINING/python"

_LOOK = """import importlib.util as u
torch, xla, accelerate, *others = map(u.find_spec, ("torch", "torch_xla", "accelerate", "lightning", "pytorch_lightning"))
print("lent" * ("/lent/torch-" in str(torch and torch.origin)), "rank" * bool(xla and accelerate and not any(others)))
"""


def in_lent_environment(script: str) -> str:
    """Return the script with `pip` and `python` of an emulated worker's environment for trainings first in PATH."""
    return f'export PATH="{LENT_BIN}:$PATH"\n{script}'


def train_main(python: str) -> str:
    """Return the script that runs the training."""
    return f"""export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1
exec {python} -m payload --config train.json
"""


def announce_lent_device(main: str) -> str:
    """Return a job's own commands, after a notice if the emulator lends the job a device that no TPU VM has.

    What the job has installed itself is not lent. accelerate asks torch_xla for the rank on a host only where that is on a TPU;
    elsewhere it reads LOCAL_RANK, and without that no process is the first. No other job gets this variable: a library that is
    not on XLA takes it for a process that a launcher started, beside others.
    """
    notice = "emulated: this machine's $TPUJOB_EMULATED_LENT is lent to the job's commands; a TPU VM comes without it"
    return f"""if [ -n "${{TPUJOB_EMULATED_LENT:-}}${{VIRTUAL_ENV:-}}" ]; then
found=$(python3 -Ic {shlex.quote(_LOOK)})
[[ $found == *lent* ]] || unset TPUJOB_EMULATED_LENT
[[ $found != *rank* ]] || export LOCAL_RANK="${{LOCAL_RANK:-0}}"
[ "$TPUJOB_WORKER" != 0 ] || [ -z "${{TPUJOB_EMULATED_LENT:-}}" ] || echo "{notice}"
fi
{main}"""


def beside(main: str, command: str) -> str:
    """Return the script with a command beside it, which no `wait` of the job waits for. Its output goes nowhere.

    It is on the first line of the job, so that bash names the lines of the job in its errors.
    """
    return f"( {command} </dev/null >/dev/null 2>&1 & ); {main}"


def with_upload(main: str, upload: str) -> str:
    """Return the job's own script, then a command that copies its artifacts; if only the copy fails, the code is 65."""
    end = f"END-OF-JOB-{hashlib.sha256(main.encode()).hexdigest()[:12]}"
    return f"""cat >"$0.job" <<'{end}'
{main}
{end}
bash -- "$0.job"
rc=$?
( {upload} ) || {{ [ $rc -ne 0 ] || rc=65; }}
exit $rc
"""


def with_data(setup: str, data: Mapping[str, str], agent: str, root: str) -> str:
    """Return the script of a setup after what fetches `data:`. `agent`: the command of verb `data`; `root`: of its cache."""
    request = json.dumps({"data": dict(data), "root": root})
    end = f"END-OF-DATA-{hashlib.sha256(request.encode()).hexdigest()[:12]}"
    return f"set -e\n( {agent} ) <<'{end}'\n{request}\n{end}\n{setup}"


def unless_python_has(modules: Sequence[str], script: str) -> str:
    """Return a script that runs this one where `python3` lacks one of these modules, and else says that it has them.

    Nothing is imported: a module may take the TPU for itself.
    """
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    said = f"the image has {' and '.join(modules)}: they are used as they are"
    return f"""if ! python3 -c '{look}' {" ".join(modules)}; then
{script}elif [ "$TPUJOB_WORKER" = 0 ]; then
echo "{said}"
fi
"""


def chain(commands: Sequence[str]) -> str:
    """Return a script of the user's commands; the first that fails ends it with its code."""
    return "set -e\n" + "\n".join(commands) + "\n"
