"""What a shell completes: runs, slices, places, types and job files, from the ledger and the catalog, without a network.

Each completion gets the beginning of a word and returns words with what they are. It never fails: where the ledger cannot be
read there is no word. What it needs is imported when it is called.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.api import results

MOST_RUNS = 50
SEVERAL_FROM = 2  # for so many zones on, a region is a word of its own
PLAIN = re.compile(r"[\w./@%+,=-]+")  # a word that a shell takes as it is
Words = list[tuple[str, str]]


def _completion(words: Callable[[str], Iterable[tuple[str, str]]]) -> Callable[[str], Words]:
    """Return the completion that offers those of the words that begin with what is typed."""

    def complete(incomplete: str) -> Words:
        try:
            found = list(words(incomplete))
        except Exception:  # a line that is being typed is no place for a report
            return []
        return [(word, what) for word, what in found if word.startswith(incomplete) and PLAIN.fullmatch(word)]

    return complete


@_completion
def runs(typed: str) -> Words:
    found = results.history.runs_named(typed, MOST_RUNS)
    names = {run.name: f"newest: {attempt.state}" for run, attempt in reversed(found)}
    return [*names.items(), *((run.id, f"{run.name}, {attempt.state}") for run, attempt in found)]


@_completion
def runs_and_sweeps(typed: str) -> Words:
    return [*((name, "sweep") for name in results.history.sweeps()), *runs(typed)]


@_completion
def slices(typed: str) -> Words:
    return [(each.handle, f"{each.accelerator_type}, {each.name.zone}") for each in results.history.slices()]


@_completion
def nodes(typed: str) -> Words:
    return [(each.name.node, each.handle) for each in results.history.slices()]


@_completion
def types(typed: str) -> Words:
    from orchestrator import catalog  # 4 ms, which `--help` does without

    kinds = [kind for name in catalog.types() if (kind := catalog.lookup(name))]
    generations = {kind.generation: "generation" for kind in kinds}
    types = {kind.name: f"{kind.topology}, {kind.chips} chip{'s'[: kind.chips != 1]}" for kind in kinds}
    # The API's name of a type begins with its family: v5litepod-8. People type v5e-8.
    spoken = {catalog.spoken(name): what for name, what in types.items()}
    return [*(spoken | types | generations).items()]


@_completion
def places(typed: str) -> Words:
    """A zone, or a region; after a comma the next one."""
    from orchestrator import catalog  # 4 ms, which `--help` does without

    before, comma, _ = typed.rpartition(",")
    regions = {region: f"{len(catalog.zones_of(region))} zones" for region in catalog.regions()}
    words = {region: what for region, what in regions.items() if len(catalog.zones_of(region)) >= SEVERAL_FROM}
    words |= dict.fromkeys(catalog.zones(), "zone") | {"any": "any zone that has the type"}
    return [(f"{before}{comma}{word}", what) for word, what in words.items()]


@_completion
def job_files(typed: str) -> Words:
    """YAML files, and directories on the way to one."""
    directory, slash, _ = typed.rpartition("/")
    parent = Path(f"{directory}{slash}" or ".").expanduser()
    found: Words = []
    for path in sorted(parent.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            found.append((f"{directory}{slash}{path.name}/", "directory"))
        elif path.suffix in (".yaml", ".yml"):
            found.append((f"{directory}{slash}{path.name}", "job file"))
    return found


clouds = _completion(lambda typed: [("emulated", "on this machine"), ("google", "Google Cloud")])
WHO_AND_WHY = [("owner", "the person"), ("cause", "to what it went")]
cost_rows = _completion(lambda typed: [("job", ""), ("run", ""), ("project", ""), ("accelerator", ""), *WHO_AND_WHY])
types_and_places = _completion(lambda typed: [*types(typed), *places(typed)])
logs = _completion(lambda typed: [("all", "every worker"), ("0", "worker 0 only")])
