"""The bash scripts of a job on every worker: its phases, and its virtual environment, what is in it and its name. Pure.

The working directory is the attempt's `work/`, into which the code was unpacked.

The name of an environment is a hash of everything that was asked for, so a worker that has one of that name has what the job
needs. `vm.environment.virtualenv` makes it. Scripts are shipped as files, never passed to a shell.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

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
    return f"""export PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONUNBUFFERED=1
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


def with_jax_cache(main: str, fetch: str, send: str) -> str:
    """Return the script between two commands that copy what JAX has compiled, and whose end does not matter."""
    end = f"END-OF-CACHED-{hashlib.sha256(main.encode()).hexdigest()[:12]}"
    return f"""( {fetch} ) || true
cat >"$0.cached" <<'{end}'
{main}
{end}
bash -- "$0.cached"
rc=$?
( {send} ) || true
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
    uses_code: bool = False  # requirements are installed from the job's code
    code_sha256: str | None = None  # of that code
    lock: str = (
        ""  # what was chosen for the requirements and constraints before anything was created: versions and hashes
    )
    lock_python: str | None = None  # the Python that it was chosen for
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
        asked = (self.requirements, self.constraints, self.python, self.base, self.code_sha256, self.lock)
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


def compiles_by_itself(backend: str) -> bool:
    """Return whether a training with this backend uses torch_tpu, which lowers its programs without torch_xla."""
    return backend == "tpu"


def of_training(backend: str, own: Environment) -> Environment:
    """Return the environment of a `train:` job on a TPU VM: the packages of the backend and those of the job's own.

    TorchTPU needs a newer torch than torch_xla, so it has an environment of its own.
    """
    is_torch_tpu = compiles_by_itself(backend)
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
        uses_code=own.uses_code,
        code_sha256=own.code_sha256,
        install_uv=own.install_uv,
    )
