"""The manifest that a training writes last: what it says is compared with what came."""

from dataclasses import replace
from pathlib import Path

from orchestrator.core.text import json_text
from orchestrator.core.text.terminal import printable
from orchestrator.remote.transfer.extract import Extracted, IndexEntry

MANIFEST = "artifacts/manifest.json"
MANIFEST_BYTES = 64 << 20


def check_manifest(root: Path, result: Extracted) -> list[tuple[str, str]]:
    """Return (path, why) of what `manifest.json` lists and is different, or did not come and is no problem in `result`.

    A file of that name that is no manifest of a training is a file as any other; a note says so.
    """
    if MANIFEST not in result.files:
        return []
    try:
        if result.files[MANIFEST].size_bytes > MANIFEST_BYTES:
            raise ValueError("too large")
        manifest = json_text.loads((root / result.files[MANIFEST].place).read_bytes())
        if manifest["schema"] != 1:
            raise ValueError(f"schema {manifest['schema']!r} is not known")
        rows = [(str(row["path"]), IndexEntry(int(row["size_bytes"]), str(row["sha256"]))) for row in manifest["files"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        why = printable(f"nothing was compared with it: it is not the manifest of a training ({error!r})")
        result.notes.append((MANIFEST, why))
        return []
    known = {path for path, _ in [*result.missing, *result.refused]}
    broken = []
    for name, entry in rows:
        path = f"artifacts/{name}"
        found = result.files.get(path)
        if found is None and path not in known:
            broken.append((path, "the manifest promises it, but it did not come"))
        elif found is not None and found != replace(entry, place=found.place):
            broken.append((path, "its content is not what the manifest says"))
    return broken
