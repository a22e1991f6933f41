"""What follows from what the compiler said of each program, and from what was seen: the verdict of a check. Pure.

"Fits" is said only where every program that was seen is judged, and the steps were seen. A limit of this machine is no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator import catalog
from orchestrator.check.play import Seen
from orchestrator.check.target import TENSORCORES, TOO_OLD
from orchestrator.text.units import format_duration

FITS, TOO_LARGE, NOT_JUDGED, FAILED = "fits", "does not fit", "not judged", "failed"
GIB = 1 << 30
WARM_UP = 2  # steps in which new programs are normal: optimizers make their state in the first
# What programs print that cannot be lowered for a CPU.
_ONLY_ON_TPU = re.compile(
    r"Only interpret mode is supported on CPU backend|pallas.*not (?:supported|implemented).*cpu", re.I
)
# What programs print that this machine had no memory for; a container without memory kills.
_OUT_OF_MEMORY = re.compile(
    r"Out of memory allocating|RESOURCE_EXHAUSTED|MemoryError|std::bad_alloc|Cannot allocate memory|can't allocate memory",
    re.I,
)
KILLED = (-9, 137)
MOST_NAMED = 3
HOW_ENDED = {
    **{"steps": "", "itself": ", to its end", "enough": ", ended once it did not fit", "failed": ", until it failed"},
    **{"time": ", until the limit", "memory": ", until memory ran out"},
}


@dataclass(frozen=True, slots=True)
class Graph:
    """A program that XLA compiled, and what the TPU compiler says of it (`tpu_compiler.py`).

    `first_step`: the step in which it came, from 1; 0: before the first.
    """

    judged: Mapping[str, Any]
    first_step: int
    order: int

    @property
    def name(self) -> str:
        """Return the name that the program has in XLA, without its number."""
        return re.sub(r"[._]\d+$", "", str(self.judged.get("name", "")))

    @property
    def needed_bytes(self) -> int | None:
        """Return how much HBM of a chip it needs; None: not known."""
        if self.judged["outcome"] == "too large":
            return int(self.judged["needed_bytes"])
        if self.judged["outcome"] != "compiled":
            return None
        sizes = (self.judged[f"{each}_bytes"] for each in ("argument", "output", "temporary", "code"))
        return int(sum(sizes) - self.judged["aliased_bytes"])

    def shape(self, hbm_bytes: int | None) -> dict[str, Any]:
        """Return it as JSON values."""
        needed = self.needed_bytes
        left = None if needed is None or hbm_bytes is None else hbm_bytes - needed
        return {"first_step": self.first_step, **self.judged, "needed_bytes": needed, "left_bytes": left}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found."""

    verdict: str
    why: tuple[str, ...]  # sentences; empty if it fits
    notes: tuple[str, ...]  # more sentences, which change nothing in the verdict
    graphs: tuple[Graph, ...]  # in the order of compiling
    main: Graph | None  # the one that needs most of the chip
    recompiled: tuple[Mapping[str, Any], ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command; the one of a program that failed is its own."""
        return {FITS: 0, TOO_LARGE: 72, NOT_JUDGED: 73}.get(self.verdict, 1)


def judge(graphs: Sequence[Graph], seen: Seen, steps: int, hbm_bytes: int | None, *, log: str, limit: str) -> Verdict:
    """Return the verdict. `log`: the end of what the program printed; `limit`: of this machine, in words."""
    sized = [each for each in graphs if each.needed_bytes is not None]
    main = max(sized, key=lambda each: each.needed_bytes or 0, default=None)
    large = [each for each in sized if hbm_bytes is not None and (each.needed_bytes or 0) > hbm_bytes]
    unjudged = [each for each in graphs if each.needed_bytes is None]
    recompiled = tuple(_recompiled(graphs))
    notes = (*_of_recompiling(recompiled, seen), *_of_transfers(seen), *_of_steps(seen))

    def made(verdict: str, *why: str) -> Verdict:
        return Verdict(verdict, why, notes, tuple(graphs), main, recompiled)

    if large:
        return made(TOO_LARGE, *_of_size(max(large, key=lambda each: each.needed_bytes or 0), hbm_bytes or 0))
    if "torch_tpu" in seen.imports:
        return made(NOT_JUDGED, "the program uses torch_tpu, which compiles by itself: no program of it was seen")
    if seen.ended == "failed":
        if _ONLY_ON_TPU.search(log):
            return made(NOT_JUDGED, "the program has a Pallas kernel, which does not compile for a CPU")
        said = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
        return made(FAILED, f"the program failed here, with exit code {seen.exit_code}: {said[:300]}")
    if unjudged:
        return made(NOT_JUDGED, *_of_unjudged(unjudged, len(graphs)))
    if seen.ended in ("time", "memory"):
        done = max((len(found) for found in seen.steps.values()), default=0)
        what = f"{_count(done, 'step')} of {steps}" if done else "no step"
        until = "what was seen until then fits" if graphs else "XLA compiled nothing until then"
        return made(NOT_JUDGED, f"{limit}, after {what}: that is no verdict; {until}")
    if not graphs:
        of = "it does not use XLA" if not seen.imports & {"jax", "torch_xla"} else "XLA compiled nothing"
        return made(NOT_JUDGED, f"no program for a TPU was seen: {of}")
    if hbm_bytes is None:
        return made(NOT_JUDGED, "the compiler does not say how much HBM a chip has")
    return made(FITS)


def _of_size(graph: Graph, hbm_bytes: int) -> Iterator[str]:
    needed = graph.needed_bytes or 0
    more = gib(needed - hbm_bytes)
    yield f"{graph.name or 'a program'} needs {gib(needed)} of a chip, which has {gib(hbm_bytes)}: {more} too much"
    values = [each for each in graph.judged.get("largest", ()) if int(each["bytes"]) > needed // 100]
    largest = [value_of(each, graph) for each in values[:MOST_NAMED]]
    if largest:
        yield f"the largest values in the program: {', '.join(largest)}"
    inputs = sorted(graph.judged.get("parameters", ()), key=lambda each: int(each["bytes"]), reverse=True)
    own = sum(int(each["bytes"]) for each in inputs) // _parts(graph)
    if inputs and 2 * own > needed:
        yield (
            f"its arguments alone are {gib(own)}, such as {value_of(inputs[0], graph)}: weights and optimizer state that are "
            "sharded over more chips, or are bf16, take less"
        )
    else:
        yield "a smaller batch, bf16, or recomputing activations (checkpointing) takes less"
    if larger := _larger(needed):
        yield f"chips with enough HBM: {', '.join(larger)}"


def value_of(value: Mapping[str, Any], graph: Graph) -> str:
    """Return a value of a program in words: its name, type, shape and size."""
    of = f" over {graph.judged['partitions']} chips" if _parts(graph) > 1 else ""
    name = value.get("name") or value.get("operation") or "an argument"
    sides = ",".join(str(side) for side in value["shape"])
    return f"{name} {value['type']}[{sides}] {gib(value['bytes'])}{of}"


def _parts(graph: Graph) -> int:
    return max(int(graph.judged.get("partitions", 1)), 1)


def _larger(needed: int) -> list[str]:
    """Return the generations whose chips have so much HBM, with the size, the smallest first."""
    found = {}
    for name in catalog.types():
        kind = catalog.lookup(name)
        if kind is None or kind.generation in TOO_OLD:
            continue
        each = kind.hbm_gib // (kind.chips * TENSORCORES.get(kind.generation, 1))
        if each * GIB > needed * 1.05:  # the runtime takes some of it
            found[kind.generation] = each
    return [f"{name} ({size} GiB)" for name, size in sorted(found.items(), key=lambda each: (each[1], each[0]))]


def _of_unjudged(graphs: Sequence[Graph], count: int) -> Iterator[str]:
    yield f"{_count(len(graphs), 'program')} of {count} cannot be compiled for a TPU from here"
    for each in graphs[:MOST_NAMED]:
        calls = [name for name in each.judged.get("custom_calls", ()) if name not in _FOR_EVERYTHING]
        named = f"; it calls {', '.join(calls)}, which only this CPU has" if calls else ""
        yield f"{each.name or 'a program'}: {each.judged.get('why', 'the compiler does not say why')}{named}"


_FOR_EVERYTHING = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}


def _recompiled(graphs: Sequence[Graph]) -> Iterator[Mapping[str, Any]]:
    """Yield the programs that came after the first steps, each with what differs from the one of its name before it."""
    last: dict[tuple[str, int], Graph] = {}
    for each in sorted(graphs, key=lambda one: one.order):
        arguments = each.judged.get("parameters", ())
        key = (each.name, len(arguments))
        before = last.get(key)
        last[key] = each
        if each.first_step <= WARM_UP:
            continue
        found: dict[str, Any] = {"step": each.first_step, "name": each.name}
        if before is not None:
            pairs = enumerate(zip(before.judged["parameters"], arguments, strict=True))
            changed = ((number, was, now) for number, (was, now) in pairs if _kind(was) != _kind(now))
            number, was, now = next(changed, (None, None, None))
            found |= {"argument": number, "was": was, "is": now}
        yield found


def _kind(argument: Mapping[str, Any]) -> tuple[Any, ...]:
    return (argument["type"], *argument["shape"])


def _of_recompiling(recompiled: Sequence[Mapping[str, Any]], seen: Seen) -> Iterator[str]:
    if not recompiled:
        return
    last = max((len(found) for found in seen.steps.values()), default=0)
    steps = sorted({each["step"] for each in recompiled})
    every = last - WARM_UP > 1 and len(steps) >= last - WARM_UP
    named = ", ".join(map(str, steps[:MOST_NAMED])) + (", …" if len(steps) > MOST_NAMED else "")
    when = "in each step" if every else f"in step {named}"
    yield f"a new program is compiled {when}, which a TPU waits for each time"
    first = next((each for each in recompiled if each.get("argument") is not None), None)
    if first is not None:
        was, now = first["was"], first["is"]
        name = now.get("name") or f"argument {first['argument']}"
        changed = f"{name} of {first['name']} was {_written(was)} and is {_written(now)} in step {first['step']}"
        yield f"{changed}: the same shape in each step (padded, or without an odd last batch) compiles once"
    else:
        yield "the arguments keep their shapes, so what the program does with them changes from step to step"


def _written(argument: Mapping[str, Any]) -> str:
    return f"{argument['type']}[{','.join(str(side) for side in argument['shape'])}]"


def _of_transfers(seen: Seen) -> Iterator[str]:
    for found in seen.steps.values():
        counts = [int(each["transfers"]) for each in found]
        more = [after - before for before, after in pairwise(counts[1:])]
        if len(more) > 1 and min(more) > 0:
            yield (
                f"the program reads from the device in each step ({_count(min(more), 'time')}), such as by `.item()`: the TPU "
                "waits for Python meanwhile; read it every so many steps"
            )
            return


def _of_steps(seen: Seen) -> Iterator[str]:
    if not any(seen.steps.values()) and seen.ended in ("itself", "steps"):
        yield "no step of a training was recognized; what ran until its end is judged"


def is_out_of_memory(seen: Seen, log: str) -> bool:
    """Return whether a program failed because this machine has too little memory, which is no verdict on it."""
    return seen.ended == "failed" and (seen.exit_code in KILLED or _OUT_OF_MEMORY.search(log) is not None)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s'[: number != 1]}"


def gib(size: float) -> str:
    """Return a number of bytes as GiB, as the sizes of HBM are given; below a hundredth, as MiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / (1 << 20):.2f} MiB"


