"""The life of slices on a person's own project, with the real commands: created, used, deleted, proven absent, in some minutes.

Each step is a `tpujob` command in a process of its own, with the ledger of the person: whatever happens to this process, the
guardian and the watchdog keep their promises. What another machine would see is asked from a state directory without a ledger.
Every call to the API goes to a transcript (`places.google.transcript`), which also says which slices these commands asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.drill.commands import Calls, Done, Running, id_of
from orchestrator.errors import NOT_PROVEN, AuthError, CloudError, Interrupted, UserError
from orchestrator.text.units import format_duration

MOST_USD, MOST_S = 2.0, 1200.0
CLEAN_S = 180.0  # of these for the deletes at the end; what they take beyond is the cloud's
PROOF_S = 660.0  # for a delete at the end: `down` gives up after 10 minutes
LABELS_S = 120.0  # until a change of labels shows
LOOK_S, GLANCE_S = 2.0, 0.1
TRIES, AGAIN_S = 4, 20.0  # a quota is free again some time after a delete
NEEDS_S = {"watchdog": 420.0, "queue": 120.0}  # with less time left such a step is not begun
STEPS = ("job", "ssh", "gc", "watchdog", "queue")
JOB = """\
name: {name}
tpu: {{accelerator: {accelerator}, zone: [{zones}], spot: {spot}, queue: {queue}}}
train:
  model: mlp
  dataset: synthetic
  epochs: 1
  batch_size: 64
  backend: xla
  examples: 1280
  emulated: {{cores: 1, examples: 1280, epochs: 1}}
limits: {{max_duration: 15m, max_cost: {most}}}
"""
NEVER_NAMED = "was ever named"  # what `down` says of a name that no ledger has


class StepFailed(Exception):
    """A step did not go as it should; the message says how."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Where it is played. `usd_per_hour`: of one slice."""

    accelerator: str
    zones: tuple[str, ...]
    usd_per_hour: float
    spot: bool = False

    @property
    def most_usd(self) -> float:
        """Return what it costs at most: one slice at a time, for as long as it may take."""
        return most_usd(self.usd_per_hour)


