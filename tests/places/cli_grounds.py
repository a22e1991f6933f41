"""Grounds with the real command line: this machine, the emulated cloud with SSH, and a control plane."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from cloud_tpu_emulator.daemon import control
from orchestrator.places.gke.traits import TRAITS as OF_GKE
from orchestrator.places.local.traits import TRAITS as OF_LOCAL
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from tests import cli_fixture
from tests.cli_fixture import Cli, Tpujob, kill_all
from tests.cluster.gke_fixture import TYPES, Gke
from tests.cluster.jobsets import IMAGE
from tests.places.ground import BEGUN, Command, GroundWithFiles, Job
from tests.waiting import until

PATCHED = Path(__file__).parents[1] / "faults" / "patched" / "command.py"
SHORT = {
    "orchestrator.job.rules.field_rules:SHORTEST_S": 1.0,
    "orchestrator.job.rules.field_rules:_LIMITS": ("1s", "7d"),
    "orchestrator.promise.obtain.drafts:LEAST_LEFT_S": 1.0,
}
GIVES_UP = {"orchestrator.promise.obligations:RELEASE_S": 1.0}
HOLDS = "example.com/holds-it"  # a finalizer
FILE, KEY = "job.yaml", "PLAYED_SECRET"
WORDS = {
    "run": ("run", FILE),
    "submit": ("submit", FILE),
    "attach": ("attach", "played"),
    "cancel": ("cancel", "played"),
}


@dataclass
class CliCommand(cli_fixture.Command):
    def until_begun(self) -> None:
        self.until(BEGUN)


class CliGround(GroundWithFiles):
    """`keys` are the job file's of this place, and `limit` the shortest that a job has time to end in."""

    keys: Mapping[str, Any]
    limit, usual_limit = "3s", "24h"
    is_quick = False
    at: tuple[str, ...]  # where commands are killed
    _begun = 0

    def __init__(self, cli: Cli) -> None:
        self.cli, self.directory, self.state = cli, cli.directory, cli.own_state
        self.env: dict[str, str] = {}
        self.deaths = len(self.at)

    def job(self, job: Job) -> None:
        self._begun += 1
        self.go = self.path_to_go()
        self.env = {KEY: job.secret, "TPUJOB_COLLECTOR": "off"}
        self.patched = {**(SHORT if job.is_short else {}), **(GIVES_UP if job.gives_up else {})}
        limits = {"max_duration": self.limit if job.is_short else self.usual_limit}
        setup = _script(job.setup) + f"exit {job.setup_code}\n" * (job.setup_code > 0)
        made = {
            "name": "played", "env": {"SECRET": "${env:" + KEY + "}"}, "setup": setup, "command": self._main(job),
            "limits": limits, **self.keys,
        }  # fmt: skip
        self.cli.job(yaml.safe_dump({key: value for key, value in made.items() if value}), FILE)

    def path_to_go(self) -> Path:
        """Return the path of a file for which the next job waits."""
        return self.directory / f"go{self._begun}"

    def _main(self, job: Job) -> str:
        written = [
            f"mkdir -p $(dirname $TPUJOB_ARTIFACTS/{each})\nprintf %s '{text}' >$TPUJOB_ARTIFACTS/{each}\n"
            for each, text in job.files.items()
        ]
        waits = f"until [ -e {self.go} ]; do sleep 0.05; done\n" * (job.waits or job.is_short)
        return f"{''.join(written)}{_script(job.lines)}{waits}exit {job.code}"

    def start(self, verb: str, at: str = "") -> CliCommand:
        program = (sys.executable, str(PATCHED), json.dumps(self.patched)) if self.patched else None
        env = {**self.env, "TPUJOB_CRASH_AT": at}
        begun = self.cli.begin(*WORDS.get(verb, (verb,)), env=env, program=program)
        return CliCommand(begun.process, begun.files)

    def play(self, verb: str) -> tuple[int, str]:
        if self.patched:
            return super().play(verb)
        done = self.cli(*WORDS.get(verb, (verb,)), env=self.env)
        return done.returncode, done.text

    def points(self) -> Iterator[str]:
        return iter(self.at)

    def let_go(self) -> None:
        self.go.touch()

    def power_cut(self, command: Command) -> None:
        while found := self.cli.local():  # a process that was just being started is there only now
            kill_all(found)


