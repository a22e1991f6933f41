"""The virtual environment of a job on every worker: what is in it, its name, and the scripts that make it and use it. Pure.

The name is a hash of everything that was asked for, so a worker that has an environment of that name has what the job needs.
`vm.environment` makes it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

_FOR_TPU = re.compile(
    r"(?P<name>jax|torch[-_.]xla)\s*\[(?P<extras>(?:[^\]]*,)?\s*tpu\s*(?:,[^\]]*)?)\]|libtpu\b|(?:-f|--find-links)\b.*libtpu",
    re.I,
)
WORKER_ROOT = "~/tpujob/envs"
VM_PYTHON = "3.10"  # the images of TPU VMs are Ubuntu 22.04
# What a TPU VM needs for a `train:` job (torch is not among torch_xla's own requirements). Both are on PyPI.
TRAIN_REQUIREMENTS = ("torch==2.9.0", "torch_xla[tpu]==2.9.0", "numpy>=1.26")
TORCH_TPU_REQUIREMENTS = ("torch>=2.11,<=2.15", "torch_tpu==0.2.0", "numpy>=2")
TOO_OLD_FOR_TORCH_TPU = (
    'backend: tpu needs Python 3.11 or newer, and this worker has {version}; write `python: "3.12"`, or use backend xla, '
    "which trains on the same TPU"
)


@dataclass(frozen=True, slots=True)
class Environment:
    """What was asked for. `requirements` and `constraints` are the text of requirements files, with paths from the working
    directory of the job.
    """

    what: str = ""  # the requirements in words, for the log
    requirements: str = ""
    constraints: str = ""
    needs_pip: bool = False  # the requirements have options that uv does not know
    python: str | None = None  # such as 3.12; None: the worker's own
    least_python: str | None = None
    too_old: str = ""  # what is wrong with an older Python; {version} stands for it
    imports: str = ""  # modules that are imported once, as a check
    base: str | None = None  # the Python to make it of, which may name a variable; None: python3
    code_sha256: str | None = None  # of the code that requirements are installed from
    install_uv: bool = False  # where there is none
    remark: str = ""  # what is said of the requirements, for the log
    root: str = WORKER_ROOT

    def without_tpu(self) -> Environment:
        """Return what can be of it on a machine without a TPU: the same packages without their extra `tpu`, and no libtpu."""
        kept, meant = [], []
        for line in self.requirements.splitlines():
            found = _FOR_TPU.match(line)
            if found is None:
                kept.append(line)
            elif found["name"]:
                extras = ",".join(part for part in found["extras"].split(",") if part.strip() != "tpu")
                without = f"{found['name']}{f'[{extras}]' if extras else ''}"
                kept.append(f"{without}{line[found.end() :]}")
                meant.append(f"{found[0]} means {without}")
        if not meant and len(kept) == len(self.requirements.splitlines()):
            return self
        remark = f"emulated: without a TPU, {', '.join([*meant, 'libtpu is left out'])}"
        return replace(self, requirements="".join(f"{line}\n" for line in kept), remark=remark)

    @property
    def is_asked_for(self) -> bool:
        """Return whether the job asks for an environment at all."""
        return bool(self.what or self.python)

    @property
    def name(self) -> str:
        """Return the name of its directory."""
        asked = (self.requirements, self.constraints, self.python, self.base, self.code_sha256)
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def directory(self) -> str:
        """Return the path of its directory, quoted for bash."""
        if self.root.startswith("~/"):
            return f'"$HOME"/{shlex.quote(self.root[2:])}/{self.name}'
        return f"{shlex.quote(self.root)}/{self.name}"

    def setup(self, agent: str) -> str:
        """Return the script that makes it on a worker. `agent`: the command of the verb `environment`."""
        request = json.dumps(asdict(self) | {"name": self.name})
        end = f"END-OF-REQUEST-{self.name}"
        return f"set -e\n( {agent} ) <<'{end}'\n{request}\n{end}\n"

    def use_if_made(self, script: str) -> str:
        """Return the script with `python` and `pip` of the environment first in PATH, where there is one."""
        return f"""if [ -d {self.directory} ]; then
export VIRTUAL_ENV={self.directory}
export PATH="$VIRTUAL_ENV/bin:$PATH"
fi
{script}"""

    def use(self, script: str) -> str:
        """Return the script with `python` and `pip` of the environment first in PATH; it is not deleted meanwhile."""
        return f"""export VIRTUAL_ENV={self.directory}
export PATH="$VIRTUAL_ENV/bin:$PATH"
if command -v flock >/dev/null; then exec 9<"$VIRTUAL_ENV.lock"; flock -s 9; fi
{script}"""


def of_training(backend: str, own: Environment) -> Environment:
    """Return the environment of a `train:` job on a TPU VM: the packages of the backend and those of the job's own.

    TorchTPU needs a newer torch than torch_xla, so it has an environment of its own.
    """
    is_torch_tpu = backend == "tpu"
    packages: Sequence[str] = TORCH_TPU_REQUIREMENTS if is_torch_tpu else TRAIN_REQUIREMENTS
    module = "torch_tpu" if is_torch_tpu else "torch_xla"
    return Environment(
        what=f"{module} and {own.what}" if own.what else f"torch and {module}",
        requirements="".join(f"{package}\n" for package in packages) + own.requirements,
        constraints=own.constraints,
        needs_pip=own.needs_pip,
        python=own.python,
        least_python="3.11" if is_torch_tpu else None,
        too_old=TOO_OLD_FOR_TORCH_TPU if is_torch_tpu else "",
        imports=f"torch, {module}",
        code_sha256=own.code_sha256,
        install_uv=own.install_uv,
    )
