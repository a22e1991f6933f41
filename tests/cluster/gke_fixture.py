"""The real CLI on the real control plane: with a state directory, a namespace and a way to the API server of a test's own."""

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_tpu_emulator.daemon import control
from tests import ROOT
from tests.cli_fixture import Cli, Command, Said, kill_all, sandbox
from tests.cluster.fixture import Cluster, Started
from tests.cluster.jobsets import IMAGE

OURS = "tpujob=1"
KINDS = ("jobsets", "jobs", "pods", "configmaps", "secrets")
WATCHES = "billed until the cluster deletes"  # what a command says of its nodes, once its JobSet is gone
HOLD = "echo begun\nwhile [ ! -e /tpujob/run/go ]; do sleep 0.1; done\n"  # until `let_go`
# The pods of a job meet at its coordinator, as in JAX: none ends before all have found it. In Python.
MEET = """
import os, socket, time
where, others = os.environ["TPUJOB_COORDINATOR"].rsplit(":", 1), int(os.environ["TPUJOB_WORKERS"]) - 1
if os.environ["TPUJOB_WORKER"] == "0":
    with socket.create_server((where[0], int(where[1]))) as server:
        [server.accept() for _ in range(others)]
else:
    while socket.socket().connect_ex((where[0], int(where[1]))):
        time.sleep(0.1)
"""
TYPES = {1: "v5p-8", 2: "v5p-16"}  # by pods, of which each asks for 4 chips
WITH_IDS = (  # a `tpujob` that finds these ids instead of random ones
    "import sys; from orchestrator.cli import main; from orchestrator.text import names; "
    "ids = iter(sys.argv.pop(1).split()); names.new_run_id = lambda bits: next(ids); main.main()"
)


@dataclass
class Gke(Cli):
    """`tpujob` in a directory of its own. `way`: the same cluster, by the network that its commands go through."""

    cluster: Cluster = field(kw_only=True)
    way: Cluster = field(kw_only=True)
    space: str = field(kw_only=True)

    def __call__(self, *words: str, env: dict[str, str] | None = None, timeout_s: float | None = None) -> Said:
        """Run a command to its end. Nodes that it watches go at once."""
        return self.end(self.begin(*words, env=env))

    def end(self, command: Command) -> Said:
        command.until_true(lambda: WATCHES in command.err or command.ended, "the end of the command")
        self.cluster.supply(self.space, idle_s=0)
        return command.end()

    def write(self, command: str, *, name: str = "job", pods: int = 1, queue: str | None = "tpu", **keys: Any) -> str:
        """Write a job file, and return its name. `keys`: of the job; those of `tpu` and `gke` are added to the usual ones."""
        gke = {"image": IMAGE, "namespace": self.space, "queue": queue, **keys.pop("gke", {})}
        tpu = {"accelerator": TYPES[pods], "wait": "10m", **keys.pop("tpu", {})}
        job = {"name": name, "on": "gke", "gke": gke, "tpu": tpu, "limits": {"max_duration": "10m"}, **keys}
        return self.job(yaml.safe_dump({**job, **({"command": command} if command else {})}), f"{name}.yaml")

    def run(self, command: str, *words: str, env: dict[str, str] | None = None, **keys: Any) -> Said:
        """Run a job to its end; `keys` as for `write`."""
        return self("run", self.write(command, **keys), *words, env=env)

    def running(self, command: str, *words: str, env: dict[str, str] | None = None, **keys: Any) -> Command:
        """Begin to run a job that says `begun`, and return once all its pods have."""
        begun = self.begin("run", self.write(command, **keys), *words, env=env)
        for worker in range(keys.get("pods", 1)):
            begun.until(f"worker{worker} | begun")
        return begun

    def submit(self, command: str, env: dict[str, str] | None = None, **keys: Any) -> str:
        """Submit a job without a process that collects, and return its run."""
        done = self("submit", self.write(command, **keys), env={"TPUJOB_COLLECTOR": "off", **(env or {})})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def change(self, code: str) -> None:
        """Let this Python change the next commands, such as periods that are long."""
        self.program = (self.program[0], "-c", f"{code}; from orchestrator.cli import main; main.main()")

    def with_ids(self, run: str, lease: str) -> Cli:
        """Return a `tpujob` whose next run and lease have these ids."""
        return Cli(self.directory, self.env, (sys.executable, "-c", WITH_IDS, f"{run} {lease}"))

    def other(self) -> Cli:
        """Return `tpujob` on another machine of the same user, whose settings name the namespace."""
        there = self.directory / "other"
        config = there / "config/tpujob/settings.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(f"gke: {{namespace: {self.space}}}\n")
        mine = {"TPUJOB_STATE_DIR": str(there / "state"), "XDG_CONFIG_HOME": str(there / "config")}
        return Cli(there, {**self.env, **mine}, self.program)

    def storage(self) -> dict[str, str]:
        """Start an emulator of Cloud Storage, and return the variables that lead to it."""
        return {"STORAGE_EMULATOR_HOST": control.ensure_running(self.emulator_directory).url}

    def let_go(self) -> None:
        """Let the jobs end that `HOLD` and have begun."""
        for pod in self.pods():
            place = self.cluster.directory / "pods" / pod["metadata"]["uid"] / "volumes" / "run"
            if place.is_dir():
                (place / "go").touch()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the namespace, ordered by name."""
        return self.cluster.rows("pods", self.space)

    def jobsets(self) -> list[dict[str, Any]]:
        return self.cluster.rows("jobsets", self.space)

    def left(self) -> list[str]:
        """Return what there is of tpujob in the namespace."""
        found = ((kind, each) for kind in KINDS for each in self.cluster.rows(kind, self.space, OURS))
        return [f"{kind}/{each['metadata']['name']}" for kind, each in found]

    def directory_of_run(self) -> Path:
        (only,) = (self.directory / "runs").iterdir()
        return only


@pytest.fixture
def gke(shared_cluster: Started, cluster: Cluster, tmp_path: Path) -> Iterator[Gke]:
    directory, of_way = tmp_path / "cli", tmp_path / "way"
    directory.mkdir()
    of_way.mkdir()
    way = shared_cluster.for_one_test(of_way)
    env = {**sandbox(directory), "KUBECONFIG": str(way.kubeconfig), "PATH": os.environ["PATH"]}
    started = Gke(directory, env, cluster=cluster, way=way, space=cluster.namespace())
    yield started
    kill_all(started.local())
    control.stop(started.emulator_directory)


PAGE = (ROOT / "docs" / "gke.md").read_text(encoding="utf-8")


def block(word: str) -> list[Any]:
    """Return the documents of the only YAML block of the page that has this word."""
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = [each for each in blocks if word in each]
    return list(yaml.safe_load_all(textwrap.dedent(found)))
