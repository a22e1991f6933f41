"""`python -m tests.mutation`: try every mutant, or a sample, and list those that survive without a reason."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.mutation import trial
from tests.mutation.accepted import accepted
from tests.mutation.fitting import IN_COPY, IN_OTHER_PROCESSES, LEFT_OUT, UNIT, WORLDS, Fitting, file_of
from tests.mutation.mutants import Mutant, mutants_of, path_of
from tests.mutation.trial import Outcome, Trials

READERS = (
    "orchestrator.places.tpu.api.replies",
    "orchestrator.places.tpu.api.calls",
    "orchestrator.places.google.error_translation",
    "orchestrator.places.gke.api.views",
    "orchestrator.places.gke.api.client",
)


def rooms() -> dict[str, tuple[str, ...]]:
    """Return the modules of each room that is tried."""
    files = sorted((ROOT / "orchestrator" / "promise").rglob("*.py"))
    named = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.stem != "__init__")
    return {"promise": tuple(named), "readers": READERS}


class Known:
    """The outcomes of earlier runs: one JSON object in each line of a file, which several processes append to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["id"]: row for row in map(json.loads, lines)}

    def outcome(self, mutant: Mutant, tests: list[str], fitting: Fitting) -> str | None:
        row = self.rows.get(identity(mutant))
        if row is None:
            return None
        outcome = str(row["outcome"])
        return outcome if row["tests"] == self._decided(mutant, outcome, tests, fitting) else None

    def _decided(self, mutant: Mutant, outcome: str, tests: list[str], fitting: Fitting) -> str:
        return fitting.digest_of(outcome, [*tests, *IN_OTHER_PROCESSES.get(mutant.module, ())])

    def add(self, mutant: Mutant, outcome: str, tests: list[str], fitting: Fitting) -> None:
        decided = self._decided(mutant, outcome, tests, fitting)
        row = {"id": identity(mutant), "key": mutant.key, "outcome": outcome, "tests": decided}
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def identity(mutant: Mutant) -> str:
    """Return a hash of the mutant and of the text around its line."""
    lines = path_of(mutant.module).read_text(encoding="utf-8").splitlines()
    around = "\n".join(lines[max(0, mutant.line - 3) : mutant.end_line + 2])
    return hashlib.sha256(f"{mutant.key}\n{around}".encode()).hexdigest()[:20]


def kind_of(mutant: Mutant, outcome: str | None) -> str:
    if outcome is None and mutant.key not in accepted():
        return "not tried"
    outcome = outcome or "survived"
    if outcome.startswith(f"{IN_COPY}killed "):
        return "killed in a copy"
    outcome = outcome.removeprefix(IN_COPY)
    if outcome.startswith("killed "):
        return "killed by worlds" if file_of(outcome.partition(" ")[2]) in WORLDS else "killed by unit tests"
    if outcome.startswith("timeout"):
        return "timed out"
    if outcome == "died":
        return "ended its process"
    reason = accepted().get(mutant.key)
    return "survives" if reason is None else "open" if reason.startswith("open") else "listed"


