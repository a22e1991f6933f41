"""The bash scripts that a job's phases run on every worker. Pure text; they are shipped as files, never passed to a shell.

The working directory is the attempt's `work/`, into which the bundle was unpacked.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence

VM_PYTHON = "3.10"  # the images of TPU VMs are Ubuntu 22.04
# What a TPU VM needs for a `train:` job (torch is not among torch_xla's own requirements). Both are on PyPI.
TRAIN_REQUIREMENTS = ("torch==2.9.0", "torch_xla[tpu]==2.9.0", "numpy>=1.26")
TORCH_TPU_REQUIREMENTS = ("torch>=2.11,<=2.15", "torch_tpu==0.2.0", "numpy>=2")
# There is no torch_tpu for the Python 3.10 of today's images: fail before anything is installed.
_NEW_ENOUGH_FOR_TORCH_TPU = """python=$(python3 -c 'import platform, sys
print(platform.python_version())
sys.exit(sys.version_info < (3, 11))') || {
  echo "setup: backend: tpu needs Python 3.11 or newer, and this image has $python; backend xla trains on the same TPU" >&2
  exit 2
}
"""


def requirements_of(backend: str) -> tuple[str, ...]:
    """Return the packages of a backend. TorchTPU needs a newer torch than torch_xla, so it has its own environment."""
    return TORCH_TPU_REQUIREMENTS if backend == "tpu" else TRAIN_REQUIREMENTS


def environment_name(requirements: Sequence[str]) -> str:
    """Return the environment's name. The same requirements give the same name, so an existing environment is used again."""
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]


def train_python(requirements: Sequence[str] | None = TRAIN_REQUIREMENTS) -> str:
    """Return the interpreter that `train_setup` creates, for the worker's shell. None: that of an emulated worker."""
    return f'"{_binaries(requirements)}/python"'


def in_train_environment(script: str, requirements: Sequence[str] | None = TRAIN_REQUIREMENTS) -> str:
    """Return the script with that environment's `pip` and `python` first in PATH: `setup:` installs for the training."""
    return f'export PATH="{_binaries(requirements)}:$PATH"\n{script}'


def _binaries(requirements: Sequence[str] | None) -> str:
    """An emulated worker has an environment with this machine's torch, and names it in a variable."""
    if requirements is None:
        return "${TPUJOB_EMULATED_TRAINING:?the emulator is older than this tpujob: run tpujob emulator stop}"
    return f"$HOME/tpujob/venvs/{environment_name(requirements)}/bin"


def train_setup(requirements: Sequence[str] = TRAIN_REQUIREMENTS) -> str:
    """Return a script that creates a virtual environment with these packages, unless a complete one exists."""
    name = environment_name(requirements)
    module, check = "torch_xla", ""
    if requirements == TORCH_TPU_REQUIREMENTS:
        module, check = "torch_tpu", _NEW_ENOUGH_FOR_TORCH_TPU
    wanted = " ".join(shlex.quote(requirement) for requirement in requirements)
    return f"""set -e
(
set -uo pipefail
venv="$HOME/tpujob/venvs/{name}"
if [ -e "$venv/.complete" ]; then
  echo "setup: environment {name} is there already"
  exit 0
fi
{check}echo "setup: installing "{shlex.quote(", ".join(requirements))}" (minutes on a fresh VM)"
rm -rf "$venv"
mkdir -p "$HOME/tpujob/venvs"
if ! python3 -m venv "$venv" 2>/dev/null; then
  echo "setup: this image lacks python3-venv; installing it"
  rm -rf "$venv"
  sudo apt-get -qq update && sudo DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv
  python3 -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --progress-bar off {wanted}
"$venv/bin/python" -c 'import torch, {module}; print("setup: torch", torch.__version__, "with {module}")'
touch "$venv/.complete"
)
"""


def train_main(python: str) -> str:
    """Return the script that runs the training."""
    return f"""export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1
exec {python} -m payload --config train.json
"""


def announce_lent_device(main: str) -> str:
    """Return a job's own commands, after a notice if the emulator lends the job a device that no TPU VM has."""
    notice = "emulated: this machine's $TPUJOB_EMULATED_LENT is lent to the job's commands; a TPU VM comes without it"
    return f'[ "$TPUJOB_WORKER" != 0 ] || [ -z "${{TPUJOB_EMULATED_LENT:-}}" ] || echo "{notice}"\n{main}'


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


def chain(commands: Sequence[str]) -> str:
    """Return a script of the user's commands; the first that fails ends it with its code."""
    return "set -e\n" + "\n".join(commands) + "\n"
