"""Copies the results of a run from the worker to Cloud Storage, without a client.

The script of a job with `bucket:` ends with this verb. It takes the same files as `pack`, sends each in one request with the
VM's service account, retries transient failures, and exits with a nonzero code when a file did not arrive.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from .pack import rows
from .phase import PhaseFiles

TRIES, FIRST_PAUSE_S = 5, 0.5
TIMEOUT_S = 300.0
STORAGE = "https://storage.googleapis.com"
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 - no password, a path


class Transient(Exception):
    """A transient failure: a retry may succeed."""


def upload(attempt: str, destination: str, patterns: str, worker: str) -> None:
    """`destination` is gs://BUCKET/PREFIX, `patterns` a JSON list; the files go to PREFIX/worker<i>/…"""
    bucket, _, prefix = destination[len("gs://") :].partition("/")
    run = Path(PhaseFiles(attempt, "main").run)
    sent, failed, refused = 0, 0, 0
    for row in rows(str(run), json.loads(patterns)):
        name = row["path"]
        if "why" in row:
            refused += 1
            print(f"tpujob: {name} was not copied: {row['why']}", flush=True)
            continue
        key = "/".join(part for part in (prefix.strip("/"), f"worker{worker}", name) if part)
        problem = _send(bucket, key, run / name)
        if problem is None:
            sent += 1
        else:
            failed += 1
            print(f"tpujob: {name} did not reach gs://{bucket}/{key}: {problem}", flush=True)
    print(f"tpujob: {sent} of {sent + failed} files copied to {destination}/worker{worker}/", flush=True)
    sys.exit(1 if failed or refused else 0)


def _send(bucket: str, key: str, path: Path) -> str | None:
    """Return None when the file arrived, else the reason."""
    pause_s, why = FIRST_PAUSE_S, ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(pause_s)
            pause_s *= 2
        try:
            return _send_once(bucket, key, path)
        except (OSError, http.client.HTTPException, Transient) as error:
            why = str(error) or type(error).__name__
    return why


def _send_once(bucket: str, key: str, path: Path) -> str | None:
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")  # the variable that Google's own clients use
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
    if endpoint is None:
        headers["Authorization"] = f"Bearer {_token()}"
    connection = _connect(endpoint or STORAGE)
    try:
        with path.open("rb") as file:
            target = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?uploadType=media&name={quote(key, safe='')}"
            connection.request("POST", target, body=file, headers=headers)
        reply = connection.getresponse()
        said = reply.read(2000).decode("utf-8", "replace")
    finally:
        connection.close()
    if reply.status < 300:
        return None
    words = f"HTTP {reply.status} {' '.join(said.split())[:200]}"
    if reply.status in (401, 408, 429) or reply.status >= 500:
        raise Transient(words)
    return words


def _token() -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", TOKEN_PATH, headers={"Metadata-Flavor": "Google"})
        reply = connection.getresponse()
        said = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise Transient(f"the metadata server gave no token: HTTP {reply.status}")
    return str(json.loads(said)["access_token"])


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT_S)