class Here(CliGround):
    """This machine."""

    place, traits = "local", OF_LOCAL
    keys = MappingProxyType({"on": "local"})
    at = ("StartPhase:1:after", "WaitForWorkers:1:before", "StartCollection:1:after")

    def left(self) -> list[str]:
        return [str(each.pid) for each in self.cli.local("orchestrator.vm")]

    def holding(self, secret: str) -> list[Path]:
        here = self.state / "local"  # the job's own disk, which has what it prints
        return [path for path in super().holding(secret) if here not in path.parents]

    def power_cut(self, command: Command) -> None:
        command.kill()  # what is left is the place

    def delete_slowly(self, *, never: bool = False) -> None:
        raise AssertionError("nothing is deleted here")

    delete_again = delete_slowly

    def until_it_ends_by_itself(self) -> None:
        until(lambda: not self.left(), "the end of the job")


class Emulated(CliGround):
    """The Cloud TPU API of the emulator, whose workers are reached by SSH."""

    place, traits = "tpu", OF_TPU
    keys = MappingProxyType({"tpu": {"zone": "us-central1-a"}})
    limit = (
        "45s"  # of which the last tenth is kept free to collect, which takes more than 2 s on a machine that is busy
    )
    at = (
        "Record:2:after",
        "Create:1:after",
        "StartPhase:1:before",
        "StartPhase:1:after",
        "StartCollection:1:before",
        "Delete:1:after",
    )
    cli: Tpujob

    def job(self, job: Job) -> None:
        super().job(job)
        self.env["TPUJOB_EMULATED_SPEED"] = "30"  # its watchdog waits for half a minute

    def left(self) -> list[str]:
        return self.cli.alive()

    def delete_slowly(self, *, never: bool = False) -> None:
        if never:
            self.cli.fault("status", "nodes.delete", status=503)
        else:
            self.cli.settings(delete_s=2.0)

    def delete_again(self) -> None:
        self.cli.admin("DELETE", "faults")

    def until_it_ends_by_itself(self) -> None:
        until(lambda: not self.left(), "the watchdog")

    def published(self) -> str:
        nodes = "/v2/projects/emulated/locations/us-central1-a/nodes"
        return json.dumps(control.request(self.cli.emulator.endpoint, "GET", nodes)) + json.dumps(self.cli.requests())


@dataclass
class GkeCommand(CliCommand):
    cli: Gke = field(kw_only=True)

    def code(self) -> int:
        return self.cli.end(self).returncode


class ControlPlane(CliGround):
    """A real control plane, with nodes that are emulated."""

    place, traits = "gke", OF_GKE
    limit, usual_limit = "20s", "2m"
    at = ("WaitForWorkers:1:before", "StartCollection:1:before")  # before READY, a proof takes minutes
    cli: Gke

    def __init__(self, cli: Gke) -> None:
        super().__init__(cli)
        gke = {"image": IMAGE, "namespace": cli.space, "queue": "tpu"}
        tpu = {"accelerator": TYPES[1], "wait": "10m"}
        self.keys = {"on": "gke", "gke": gke, "tpu": tpu}

    def path_to_go(self) -> Path:
        return Path("/tpujob/run/go")

    def start(self, verb: str, at: str = "") -> GkeCommand:
        begun = super().start(verb, at)
        return GkeCommand(begun.process, begun.files, cli=self.cli)

    def play(self, verb: str) -> tuple[int, str]:
        return GroundWithFiles.play(self, verb)

    def left(self) -> list[str]:
        return self.cli.left()

    def delete_slowly(self, *, never: bool = False) -> None:
        (self._held,) = (each["metadata"]["name"] for each in self.cli.jobsets())
        self._finalizers([HOLDS])
        if not never:
            threading.Thread(target=self._free_once_it_is_deleted, daemon=True).start()

    def delete_again(self) -> None:
        self._finalizers([])

    def _free_once_it_is_deleted(self) -> None:
        until(lambda: "deletionTimestamp" in self.cli.jobsets()[0]["metadata"], "its delete")
        self._finalizers([])

    def _finalizers(self, names: list[str]) -> None:
        patch = json.dumps({"metadata": {"finalizers": names}})
        self.cli.cluster.kubectl("patch", "jobset", self._held, "-n", self.cli.space, "--type=merge", "-p", patch)

    def let_go(self) -> None:
        self.cli.let_go()

    def until_it_ends_by_itself(self) -> None:
        self.cli.cluster.supply(self.cli.space, idle_s=0)
        until(lambda: not self.cli.cluster.nodes(self.cli.space), "the end of the bill")

    def published(self) -> str:
        return json.dumps(self.cli.cluster.get("jobsets,jobs,pods,configmaps", "-n", self.cli.space))


def _script(lines: tuple[str, ...]) -> str:
    return "".join(f'echo "{line}"\n' for line in lines)