class Run:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        chosen = rooms()
        self.watched = [module for modules in chosen.values() for module in modules]
        modules = [module for room, each in chosen.items() if room in options.room for module in each]
        modules = [module for module in modules if re.search(options.only, module)]
        self.mutants = [mutant for module in modules for mutant in mutants_of(module)]
        if options.sample:
            self.mutants = random.Random(options.seed).sample(self.mutants, min(options.sample, len(self.mutants)))
        self.known = Known(options.progress)
        self.kept_in = options.progress.parent / "mutation"
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        self.code = 1

    def work(self, session: pytest.Session, outcome: Outcome) -> None:
        session.items[:] = [item for item in session.items if self.fits(item)]
        fitting = Fitting(session, self.watched, self.kept_in)
        trials = Trials(fitting.items, outcome)
        missing = fitting.missing()
        if missing:
            print(f"{len(missing)} test files are played to see which lines they come past", file=self.out)
            self.share(missing, lambda file: trials.learn(fitting.learn, file))
        fitting.read()
        for test in fitting.failing():
            print(f"left out, it fails under a trace: {test}", file=self.out)
        tests = {mutant: fitting.tests_of(mutant) for mutant in self.mutants}
        todo = [mutant for mutant in self.mutants if self.known.outcome(mutant, tests[mutant], fitting) is None]
        todo.sort(key=lambda mutant: mutant.key in accepted())  # those of which it is known last
        print(f"{len(self.mutants)} mutants, {len(todo)} to try", file=self.out)
        killers: dict[str, list[str]] = {}  # by module, the last first: they kill the next one, too

        def try_one(mutant: Mutant) -> None:
            mine, first = tests[mutant], killers.setdefault(mutant.module, [])
            ordered = sorted(mine, key=lambda test: (file_of(test) in WORLDS, test not in first[:20]))
            result = trials.outcome_of(mutant, ordered)
            if kind_of(mutant, result) in ("survives", "open") and (others := IN_OTHER_PROCESSES.get(mutant.module)):
                in_copy = trial.in_copy(mutant, others)
                result = in_copy if in_copy == "survived" else f"{IN_COPY}{in_copy}"
            self.known.add(mutant, result, mine, fitting)
            if result.startswith("killed"):
                first.insert(0, result.partition(" ")[2])
            if self.options.verbose:
                print(f"{result:9} {len(mine):4} {mutant.line:4} {mutant.key}", file=self.out)

        self.share(todo, try_one)
        self.report(fitting, tests)

    def fits(self, item: pytest.Item) -> bool:
        if self.options.unit and file_of(item.nodeid) in WORLDS:
            return False
        return not LEFT_OUT.search(item.nodeid) and not item.get_closest_marker("exhaustive")

    def share(self, todo: list[Any], do: Any) -> None:
        """Do the work in several processes: each takes the next piece."""
        gc.collect()
        gc.freeze()  # no collection in a fork copies what all of them share
        take, give = os.pipe()
        os.set_blocking(give, False)
        workers = []
        for _ in range(self.options.jobs):
            self.out.flush()
            pid = os.fork()
            if pid:
                workers.append(pid)
                continue
            try:
                os.close(give)
                trial.end_with_parent()
                trial.adopt_orphans()
                while piece := os.read(take, 4):
                    do(todo[int.from_bytes(piece, "big")])
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=self.out)
                os._exit(1)
            finally:
                os._exit(0)
        os.close(take)
        os.set_blocking(give, True)
        for number in range(len(todo)):
            os.write(give, number.to_bytes(4, "big"))
        os.close(give)
        for pid in workers:
            os.waitpid(pid, 0)

    def report(self, fitting: Fitting, tests: dict[Mutant, list[str]]) -> None:
        known = Known(self.options.progress)
        kinds, by_module = Counter[str](), Counter[str]()
        for mutant in self.mutants:
            kind = kind_of(mutant, known.outcome(mutant, tests[mutant], fitting))
            kinds[kind] += 1
            if kind in ("survives", "open"):
                by_module[mutant.module] += 1
                reached = "" if tests[mutant] else "  (no test comes past it)"
                print(f"{kind} {mutant.line:4} {mutant.key}{reached}", file=self.out)
        for module, count in by_module.items():
            print(f"{count:5} {module}", file=self.out)
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"{len(self.mutants)} mutants: {counts}", file=self.out)
        self.code = 1 if kinds["survives"] or kinds["not tried"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--room", action="append", choices=["promise", "readers"], default=None)
    parser.add_argument("--only", default="", help="only the modules whose names match this expression")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, at random")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86400), help="of the sample; by default the day")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--progress", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--unit", action="store_true", help="only unit tests, no worlds")
    parser.add_argument("--verbose", action="store_true", help="tell the outcome of each mutant")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        trial.alone(json.loads(options.alone.read_text()))
        return 3
    options.room = options.room or ["promise", "readers"]
    options.progress = options.progress.absolute()
    began, run = time.monotonic(), Run(options)
    with tempfile.TemporaryDirectory(prefix="tpujob-mutation-") as basetemp:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)  # what pytest prints
        trial.run_pytest([*UNIT, *WORLDS], run.work, Path(basetemp) / "t")
    print(f"{time.monotonic() - began:.0f} s; seed {options.seed}" if options.sample else "", file=run.out)
    return run.code


if __name__ == "__main__":
    sys.exit(main())
