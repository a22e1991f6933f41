"""The check of one job: play its program, have the TPU compiler judge what it compiles, and say what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

from orchestrator import places
from orchestrator.check import compiler, verdict
from orchestrator.check.play import Dump, Limits, Play, Seen
from orchestrator.check.program import Program, program_of, stage, with_batch
from orchestrator.check.record import FILE
from orchestrator.check.target import Chips, chips_of
from orchestrator.check.verdict import TOO_LARGE, Graph, Verdict
from orchestrator.errors import NotJudged, UserError
from orchestrator.system import private_files, whole_file
from orchestrator.text.scripts import compiles_by_itself
from orchestrator.text.units import format_duration, format_size

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk

STEPS, WITHIN_S = 10, 600.0
MEMORY_SHARE = 0.85  # of what is free when the program starts
LOG_END = 20_000  # bytes of the program's output in which a reason is looked for
TRIES, NEAR = 7, 0.02  # of larger and smaller batches; how near the largest is found
CHECKS, PAGE, LOG = "checks", "check.html", "program.log"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a check is made. `within_s`: for how long the program may run here."""

    steps: int = STEPS
    within_s: float = WITHIN_S


@dataclass(frozen=True, slots=True)
class Check:
    """What a check has found, and where it is kept."""

    found: Verdict
    directory: Path
    shape: Mapping[str, Any]  # as JSON values: check.json
    lines: tuple[tuple[str, str], ...] = field(default=())  # a word and a sentence each


def check(desk: Desk, spec: JobSpec, path: Path, env: Mapping[str, str], wanted: Wanted) -> Check:
    """Check a job: `env` are its variables, resolved. Creates nothing but files of this machine.

    Raises UserError for a job that has no TPU, or that cannot be run; NotJudged where there is nothing to compile for.
    """
    place = places.place_on(spec.on)
    target = place.compiles_for(desk, spec)
    if target is None:
        raise UserError(f"{spec.name} gets a {place.traits.noun}, and no TPU to be checked for", hint="write `on: tpu`")
    chips = chips_of(target.accelerators[0], target.slices)
    if len(target.accelerators) > 1:
        alternatives = f"of {len(target.accelerators)} alternatives, {chips.accelerator} is judged"
        desk.reporter.notice("check", f"{alternatives}; `--accelerator` names another")
    if spec.train is not None and compiles_by_itself(spec.train.backend):
        raise NotJudged("`backend: tpu` is torch_tpu, which compiles by itself: no program of it can be seen here")
    if spec.data:
        desk.reporter.notice("check", "`data:` is not fetched here, so the program does not find it")
    compiler.install(desk.reporter.notice)
    with ExitStack() as stack:
        program = program_of(desk, spec, path, env, target.workers, stack)
        program.resolved.tell(desk.reporter)
        made = Checking(desk, path, env, chips, wanted, stack.enter_context(compiler.TpuCompiler(chips.compiler_name)))
        found, seen, batch = made.of(program)
    key = program.key(chips.accelerator, env)
    directory = directory_of(desk, spec, key)
    lines = tuple(verdict.lines(found, chips.accelerator, made.hbm_bytes, seen, made.versions))
    if batch is not None:
        lines = (*lines, (found.verdict, batch))
    shape = {
        "job": str(spec.name),
        "program": key,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "accelerator": chips.accelerator,
        "topology": chips.topology,
        "devices": chips.devices,
        "hbm_bytes": made.hbm_bytes,
        "compiler": dict(made.versions),
        "verdict": found.verdict,
        "why": [*found.why, *([batch] if batch else [])],
        "notes": list(found.notes),
        "ended": seen.ended,
        "exit_code": seen.exit_code,
        "seconds": round(seen.seconds, 3),
        "steps": max((len(each) for each in seen.steps.values()), default=0),
        "graphs": [each.shape(made.hbm_bytes) for each in found.graphs],
        "recompiled": list(found.recompiled),
    }
    private_files.make_directory(directory)
    whole_file.replace(directory / FILE, json.dumps(shape, indent=1) + "\n")
    whole_file.replace(directory / LOG, made.log)
    for name, text in program.resolved.files.items():
        whole_file.replace(directory / name, text)
    return Check(found, directory, shape, lines)


def directory_of(desk: Desk, spec: JobSpec, key: str) -> Path:
    """Return where the files of a check are, whose program has this key."""
    return desk.runs_directory / CHECKS / f"{spec.name}-{key[:8]}"


