"""What a program is judged for: the chips of an accelerator, as the TPU compiler names them."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.errors import NotJudged

TENSORCORES = {"tpu7x": 2}  # devices of a chip, as XLA counts them; else one, also where a chip has two cores
TOO_OLD = ("v2", "v3")


@dataclass(frozen=True, slots=True)
class Chips:
    """The chips of one slice of one host."""

    accelerator: str
    generation: str
    topology: str  # in chips: "2x4"
    devices: int  # as XLA counts them

    @property
    def compiler_name(self) -> str:
        """Return the topology as libtpu names it: "v5e:2x4"."""
        return f"{self.generation}:{self.topology}"


def chips_of(accelerator: str, slices: int = 1) -> Chips:
    """Return the chips of an accelerator type. Raises NotJudged for those that the compiler, or one machine, cannot judge."""
    kind = catalog.lookup(accelerator)
    if kind is None:
        raise NotJudged(f"{accelerator} is not in the catalog, so its chips are not known")
    if kind.generation in TOO_OLD:
        raise NotJudged(f"{accelerator}: the TPU compiler knows v4 and later, and no {kind.generation}")
    if slices > 1:
        raise NotJudged(f"{slices} slices of {accelerator}: one machine plays the program of one host")
    if kind.hosts > 1:
        hint = "a slice of one host shows what fits a chip: `--accelerator` names one"
        raise NotJudged(f"{accelerator} has {kind.hosts} hosts, and one machine plays the program of one", hint=hint)
    return Chips(kind.name, kind.generation, kind.topology, kind.chips * TENSORCORES.get(kind.generation, 1))