def most_usd(usd_per_hour: float) -> float:
    """Return what a slice of this price costs at most."""
    return usd_per_hour * MOST_S / 3600


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was played. `what`: what was seen, or why it failed."""

    name: str
    ok: bool
    seconds: float
    what: str


@dataclass(slots=True)
class Smoke:
    """One smoke test, with its files in `directory`; `other` is the state directory of another machine, as it were.

    `end_claim` writes labels on a slice, by node and zone, that say that its claim is over. `signals` gets each signal that
    arrives: nothing is interrupted but by a look at it. `transcript` is what TPUJOB_TRANSCRIPT names. `steps_s` is for all
    steps; one is not begun with less time left than `needs_s`.
    """

    wish: Wish
    directory: Path
    other: Path
    end_claim: Callable[[str, str], None]
    on_step: Callable[[Step], None]
    on_progress: Callable[[str], None]
    on_stop: Callable[[], None]
    signals: Sequence[int] = ()
    steps_s: float = MOST_S - CLEAN_S
    needs_s: Mapping[str, float] = field(default_factory=NEEDS_S.copy)
    name: str = field(default_factory=lambda: f"smoke-{secrets.token_hex(3)}")
    steps: list[Step] = field(default_factory=list)
    _ends_at: float = 0.0
    _zone: str = ""  # in which the job got its slice
    _open: list[str] = field(default_factory=list)  # names of slices that are not proven absent
    _nodes: set[str] = field(default_factory=set)  # every one that was seen
    _cleans: bool = False

    @property
    def transcript(self) -> Path:
        return self.directory / "transcript.jsonl"

    @property
    def _calls(self) -> Calls:
        return Calls(self.transcript)

    @property
    def ok(self) -> bool:
        """Whether every step went as it should."""
        return all(step.ok for step in self.steps)

    def play(self, steps: Sequence[str] = STEPS) -> None:
        """Play the steps until one fails, then delete what is left and look from elsewhere: the last step is always `left`.

        Raises Interrupted after that, if a signal came before it.
        """
        self._ends_at = time.monotonic() + self.steps_s
        interrupted: Interrupted | None = None
        try:
            for name in steps:
                if not self._played(name, partial(self._in_time, name)):
                    break
        except Interrupted as error:
            interrupted = error
        self._ends_at, self._cleans = time.monotonic() + PROOF_S, True
        self._played("left", self._left)
        if interrupted is not None:
            raise interrupted

    def _played(self, name: str, step: Callable[[], str]) -> bool:
        began = time.monotonic()
        try:
            ok, what = True, step()
        except Interrupted:
            raise
        except StepFailed as error:
            ok, what = False, str(error)
        except Exception as error:  # a full disk, a process that cannot start: what there is is deleted all the same
            ok, what = False, f"{type(error).__name__}: {error}"
        self.steps.append(Step(name, ok, time.monotonic() - began, what))
        with contextlib.suppress(OSError), self.transcript.open("a") as file:
            file.write(json.dumps({"at": round(time.time(), 3), "step": name, "ok": ok}) + "\n")
        self.on_step(self.steps[-1])
        return ok

    def _in_time(self, name: str) -> str:
        if self._left_s < self.needs_s.get(name, 0.0):
            raise StepFailed(f"not played: of the {format_duration(MOST_S)} too little is left for it")
        said: str = getattr(self, f"_{name}")()
        return said

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _job(self) -> str:
        """A slice is created, READY, reached, and trains with torch_xla; its results come home, and it is kept."""
        self._expect_no_others(*self.wish.zones)
        name = f"{self.name}-job"
        self._open.append(name)
        self._command("run", self._job_file(name, self.wish.zones), "--keep", "10m", "--json")
        row = self._row(name)
        self._zone = row["zone"]
        shown = self._json("show", row["run"])
        loss = (shown.get("metrics") or {}).get("loss")
        if loss is None:
            raise StepFailed("the training ended, and its metrics did not come home")
        return f"{row['node']} in {row['zone']} was READY, trained to a loss of {loss:.3g}, and its results are here"

    def _ssh(self) -> str:
        done = self._command("ssh", f"{self.name}-job", "--", "uname", "-sr")
        return f"its VM answers: {done.out.strip()}"

    def _gc(self) -> str:
        """`gc` without the ledger leaves the slice while it has a claim, and deletes it once it has none."""
        name = f"{self.name}-job"
        row = self._row(name)
        node, zone = row["node"], row["zone"]
        if node not in _nodes(self._expect_no_others(zone)["claimed"]):
            raise StepFailed(f"`gc` without the ledger does not see the claim on {node}")
        self.end_claim(node, zone)
        before, shows_by = self._calls.deletes(node), time.monotonic() + min(LABELS_S, self._left_s)
        while node in _nodes((found := self._elsewhere(zone))["claimed"]) and time.monotonic() < shows_by:
            self._pause(LOOK_S)
        gone = [row["node"] for row in found["ended"] if row["gone"]]
        deleted = self._calls.deletes(node) > before
        self._prove(name)
        if gone != [node] or not deleted:
            raise StepFailed(
                f"`gc` from another directory did not delete {node} once its claim was over, or was not the first"
            )
        return f"from another directory, `gc` left {node} while it had a claim, then deleted it"

    def _watchdog(self) -> str:
        """A slice that is not used is ended by its VM: no command here deletes it."""
        name, wish = f"{self.name}-watchdog", self.wish
        where = ("--accelerator", wish.accelerator, "--zone", self._zone or ",".join(wish.zones))
        self._open.append(name)
        made = self._up(name, *where, *(["--spot"] if wish.spot else []), "--ttl", "10m", "--idle", "1m")
        node, zone = made["node"], made["zone"]
        self._nodes.add(node)
        what = f"waiting until the watchdog of {node} deletes it"
        self._until(lambda: node not in self._all_there(zone), what, every_s=LOOK_S)
        if self._calls.deletes(node):
            raise StepFailed(f"{node} was deleted from here, and not by its watchdog")
        self._prove(name)
        return f"after a minute without use, the VM of {node} deleted it"

    def _queue(self) -> str:
        """A request that waits in the cloud's queue is cancelled by Ctrl-C."""
        name, before = f"{self.name}-queue", self._calls.made()
        job = self._job_file(name, (self._zone or self.wish.zones[0],), queue=True)
        self._open.append(name)

        def asked() -> tuple[Done, set[str]]:
            with self._started("run", job, "--json") as command:
                self._until(
                    lambda: command.has_ended or self._calls.queued(self._calls.made() - before),
                    "waiting until the request is in the queue",
                    every_s=GLANCE_S,
                )
                command.stop()
            return command.wait(GLANCE_S), self._calls.queued(self._calls.made() - before)

        done, seen = asked()
        for _ in range(TRIES - 1):
            if seen or done.code != CloudError.exit_code:
                break
            self._pause(AGAIN_S)
            done, seen = asked()
        if not seen or done.code != 128 + signal.SIGINT:
            raise StepFailed(f"`tpujob run` with `queue: true` ended with {done.code}: {done.last}")
        self._prove(name)
        return f"request {min(seen)} was in the queue, and Ctrl-C has cancelled it"

    def _left(self) -> str:
        """Delete what a step has left, and see from another directory that nothing that was asked for is there any more."""
        problems = []
        for name in list(self._open):
            try:
                self._prove(name)
            except Exception as error:  # the others, too
                problems.append(str(error))
        if problems:
            raise StepFailed("; ".join(problems))
        asked_for = self._calls.made() | set(map(id_of, self._nodes))
        if not asked_for:
            return "nothing was asked for"
        there = self._all_there(*sorted(self._calls.zones() or self.wish.zones))
        if left := {node for node in there if id_of(node) in asked_for}:
            raise StepFailed(f"still there: {', '.join(sorted(left))}; see `tpujob status`")
        return f"nothing of {self.name} is there any more: the ledger and another directory agree"

    # -- what they are made of -----------------------------------------------------------------------------------------

    def _job_file(self, name: str, zones: Sequence[str], *, queue: bool = False) -> str:
        """Write the file of a job, and return its path."""
        given = {"name": name, "accelerator": self.wish.accelerator, "zones": ", ".join(zones)}
        flags = {"spot": str(self.wish.spot).lower(), "queue": str(queue).lower()}
        path = self.directory / f"{name}.yaml"
        most = round(self.wish.most_usd, 2) or MOST_USD  # what is granted costs nothing, and a limit is more than that
        path.write_text(JOB.format(**given, **flags, most=most))
        return str(path)

    def _up(self, name: str, *words: str) -> Any:
        """Create a held slice. Capacity and quota of the slice before come back some time after its delete."""
        words = ("up", name, *words, "--json")
        for _ in range(TRIES - 1):
            done = self._command(*words, codes=(0, CloudError.exit_code))
            if done.code == 0:
                return json.loads(done.out)
            self._pause(AGAIN_S)
        return json.loads(self._command(*words).out)

    def _prove(self, name: str) -> None:
        """Have a slice proven absent. A name that no ledger knows was never asked for. Raises StepFailed."""
        done = self._command("down", name, "--json", codes=(0, UserError.exit_code))
        if done.code and NEVER_NAMED not in done.err:
            raise StepFailed(f"`tpujob down {name}` ended with {done.code}: {done.last}")
        self._open.remove(name)

    def _row(self, name: str) -> dict[str, Any]:
        # Of another project it may not know everything: that is no matter here.
        found = json.loads(self._command("status", "--json", codes=(0, NOT_PROVEN, AuthError.exit_code)).out)
        rows: list[dict[str, Any]] = [row for row in found["slices"] if row["name"] == name]
        if not rows:
            raise StepFailed(f"`tpujob status` does not list {name}")
        self._nodes.add(rows[0]["node"])
        return rows[0]

    def _expect_no_others(self, *zones: str) -> Any:
        """Return what `gc` would find. Raises StepFailed if it would delete slices that are not of this test."""
        found = self._elsewhere("--dry-run", *zones)
        if others := ", ".join(sorted(_nodes(found["ended"]))):
            raise StepFailed(f"the claim on {others} is over, which is not of this test: `tpujob gc` first, then again")
        return found

    def _elsewhere(self, *words: str) -> Any:
        """Return what `gc` finds without a ledger. Raises StepFailed unless the API answers for every zone."""
        options = (word if word.startswith("--") else f"--zone={word}" for word in words)
        done = self._command("gc", *options, "--json", state=self.other, codes=(0, NOT_PROVEN))
        found = json.loads(done.out)
        if found["incomplete"]:
            raise StepFailed(f"the API does not answer for every zone: {found['incomplete']}")
        return found

    def _all_there(self, *zones: str) -> set[str]:
        seen = self._elsewhere("--dry-run", *zones)
        return set().union(*(_nodes(seen[kind]) for kind in ("ended", "claimed", "doubtful")))

    def _until(self, condition: Callable[[], object], what: str, *, every_s: float) -> None:
        self.on_progress(what)
        while not condition():
            if self._left_s <= 0:
                raise StepFailed(f"{what}: no time is left for it")
            self._pause(every_s)

    def _pause(self, seconds: float) -> None:
        """Wait. Raises Interrupted at a signal, unless what is left is being deleted."""
        until = time.monotonic() + seconds
        while True:
            if self.signals and not self._cleans:
                self.on_stop()  # before the command that runs is stopped, which takes a while
                raise Interrupted(self.signals[0])
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(GLANCE_S, left_s))

    @property
    def _left_s(self) -> float:
        return max(self._ends_at - time.monotonic(), 0.0)

    def _json(self, *words: str) -> Any:
        return json.loads(self._command(*words, "--json").out)

    def _command(self, *words: str, state: Path | None = None, codes: Sequence[int] = (0,)) -> Done:
        """Run a command to its end. Raises StepFailed for another exit code, or when the time is over; Interrupted."""
        said = f"tpujob {' '.join(word for word in words if not word.startswith('--zone='))}"
        self.on_progress(said)
        self._pause(0.0)
        with self._started(*words, state=state) as command:
            while not command.has_ended:
                if self._left_s <= 0:
                    raise StepFailed(f"`tpujob {words[0]}` has not ended, and no time is left for it")
                self._pause(GLANCE_S)
            done = command.wait(GLANCE_S)
        if done.code not in codes:
            raise StepFailed(f"`{said}` ended with {done.code}: {done.last}")
        return done

    @contextlib.contextmanager
    def _started(self, *words: str, state: Path | None = None) -> Iterator[Running]:
        """Start a command. If it is not waited for to its end, it ends as after Ctrl-C."""
        environ = os.environ | ({} if state is None else {"TPUJOB_STATE_DIR": str(state)})
        number = len(list(self.directory.glob("*.out"))) + 1
        command = Running.start(words, self.directory / f"{number:03}-{words[0]}", environ)
        try:
            yield command
        finally:
            command.stop()


def _nodes(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {row["node"] for row in rows}
