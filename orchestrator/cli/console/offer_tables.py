"""The tables of `tpujob offers`."""

from collections.abc import Sequence
from itertools import groupby

from orchestrator.catalog.gke import GkeSlice
from orchestrator.report.offers import Offered
from orchestrator.text.terminal import Table


def table(rows: Sequence[Offered], *, by_zone: bool) -> Table:
    """Return the rows as a table. Without `by_zone` a type has one row: the number of zones, and the lowest prices."""
    form = ("TYPE", "TOPOLOGY", "CHIPS", "HOSTS", "HBM GIB")
    if by_zone:
        body = [(*_form(row), row.zone, _price(row, spot=False), _price(row, spot=True)) for row in rows]
        return Table((*form, "ZONE", "$/H", "SPOT $/H"), tuple(body), right=(2, 3, 4, 6, 7))
    groups = groupby(rows, key=lambda row: row.accelerator)
    body = [_summary(list(group)) for _, group in groups]
    return Table((*form, "ZONES", "$/H FROM", "SPOT $/H FROM"), tuple(body), right=(2, 3, 4, 5, 6, 7))


def _form(row: Offered) -> tuple[str, ...]:
    kind = row.kind
    if kind is None:
        return row.accelerator, "", "", "", ""
    return row.accelerator, kind.topology, str(kind.chips), str(kind.hosts), str(kind.hbm_gib)


def _summary(rows: list[Offered]) -> tuple[str, ...]:
    def lowest(*, spot: bool) -> str:
        return _price(min(rows, key=lambda row: row.rank(spot=spot)), spot=spot)

    return *_form(rows[0]), str(len(rows)), lowest(spot=False), lowest(spot=True)


def _price(row: Offered, *, spot: bool) -> str:
    """Never zero: granted capacity is marked, an unknown price is empty."""
    if row.granted_spot if spot else row.granted:
        return "granted"
    price = row.price(spot=spot)
    return "" if price is None else f"{price:,.2f}"


def gke_table(rows: Sequence[GkeSlice]) -> Table:
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
