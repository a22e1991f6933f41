"""The table of `tpujob offers --on gke`: the types that GKE has, and the node pools that have them. Pure.

Nothing here knows a cluster: which pools one has is its own matter. The shipped table has no prices of GKE.
"""

from collections.abc import Sequence
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import gke
from orchestrator.catalog.gke import GkeSlice
from orchestrator.core.text.names import shown
from orchestrator.core.text.terminal import Table
from orchestrator.errors import UserError


def offered_on_gke(text: str | None = None) -> list[GkeSlice]:
    """Return every form of a type or generation, the default first; None: of all. Raises UserError for an unknown one."""
    forms = [form for name in gke.types() for form in gke.slices(name)]
    if text is None:
        return forms
    name = catalog.canonical(text)
    found = [form for form in forms if name == form.kind.name or form.kind.generation == catalog.generation(text)]
    if not found:
        generations = ", ".join(dict.fromkeys(form.kind.generation for form in forms))
        near = gke.nearest(name)
        advice = f"; nearest: {', '.join(near)}" if near else ""
        raise UserError(
            f"--type `{shown(text)}` is not a type that GKE has{advice}", hint=f"or a generation: {generations}"
        )
    return found


def table(rows: Sequence[GkeSlice]) -> Table:
    """Return the forms as a table. A host is a pod with all the chips of its node."""
    body = [
        (
            row.kind.name,
            row.topology,
            str(row.kind.chips),
            str(row.hosts),
            str(row.kind.hbm_gib),
            row.machine_type,
            "yes" if row.flex_start else "no",
        )
        for row in rows
    ]
    head = ("TYPE", "TOPOLOGY", "CHIPS", "HOSTS", "HBM GIB", "MACHINE TYPE", "FLEX-START")
    return Table(head, tuple(body), right=(2, 3, 4))


def as_json(row: GkeSlice) -> dict[str, Any]:
    """Return a form with the labels of its nodes."""
    return {
        "accelerator_type": row.kind.name,
        "generation": row.kind.generation,
        "topology": row.topology,
        "chips": row.kind.chips,
        "hosts": row.hosts,
        "chips_per_host": row.chips_per_host,
        "hbm_gib": row.kind.hbm_gib,
        "machine_type": row.machine_type,
        "node_labels": {gke.ACCELERATOR_LABEL: row.accelerator, gke.TOPOLOGY_LABEL: row.topology},
        "flex_start": row.flex_start,
    }