def lines(
    found: Verdict, accelerator: str, hbm_bytes: int | None, seen: Seen, versions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the verdict for a terminal: a word for each line, and the line."""
    steps = max((len(each) for each in seen.steps.values()), default=0)
    names = [each.name for each in found.graphs if each.first_step >= 1] or [each.name for each in found.graphs]
    shown = ", ".join(dict.fromkeys(filter(None, names)))
    programs = f"{_count(len(found.graphs), 'program')} compiled{f': {shown}' if shown else ''}"
    took = format_duration(seen.seconds)
    yield "program", f"{_count(steps, 'step')} on this CPU in {took}{HOW_ENDED[seen.ended]} · {programs}"
    is_whole = all(each.needed_bytes is not None for each in found.graphs)
    if found.main is not None and found.main.judged["outcome"] == "compiled" and is_whole:
        yield from _of_memory(found.main, accelerator, hbm_bytes)
    compiled_s = sum(float(each.judged.get("compile_s", 0.0)) for each in found.graphs)
    if compiled_s:
        by = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "jaxlib")
        pays = ", which a run pays on its VM, too" if found.verdict == FITS else ""
        yield "compiler", f"{format_duration(compiled_s)} for all of it{pays} · {by}"
    for line in found.notes:
        yield "note", line
    for line in found.why:
        yield found.verdict, line
    if found.verdict == FITS and found.main is not None and hbm_bytes is not None:
        needed = found.main.needed_bytes or 0
        yield FITS, f"{gib(hbm_bytes - needed)} of a chip is left, for what lives beside this program"


def _of_memory(graph: Graph, accelerator: str, hbm_bytes: int | None) -> Iterator[tuple[str, str]]:
    one = graph.judged
    parts = f"arguments {gib(one['argument_bytes'])} + temporaries {gib(one['temporary_bytes'])}"
    new = one["output_bytes"] - one["aliased_bytes"]
    parts += f" + outputs {gib(new)}" if new > 0 else ""
    has = f" of {gib(hbm_bytes)}" if hbm_bytes else ""
    yield "chip", f"{accelerator}: {graph.name}: {parts}; with its code {gib(graph.needed_bytes or 0)}{has}"
    if one.get("flops"):
        traffic = gib(one["accessed_bytes"] or 0)
        yield "step", f"{one['flops'] / 1e9:,.2f} GFLOP and {traffic} of memory traffic a chip, as the compiler counts"
