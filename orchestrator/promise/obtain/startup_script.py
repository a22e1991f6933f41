"""The startup-script of a slice: it installs the watchdog on every worker, at every boot, and starts it.

The script contains the watchdog in plain text, pinned by its hash; nothing is downloaded. A create request has
`startup_script(watchdog_config(...))` in its metadata, which every member of the project may read: it holds no secret.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.periods import Timings
from orchestrator.text import names

VERSION = 1
SCRIPT_KEY = "startup-script"
END = "END-OF-TPUJOB-FILE"
PERIODS = ("heartbeat_s", "ttl_s", "grace_s", "poll_s", "linger_s", "margin_s", "stagger_s")

# With $TPUJOB_WATCHDOG_DIR (an emulated VM) everything is in that directory, and nothing runs as root.
SCRIPT = """\
#!/bin/bash
# tpujob: starts the watchdog, which deletes this TPU when its claim is over. It may run any number of times.
set -u
umask 022
heartbeats=${TPUJOB_WATCHDOG_DIR:-/run/tpujob}
dir=${TPUJOB_WATCHDOG_DIR:-/run/tpujob-watchdog}
mkdir -p "$dir/new" "$heartbeats"
[ -n "${TPUJOB_WATCHDOG_DIR:-}" ] || chmod 1777 "$heartbeats"
cat >"$dir/new/watchdog.py" <<'@END@'
@WATCHDOG@@END@
cat >"$dir/new/watchdog.json" <<'@END@'
@CONFIG@
@END@
if ! echo "@SHA256@  $dir/new/watchdog.py" | sha256sum --check --status; then
  echo "tpujob: the watchdog's content does not match its hash; it is not started" >&2
  exit 1
fi
mv -f "$dir/new/watchdog.py" "$dir/new/watchdog.json" "$dir"
python=$(command -v python3) || { echo "tpujob: there is no python3 for the watchdog" >&2; exit 1; }
if [ -z "${TPUJOB_WATCHDOG_DIR:-}" ] && [ -d /run/systemd/system ]; then
  cat >/run/systemd/system/tpujob-watchdog.service <<@END@
[Unit]
Description=Deletes this TPU when its claim is over
StartLimitIntervalSec=0
[Service]
ExecStart=$python -IS $dir/watchdog.py $dir/watchdog.json
Restart=always
RestartSec=5
OOMScoreAdjust=-1000
@END@
  systemctl daemon-reload
  systemctl restart tpujob-watchdog.service
else
  # It exits with 0 only if another watchdog runs already.
  set -m  # in a process group of its own
  (
    trap '' HUP
    until nice -n 5 "$python" -IS "$dir/watchdog.py" "$dir/watchdog.json"; do sleep 5; done
  ) </dev/null >>"$dir/watchdog.log" 2>&1 &
fi
"""


@dataclass(frozen=True, slots=True)
class Watched:
    """The API that a watchdog asks about its own slice, and tells to delete it. The answer has its `labels`."""

    url: str
    base: str  # of every path, with its last slash
    node: str  # the full name of a slice; {0} is its `SliceName`
    state: str  # the field of the answer that has the state
    booting: tuple[str, ...]  # states in which no client can have logged in yet


@functools.cache
def watchdog_source() -> str:
    """Return the watchdog's code."""
    return resources.files("orchestrator.promise").joinpath("watchdog.py").read_text("utf-8")


@functools.cache
def watchdog_sha256() -> str:
    """Return the hash that a watchdog with this code publishes."""
    return hashlib.sha256(watchdog_source().encode()).hexdigest()


def watchdog_config(
    lease: Lease, labels: Mapping[str, str], timings: Timings, watched: Watched, *, idle_s: float | None
) -> dict[str, Any]:
    """Return what the watchdog starts with, until it can read its node's labels. `labels`: those of the create request.

    `idle_s`: delete a held slice that is unused for so many seconds; None: never.
    """
    return {
        "v": VERSION,
        "api": {"url": watched.url, "base": watched.base, "state": watched.state, "booting": [*watched.booting]},
        "node": watched.node.format(lease.name),
        "lease_id": lease.id,
        "mode": labels[names.MODE],
        "claimed_until": int(labels[names.CLAIMED_UNTIL]),
        "deadline": int(labels[names.DEADLINE]),
        "idle_s": idle_s,
        "spot": lease.spot,
        "heartbeats": lease.purpose in (Purpose.RUN, Purpose.QUEUE),
        "user": lease.route.user,
        **{period: getattr(timings, period) for period in PERIODS},
    }


def with_claim(script: str, labels: Mapping[str, str], user: str) -> str:
    """Return the script with the times of these labels, which are the server's, and the user whose jobs it watches."""
    script, count = re.subn(r'\n "user": "[^"]*"', f'\n "user": {json.dumps(user)}', script)
    assert count == 1, "the configuration in the startup-script has one user"
    for key, label in (("claimed_until", names.CLAIMED_UNTIL), ("deadline", names.DEADLINE)):
        script, count = re.subn(rf'\n "{key}": \d+', f'\n "{key}": {int(labels[label])}', script)
        assert count == 1, f"the configuration in the startup-script has one {key}"
    return script


def startup_script(config: Mapping[str, Any]) -> str:
    """Return the script with the watchdog and its configuration."""
    source, text = watchdog_source(), json.dumps({**config, "sha256": watchdog_sha256()}, indent=1)
    assert source.endswith("\n"), "the heredoc below adds no line end"
    assert END not in source, "the watchdog must not contain the line that ends it"
    assert END not in text, "no value of the configuration contains the line that ends it"
    script = SCRIPT.replace("@END@", END).replace("@SHA256@", watchdog_sha256())
    return script.replace("@WATCHDOG@", source).replace("@CONFIG@", text)
