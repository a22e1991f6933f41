"""What a page says of how a run was made: its repository, command and packages; and what its hosts did. Data in, data out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.report.files import host, made
from orchestrator.report.page.timeline import RunData
from orchestrator.text.units import format_duration, format_size

MOST_PATCH_CHARS = 64 << 10
MOST_NAMES = 200
WIDTH, HEIGHT = 1000.0, 100.0  # of the picture of a curve


def section(data: RunData) -> dict[str, Any] | None:
    """Return what the section "How it was made" has; None for a run of which nothing is recorded."""
    report, found = data.report, data.report.made
    if found is None:
        return None
    git, directory = found.git, Path(report.directory)
    facts = [("Run by", f"tpujob {found.tpujob}, Python {found.client_python}" if found.tpujob else "")]
    facts.append(("On", found.client_platform))
    if git is not None:
        facts += [("Commit", git.commit or "none yet"), ("Branch", git.branch or "none: a detached head")]
        facts.append(("Differs from it", git.changes or "no"))
    if found.code is not None:
        count = f"{found.code.files:,} file{'s'[: found.code.files != 1]}"
        facts.append(("Code", f"{count}, {format_size(found.code.size_bytes)}, {found.code.sha256[:12]}"))
    facts += [("Lock", found.lock_sha256[:12]), ("Repeats", found.again_of), ("Python of the job", found.python)]
    patch = made.patch(directory) if git is not None and git.dirty else ""
    names = [] if git is None else _differing(git)
    return {
        "facts": [(label, text) for label, text in facts if text],
        "command": found.command,
        "files": names[:MOST_NAMES],
        "patch": patch[:MOST_PATCH_CHARS],
        "is_cut": len(patch) > MOST_PATCH_CHARS or (git is not None and git.cut),
        "packages": list(found.packages.items()),
        "again": f"tpujob run --again {report.run}" if not found.missing else "",
        "missing": found.missing if found.command else "",
    }


def _differing(git: made.GitState) -> list[tuple[str, str]]:
    kinds = (
        (git.dirty, "changed"),
        (git.untracked, "not in git"),
        (git.withheld, "left out of the patch: not shipped, or may be a secret"),
    )
    return [(path, how) for paths, how in kinds for path in paths]


def hosts(data: RunData) -> dict[str, Any] | None:
    """Return what the hosts did, with the curves of worker 0 as points of pictures; None without samples."""
    report = data.report
    if report.host is None:
        return None
    emulated = report.lease is not None and report.lease.emulated
    rows = host.curves(Path(report.directory))
    end_s = max(rows[-1][0], 1.0) if rows else 1.0
    named = (("Processors of the host", 1), ("Memory of the host", 2))
    curves = [
        (name, " ".join(_point(row, index, end_s) for row in rows), max(row[index] for row in rows))
        for name, index in named
        if len(rows) > 1
    ]
    return {"line": host.line(report.host, emulated=emulated), "curves": curves, "end": format_duration(end_s)}


def _point(row: tuple[float, float, float], index: int, end_s: float) -> str:
    return f"{WIDTH * row[0] / end_s:.1f},{HEIGHT - row[index]:.1f}"