def recorded(desk: Desk, spec: JobSpec, path: Path, env: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the check.json of this very program, for the accelerator that the job asks for first; None: it has none.

    Its code is only read where a job of this name was checked at all. Raises UserError for a job that cannot be run.
    """
    target = places.place_on(spec.on).compiles_for(desk, spec)
    if target is None or not any((desk.runs_directory / CHECKS).glob(f"{spec.name}-*/{FILE}")):
        return None
    with ExitStack() as stack:
        key = program_of(desk, spec, path, env, target.workers, stack).key(target.accelerators[0], env)
    try:
        found: Mapping[str, Any] = json.loads((directory_of(desk, spec, key) / FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if found.get("program") == key else None


class Checking:
    """Plays programs of one job, and has them judged by one compiler."""

    def __init__(
        self, desk: Desk, path: Path, env: Mapping[str, str], chips: Chips, wanted: Wanted, made: compiler.TpuCompiler
    ) -> None:
        self._desk, self._path, self._env = desk, path, env
        self._chips, self._wanted, self._compiler = chips, wanted, made
        self.log = ""
        self.hbm_bytes: int | None = None
        self.versions: Mapping[str, str] = {}

    def of(self, program: Program) -> tuple[Verdict, Seen, str | None]:
        """Return the verdict on a program, and what would fit instead, in a sentence, where that can be found."""
        found, seen = self._judged(program)
        train = program.spec.train
        if found.verdict != TOO_LARGE or train is None or train.entry is not None:
            return found, seen, None
        return found, seen, self._largest_batch(program, found)

    def _judged(self, program: Program, *, quick: bool = False) -> tuple[Verdict, Seen]:
        """Play a program and judge it. `quick`: only whether it fits, so its second step is the last."""
        asked: list[tuple[Dump, Future[Mapping[str, Any]]]] = []
        limits = Limits(self._wanted.within_s, int(psutil.virtual_memory().available * MEMORY_SHARE))
        steps = 2 if quick else self._wanted.steps
        tell = self._desk.reporter.progress
        with TemporaryDirectory(prefix="tpujob-check-") as made:
            staged = stage(self._desk, program, self._path, self._env, self._chips, steps, Path(made))
            play = Play(staged.crew, staged.directory, limits)
            output = bytearray()

            def on_dump(dump: Dump) -> None:
                asked.append((dump, self._compiler.judge(dump.file, play.world(dump), Path(made).name)))
                tell("check", f"the program runs here; programs for the TPU compiler so far: {len(asked)}")

            def is_too_large() -> bool:
                return any(judged.done() and judged.result()["outcome"] == "too large" for _, judged in asked)

            staged.crew.follow(lambda _worker, piece: output.extend(piece if isinstance(piece, bytes) else b""))
            tell("check", f"the program runs on this machine's CPU, for {self._wanted.steps} steps")
            try:
                seen = play.run(staged.phases, on_dump, is_too_large)
            finally:
                staged.crew.stop(0.0)  # also after Ctrl-C
                staged.crew.close()
            described = self._compiler.described()
            self.hbm_bytes, self.versions = described["hbm_bytes"], described["versions"]
            graphs = [
                Graph(answer, seen.first_step(dump), order)
                for order, (dump, answer) in enumerate(self._answers(asked, seen))
            ]
        self.log = output.decode(errors="replace")
        if verdict.is_out_of_memory(seen, self.log[-LOG_END:]):
            seen = replace(seen, ended="memory")
        limit = {
            "time": f"the limit of {format_duration(self._wanted.within_s)} on this machine ended the program",
            "memory": f"the program needs more than the {format_size(limits.memory_bytes)} of memory that were free here",
        }.get(seen.ended, "")
        return verdict.judge(graphs, seen, steps, self.hbm_bytes, log=self.log[-LOG_END:], limit=limit), seen

    def _answers(
        self, asked: list[tuple[Dump, Future[Mapping[str, Any]]]], seen: Seen
    ) -> Iterator[tuple[Dump, Mapping[str, Any]]]:
        """Yield what the compiler says of each; of a program that is refused already, no more than is there."""
        for number, (dump, judged) in enumerate(asked, 1):
            if seen.ended == "enough" and not judged.done():
                judged.cancel()
                continue
            self._desk.reporter.progress("check", f"the TPU compiler is at program {number} of {len(asked)}")
            yield dump, judged.result()

    def _largest_batch(self, program: Program, found: Verdict) -> str | None:
        """Return the largest batch of the built-in training that fits, in a sentence; by halving what is not known.

        A batch that this machine has no memory to run counts by the programs that were seen of it.
        """
        spec = program.spec
        assert spec.train is not None
        each = 1 if spec.train.cores == 1 else self._chips.devices
        low, high, needed, is_whole = 0, spec.train.batch_size // each, self._needed(found), True
        for _ in range(TRIES):
            if high - low <= max(1, int(high * NEAR)):
                break
            share = (self.hbm_bytes or 0) * 0.97 / needed if needed else 0.5
            guess = int(high * share) if not low else (low + high) // 2
            guess = min(max(guess, low + 1), high - 1)
            self._desk.reporter.progress("check", f"trying batch_size {guess * each:,}")
            with ExitStack() as stack:
                smaller = with_batch(self._desk, program, self._path, guess * each, stack)
                tried, seen = self._judged(smaller, quick=True)
            if tried.verdict == TOO_LARGE:
                high, needed = guess, self._needed(tried)
            elif tried.verdict == verdict.FITS or (seen.ended == "memory" and tried.main is not None):
                low, is_whole = guess, tried.verdict == verdict.FITS
            else:
                break
        if not low:
            return None
        as_seen = "" if is_whole else ", as far as this machine has the memory to run it"
        return f"batch_size: {low * each:,} fits{as_seen}, and {high * each:,} does not"

    def _needed(self, found: Verdict) -> int:
        return 0 if found.main is None else found.main.needed_bytes or 0
