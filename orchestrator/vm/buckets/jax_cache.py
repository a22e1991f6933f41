"""Copies what JAX has compiled between the worker and the bucket of the job, so that the next slice finds it there.

The script of a job with `bucket:` that has JAX runs this verb before and after the job. What is not copied is compiled again:
nothing here fails a job, or delays it for longer than LIMIT_S.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .cloud_storage import split
from .data_objects import Changed, Failed, Source

LIMIT_S = 60.0
MOST_BYTES = 4 << 30  # of the newest programs
SUFFIX = "-cache"  # as JAX names them


def jax_cache(way: str, url: str) -> None:
    """`way`: `fetch` or `send`. `url`: gs://BUCKET/PREFIX, below which the programs of all runs are."""
    place = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    place.mkdir(parents=True, exist_ok=True)
    bucket, prefix = split(url)
    end = time.monotonic() + LIMIT_S
    source = Source(left_s=lambda: end - time.monotonic())
    copy = _fetch if way == "fetch" else _send
    try:
        count, why = copy(source, bucket, f"{prefix.strip('/')}/".lstrip("/"), place)
    except (Failed, Changed, OSError) as error:
        count, why = 0, str(error)
    if count or why:
        done = f"compiled programs of JAX: {count} {'from' if way == 'fetch' else 'to'} {url}"
        print(f"tpujob: {done}{f'; not all: {why}' if why else ''}", flush=True)


def _fetch(source: Source, bucket: str, prefix: str, place: Path) -> tuple[int, str]:
    """Return how many programs came, and why no more did."""
    count = size = 0
    for row in sorted(source.rows(bucket, prefix), key=lambda row: -int(row.get("generation") or 0)):
        name = row["name"][len(prefix) :]
        size += int(row["size"])
        if not name.endswith(SUFFIX) or "/" in name or (place / name).exists():
            continue
        if size > MOST_BYTES:
            return count, f"they have more than {MOST_BYTES >> 30} GiB"
        draft = place / f".{name}.new"
        if why := source.fetch(bucket, row["name"], draft):
            draft.unlink(missing_ok=True)
            return count, why
        draft.replace(place / name)
        count += 1
    return count, ""


def _send(source: Source, bucket: str, prefix: str, place: Path) -> tuple[int, str]:
    """Return how many programs went, and why no more did."""
    count, there = 0, {row["name"] for row in source.rows(bucket, prefix)}
    for path in sorted(place.glob(f"*{SUFFIX}")):
        if prefix + path.name not in there:
            if why := source.send(bucket, prefix + path.name, path):
                return count, why
            count += 1
    return count, ""
