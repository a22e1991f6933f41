"""The startup-script that a slice is created with: it installs the switch on every worker, at every boot, and starts it.

The switch travels inside, in plain text, pinned by its hash; nothing is downloaded. Whoever makes a create request puts
`startup_script(watchdog_config(…))` into its metadata, which everybody in the project may read: there is no secret in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from orchestrator.core.lease.lease import Lease, Purpose
from orchestrator.core.lease.timings import Timings
from orchestrator.core.text import names

VERSION = 1
SCRIPT_KEY = "startup-script"
END = "END-OF-TPUJOB-FILE"
PERIODS = ("heartbeat_s", "ttl_s", "grace_s", "poll_s", "linger_s", "margin_s", "stagger_s")

# With $TPUJOB_WATCHDOG_DIR (an emulated VM) everything is in there, and nobody is root.
SCRIPT = """\
#!/bin/bash
# tpujob: starts the switch, which deletes this TPU when nobody claims it any more. It may run any number of times.
set -u
umask 022
beats=${TPUJOB_WATCHDOG_DIR:-/run/tpujob}
dir=${TPUJOB_WATCHDOG_DIR:-/run/tpujob-watchdog}
mkdir -p "$dir" "$beats"
[ -n "${TPUJOB_WATCHDOG_DIR:-}" ] || chmod 1777 "$beats"
cat >"$dir/.watchdog.py" <<'@END@'
@WATCHDOG@@END@
cat >"$dir/.watchdog.json" <<'@END@'
@CONFIG@
@END@
if ! echo "@SHA256@  $dir/.watchdog.py" | sha256sum --check --status; then
  echo "tpujob: the switch arrived with another content than its hash says; it is not started" >&2
  exit 1
fi
mv -f "$dir/.watchdog.py" "$dir/watchdog.py"
mv -f "$dir/.watchdog.json" "$dir/watchdog.json"
python=$(command -v python3) || { echo "tpujob: there is no python3 for the switch" >&2; exit 1; }
if [ -z "${TPUJOB_WATCHDOG_DIR:-}" ] && [ -d /run/systemd/system ]; then
  cat >/run/systemd/system/tpujob-watchdog.service <<@END@
[Unit]
Description=Deletes this TPU when nobody claims it any more
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
  # It only ends well where another switch runs already.
  setsid nohup sh -c 'until nice -n 5 "$@"; do sleep 5; done' watchdog "$python" -IS "$dir/watchdog.py" "$dir/watchdog.json" \\
    </dev/null >>"$dir/watchdog.log" 2>&1 &
fi
"""


@functools.cache
def watchdog_source() -> str:
    return resources.files("orchestrator.vm").joinpath("watchdog.py").read_text("utf-8")


@functools.cache
def watchdog_sha256() -> str:
    """What a switch that runs these very bytes publishes."""
    return hashlib.sha256(watchdog_source().encode()).hexdigest()


def watchdog_config(
    lease: Lease, labels: Mapping[str, str], timings: Timings, *, idle_s: float | None
) -> dict[str, Any]:
    """What the switch knows before it can read its node's labels: `labels` are those of the create request."""
    name = lease.name
    periods = {period: getattr(timings, period) for period in PERIODS}
    return {
        "v": VERSION,
        "node": f"projects/{name.project}/locations/{name.zone}/nodes/{name.node}",
        "lease_id": lease.id,
        "mode": labels[names.MODE],
        "claimed_until": int(labels[names.CLAIMED_UNTIL]),
        "deadline": int(labels[names.DEADLINE]),
        "idle_s": idle_s,
        "spot": lease.spot,
        "heartbeats": lease.purpose is Purpose.RUN,
        **periods,
    }


def restamped(script: str, labels: Mapping[str, str]) -> str:
    """The same script with the times of these labels, which are the server's."""
    for key, label in (("claimed_until", names.CLAIMED_UNTIL), ("deadline", names.DEADLINE)):
        script, count = re.subn(rf'\n "{key}": \d+', f'\n "{key}": {int(labels[label])}', script)
        assert count == 1, f"the configuration in the startup-script has one {key}"
    return script


def startup_script(config: Mapping[str, Any]) -> str:
    source, text = watchdog_source(), json.dumps({**config, "sha256": watchdog_sha256()}, indent=1)
    assert source.endswith("\n"), "the heredoc below adds no line end of its own"
    assert END not in source, "the switch must not contain the line that ends it"
    assert END not in text, "no value of the configuration contains the line that ends it"
    script = SCRIPT.replace("@END@", END).replace("@SHA256@", watchdog_sha256())
    return script.replace("@WATCHDOG@", source).replace("@CONFIG@", text)
