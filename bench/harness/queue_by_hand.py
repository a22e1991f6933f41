"""A pass of a queue as people write it for themselves: a table in sqlite3, or one JSON object in a bucket; nothing proven.

`python queue_by_hand.py URL TOKEN_FILE WHERE NODE…` reads the jobs, asks the API and the workers of each node, notes when it
saw them, chooses which jobs would begin if there were a slot, and prints all of them as JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SLOTS = 4
LOCATION = "/v2/projects/emulated/locations/us-central1-a/nodes/"


def main(url: str, token_file: str, where: str, *nodes: str) -> None:
    login = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    seen = {}
    for node in nodes:
        name = f"{url}{LOCATION}{node.rpartition('/')[2]}"
        seen[node] = asked(name, login)["state"], asked(f"{name}:getGuestAttributes", login, b"{}")
    jobs = in_bucket(url, where, seen) if where.startswith("gs://") else in_table(where, seen)
    print(json.dumps(jobs))


def asked(address: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, body, headers)) as reply:
        return json.loads(reply.read())


def in_table(where: str, seen: dict[str, Any]) -> list[Any]:
    with sqlite3.connect(where) as db:
        running = db.execute("select count(*) from job where state = 'running'").fetchone()[0]
        room = max(SLOTS - running, 0)
        db.execute(
            "select id from job where state = 'waiting' order by -priority, place, id limit ?", [room]
        ).fetchall()
        db.execute("create table if not exists look (at real, seen text)")
        db.execute("insert into look values (?, ?)", [time.time(), json.dumps(seen)])
        return [json.loads(job) for (job,) in db.execute("select job from job order by -priority, place, id")]


def in_bucket(url: str, where: str, seen: dict[str, Any]) -> list[Any]:
    bucket, _, name = where.removeprefix("gs://").partition("/")
    target = f"{url}/storage/v1/b/{bucket}/o/{name.replace('/', '%2F')}?alt=media"
    with urllib.request.urlopen(target) as reply:
        jobs, generation = json.loads(reply.read()), reply.headers["x-goog-generation"]
    waiting = sorted((-job["priority"], job["order"], job["id"]) for job in jobs if job["turn"] is None)
    running = len(jobs) - len(waiting)
    for job in [job for job in jobs if job["turn"]]:
        job["turn"]["seen_at"] = time.time()
    del waiting[max(SLOTS - running, 0) :]
    query = f"uploadType=media&name={name.replace('/', '%2F')}&ifGenerationMatch={generation}"
    asked(f"{url}/upload/storage/v1/b/{bucket}/o?{query}", {}, json.dumps(jobs).encode())
    return list(jobs)


if __name__ == "__main__":
    main(*sys.argv[1:])
