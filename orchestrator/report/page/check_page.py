"""The page of a check: the verdict, the memory of a chip by program, and what the program was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.report.page.html import render_plain

STATES = {"fits": "good", "does not fit": "bad", "failed": "bad"}
GIB = 1 << 30


def check_page(shape: Mapping[str, Any], lines: Sequence[tuple[str, str]], hide: Callable[[str], str]) -> str:
    """Return the page of a check. `shape`: its check.json; `lines`: what the command printed."""
    hbm = shape["hbm_bytes"]
    sized = sorted(shape["graphs"], key=lambda each: each["needed_bytes"] or 0, reverse=True)
    rows = [_row(each, hbm) for each in sized]
    page = {
        "title": f"{shape['job']} on {shape['accelerator']}",
        "state": STATES.get(shape["verdict"], "open"),
        "verdict": shape["verdict"],
        "lines": lines,
        "rows": rows,
        "parts": ("arguments", "outputs", "temporaries", "code"),
        "recompiled": shape["recompiled"],
        "facts": {
            "Checked": shape["at"],
            "Chips": f"{shape['devices']} ({shape['topology']})",
            "HBM of a chip": "not known" if hbm is None else f"{hbm / GIB:.2f} GiB",
            "Steps": str(shape["steps"]),
            "Compiler": ", ".join(f"{name} {version}" for name, version in shape["compiler"].items()),
            "Program": shape["program"],
        },
    }
    return render_plain("check.html.j2", page, hide)


def _row(graph: Mapping[str, Any], hbm: int | None) -> dict[str, Any]:
    needed = graph["needed_bytes"]
    sizes = [graph.get(f"{part}_bytes") for part in ("argument", "output", "temporary", "code")]
    return {
        "name": graph.get("name") or "a program",
        "step": graph["first_step"],
        "sizes": ["" if size is None else f"{size / GIB:.3f}" for size in sizes],
        "needed": "" if needed is None else f"{needed / GIB:.3f}",
        "outcome": _outcome(graph, hbm),
        "compile_s": graph.get("compile_s"),
    }


def _outcome(graph: Mapping[str, Any], hbm: int | None) -> str:
    needed = graph["needed_bytes"]
    if needed is None:
        return f"not judged: {graph.get('why', 'the compiler does not say why')}"
    if hbm is None:
        return ""
    return f"fits, {(hbm - needed) / GIB:.2f} GiB left" if needed <= hbm else f"{(needed - hbm) / GIB:.2f} GiB too much"
