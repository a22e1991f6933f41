"""Takes over what is saved of a run in its bucket, and fetches it for the attempt that begins, on every worker.

The script of a job with `bucket:` and `on_preemption: restart` runs this verb before the setup. The write of the manifest shows
at once, and not at the first checkpoint after hours, whether this worker may save there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from ..files import beside
from .data_objects import Changed, Failed, Source
from .manifest import Manifest, Part, Superseded
from .saved import RESTORED_PART, Damaged, Saved, explained, number_of, phase_of_job, say


def restore_work(node: str, url: str) -> None:
    """Take over the manifest, and fetch what is saved, unless TPUJOB_SAVED_WORK says that the client has sent it.

    Exits with 1 if that would begin anew what is saved: "bucket" says that something is, "again" that something may be.
    """
    phase, worker = phase_of_job(), int(os.environ["TPUJOB_WORKER"])
    comes_from = os.environ.get("TPUJOB_SAVED_WORK", "")
    saved = Saved(url, number_of(phase), node, worker, int(os.environ["TPUJOB_WORKERS"]), Source())
    run = Path(phase.run)
    try:
        found = saved.write()
        if comes_from != "client" and found.copies:
            _restore(saved, found, run)
        elif comes_from == "bucket":
            raise Failed("nothing is saved there")
    except Superseded as error:
        say(f"{error}: this one ends")
        sys.exit(1)
    except (Failed, Changed, OSError) as error:
        why = explained(saved, error)
        if comes_from in ("bucket", "again"):
            say(f"the saved work in {url} cannot be fetched: {why}")
            sys.exit(1)
        if not worker:
            say(f"the work is not saved to {url}: {why}")


def _restore(saved: Saved, found: Manifest, run: Path) -> None:
    draft, began = run / ".draft.restored", time.monotonic()
    for copy, part in saved.usable(found.copies):
        shutil.rmtree(draft, ignore_errors=True)
        try:
            if part is not None:
                saved.fetch(part, draft)
        except Damaged as error:
            say(f"a copy of the saved work cannot be used: {error}")
            if saved.workers > 1:  # the others may have begun with it; the next attempt takes the one before
                saved.write(damaged=copy)
                sys.exit(1)
            continue
        _put_in_place(part, draft, run)
        if not saved.worker:
            step = "" if copy.step is None else f" of step {copy.step:,}"
            size = f"{copy.files:,} file{'s'[: copy.files != 1]}, {copy.size_bytes / 1e6:,.1f} MB"
            say(f"saved work{step} from {saved.url}: {size}, in {time.monotonic() - began:.1f} s")
        return
    say("no copy of the saved work can be used: the job begins anew")


def _put_in_place(part: Part | None, draft: Path, run: Path) -> None:
    """Move the files to where the job wrote them, over those of its code, and note which they are."""
    files = part.files if part is not None else ()
    for file in files:
        target = run / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (draft / file.path).replace(target)
    shutil.rmtree(draft, ignore_errors=True)
    (run / beside.RESTORED).write_text(json.dumps([file.path[5:] for file in files if file.path.startswith("work/")]))
    if part is not None:
        (run / RESTORED_PART).write_bytes(part.text())
