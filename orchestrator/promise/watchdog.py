"""The watchdog: runs on every worker from boot, and deletes its own slice through the API when no claim is left.

One file, standard library only, shipped inside the slice's startup-script. `program` decides; the simulator runs it, too.
`Vm` performs its effects on a real or emulated TPU VM. The watchdog never deletes a slice whose `tpujob-lease-id` label is not
its own, and never without reading the labels first; once decided, it repeats the delete until the VM is gone. On spot it also
handles the preemption notice: the job gets SIGTERM while there is time for a checkpoint.
"""

# pathlib would double the start-up time.
# ruff: noqa: PTH110, PTH111, PTH114, PTH116, PTH120, PTH123, PTH208
from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Generator
from typing import Any, NoReturn

Effects = Generator[tuple[Any, ...], Any, Any]


RUN, HOLD, DETACHED = MODES = ("run", "hold", "detached")
DECISIVE = (200, 403, 404)  # any other status decides nothing, and nothing is deleted
API_ANSWERED = (*DECISIVE, 429)  # the API answered: there is a route to it
PROVERS = 3  # so many workers prove, one after the other, that all may delete: they share one service account
FIRST_LOOK_DIVISOR = 60  # a worker looks for the first time a stagger divided by this after the one before it
PUBLISHES_PER_MINUTE = 10  # limit of guest attribute writes; a heartbeat is a minute
SLOW_FACTOR = 5  # the other workers look so many times less often than the first
FAST_FACTOR = 4  # all look so many times more often near the end, or while an answer is missing
MAX_STAGGER = 10  # workers beyond this one wait as long as it does
NOTICE_S = 30.0  # the notice comes about so long before the end; the job gets all of it
NOTICE_REPEATS = 3  # the notice is published so often: a write may be lost
METRICS, METRIC_CHARS, METRICS_CHARS, METRICS_BYTES = 12, 40, 600, 4096  # at most: values, of each, of all, read


class Countdown:
    """Seconds that are left, counted only while they are observed.

    A long gap between two observations was an outage, or the VM was paused: it does not count, and a grace follows it.
    """

    def __init__(self, total_s: float, max_gap_s: float, grace_s: float) -> None:
        self.total_s, self.max_gap_s, self.grace_s = total_s, max_gap_s, grace_s
        self.restart()

    def restart(self) -> None:
        self.left_s: float = self.total_s
        self.seen_at: float | None = None

    def watch(self, now: float) -> None:
        """Count the time since the last observation. Call it only after an observation that succeeded."""
        gap_s = 0.0 if self.seen_at is None else now - self.seen_at
        self.left_s = self.left_s - gap_s if gap_s <= self.max_gap_s else max(self.left_s, self.grace_s)
        self.seen_at = now

    @property
    def running(self) -> bool:
        return self.seen_at is not None

    @property
    def over(self) -> bool:
        return self.left_s <= 0


def program(config: dict[str, Any], worker: int) -> Effects:
    """Run without end. The effects and their replies:

    ("clock",) -> seconds since boot, ("call", method, path, body) -> (status, json or None, the server's unix time or None)
    ("heartbeat",) -> text or None, ("job",) -> ("none"|"running"|"ended", ended so long ago or None, exit code or None)
    ("report", metrics, too?) -> (attempt and state that "job" saw, or None; its metrics), or None
    ("busy",) -> bool, ("publish", key, value) -> bool, ("log", text), ("sleep", seconds)
    ("preempted",) -> bool, ("stop", grace in seconds) -> was it asked to, or is there none running?
    """
    return Watchdog(config, worker).run()


class Watchdog:
    """The state of one worker's watchdog, and its decisions."""

    def __init__(self, config: dict[str, Any], worker: int) -> None:
        self.config, self.worker, self.first = config, worker, worker == 0
        self.api: dict[str, Any] = config["api"]  # of the slice; `base` begins every path
        self.path = self.api["base"] + config["node"]
        self.queue = ""  # the queued resource of this node: deleting it with its node leaves nothing behind
        self.heartbeat_s: float = config["heartbeat_s"]
        self.poll_s: float = config["poll_s"]
        self.grace_s: float = config["grace_s"]
        self.period_s: float = self.poll_s if self.first else SLOW_FACTOR * self.poll_s
        self.tick_s: float = min(self.heartbeat_s, self.period_s) if self.first else self.period_s
        # The claim: from the create call until the labels are read.
        self.mode, self.claimed_until, self.deadline = config["mode"], config["claimed_until"], config["deadline"]
        self.now = 0.0  # seconds since boot
        self.status = 0  # of the last look at the node; 0: no answer
        self.state = ""
        self.server_now: float | None = None  # the server's clock at the last reply, if it was there
        self.boot_time: float | None = None  # the server's time at which the boot clock was zero
        self.read = self.foreign = self.route = self.node_read = False
        self.may_get: bool | None = None  # None: not known yet
        self.may_delete: bool | None = None
        self.published_record: dict[str, Any] | None = None
        self.published_metrics: dict[str, Any] = {}
        self.next_poll = self.prove_at = 0.0
        self.next_publish = self.published_at = self.republish_s = 0.0  # of the published record
        self.retry_s: float = self.heartbeat_s / 12
        self.pause_s: float = self.retry_s
        self.unproven_s: float = self.retry_s
        self.reported_delete: str | None = None
        # Far more often than a heartbeat: the notice comes half a minute before the end, and every second counts.
        self.listen_s: float = max(0.25, self.retry_s) if config.get("spot") else float("inf")
        self.preempted = self.stopped = False
        self.noticed_at: int | None = None
        self.notices_sent, self.next_notice = 0, 0.0
        self.last_heartbeat: str | None = None
        self.observed = self.heartbeat_seen = False
        self.job: tuple[str, float | None, int | None] = ("none", None, None)
        self.report: Any = None  # not known yet
        own, polls = 3 * max(self.heartbeat_s, self.tick_s), 3 * self.poll_s
        self.silence = Countdown(config["ttl_s"], 3 * self.heartbeat_s, self.grace_s)
        self.ending = Countdown(config["linger_s"], own, self.grace_s)
        self.idling = Countdown(config["idle_s"] or 0.0, own, self.grace_s)
        self.expiry = Countdown(self.grace_s, polls, self.grace_s)
        self.turn = Countdown(min(worker, MAX_STAGGER) * config["stagger_s"], polls, 0.0)

    def run(self) -> Effects:
        yield from self.observe()
        # Not all at once: of hundreds of workers that boot together, the API would refuse most.
        stagger_s, turn = self.config["stagger_s"], 0 if self.worker < PROVERS else self.worker % 256
        self.next_poll = self.now + turn * stagger_s / FIRST_LOOK_DIVISOR
        self.prove_at = self.now + self.worker * stagger_s
        while True:
            yield from self.observe()
            yield from self.handle_preemption()
            yield from self.observe_job()
            urgent = self.local_reason() is not None or self.left_s() <= 0
            reason = None
            if urgent or self.now >= self.next_poll:
                yield from self.read_node()
                reason = self.delete_reason()
                if reason is not None:
                    yield from self.delete(reason)
                elif self.status == 200 and self.should_prove() and self.now >= self.prove_at and not self.foreign:
                    yield from self.prove()
                self.plan_next_poll()
                self.node_read = True
            if self.node_read:
                yield from self.publish()
            yield ("sleep", min(self.pause(urgent or reason is not None), self.listen_s))

    # -- observations --

    def observe(self) -> Effects:
        """Read the clock and the heartbeat; also after every call, because a call may take long."""
        self.now = yield ("clock",)
        if not self.reads_heartbeats:
            return
        text = yield ("heartbeat",)
        # A heartbeat from before the start may have any age.
        if self.observed and text is not None and text != self.last_heartbeat:
            self.heartbeat_seen = True
            self.silence.restart()
        if self.state in self.api["booting"]:
            self.silence.restart()
        self.observed, self.last_heartbeat = True, self.last_heartbeat if text is None else text
        self.silence.watch(self.now)

    def handle_preemption(self) -> Effects:
        """Handle the preemption notice: stop the job first, then publish the notice."""
        if not self.config.get("spot") or (self.stopped and self.notices_sent == NOTICE_REPEATS):
            return
        self.preempted = self.preempted or (yield ("preempted",))
        if not self.preempted:
            return
        if not self.stopped:
            self.stopped = yield ("stop", NOTICE_S)
            yield ("log", f"preemption notice: the job was asked to stop: {self.stopped}")
        if self.noticed_at is None and self.boot_time is not None:
            self.noticed_at = round(self.boot_time + self.now)
        if self.notices_sent == NOTICE_REPEATS or self.now < self.next_notice:
            return
        if (yield ("publish", "notice", {"v": self.config["v"], "preempted": True, "at": self.noticed_at})):
            self.notices_sent, self.next_notice = self.notices_sent + 1, self.now + self.heartbeat_s / 6

    def observe_job(self) -> Effects:
        if self.mode == DETACHED:
            before, self.job = self.job[0], (yield ("job",))
            self.count_ending(before)
            self.report = (yield ("report", self.first)) or self.report
        elif self.mode == HOLD and self.config["idle_s"] and self.first:
            self.job = yield ("job",)
            if self.job[0] == "running" or (yield ("busy",)):
                self.idling.restart()
            else:
                self.idling.watch(self.now)

    def count_ending(self, before: str) -> None:
        state, ago_s, rc = self.job
        if state == "running" or (not self.first and (state == "none" or rc == 0)):
            self.ending.restart()
            return
        if state != before or not self.ending.running:
            self.ending.restart()
            if state == "none":
                self.ending.left_s = self.config["ttl_s"]
            elif ago_s is not None:  # else it counts from now on
                self.ending.left_s = max(self.ending.total_s - ago_s, min(self.ending.total_s, self.grace_s))
        self.ending.watch(self.now)

    def read_node(self) -> Effects:
        """Read the node from the API: its labels and the server's clock define the claim."""
        self.status, node, self.server_now = yield ("call", "GET", self.path, None)
        yield from self.observe()
        if self.server_now is not None:
            self.boot_time = self.server_now - self.now
        labels = _labels(node, self.config["node"]) if self.status == 200 else None
        if labels is not None:
            self.may_get, self.state = True, str(node.get(self.api["state"], ""))
            self.queue = _queue(node, self.config["node"])
            self.read_labels(labels)
        elif self.status == 200:
            self.status = 0  # the reply was not one of the Cloud TPU API
        elif self.status == 403:
            self.may_get = False
        self.route = self.route or self.status in API_ANSWERED

    def read_labels(self, labels: dict[str, Any]) -> None:
        self.foreign = labels.get("tpujob-lease-id") != self.config["lease_id"]
        if self.foreign:
            return
        mode = labels.get("tpujob-mode")
        if mode in MODES and mode != self.mode:
            self.mode, self.report = mode, None
            for countdown in (self.silence, self.ending, self.idling):
                countdown.restart()
        self.deadline = _seconds(labels.get("tpujob-deadline"), self.deadline)
        # Without a readable label only the deadline counts.
        claimed_until = _seconds(labels.get("tpujob-claimed-until"), self.deadline)
        if self.read and claimed_until > self.claimed_until:
            self.silence.restart()  # the client that renews it is alive, even if SSH is cut
        self.claimed_until, self.read = claimed_until, True
        if self.server_now is not None:
            self.expiry.watch(self.now) if self.server_now > claimed_until else self.expiry.restart()

    # -- decisions --

    def local_reason(self) -> str | None:
        """Return why to delete the slice, from what this VM observes; None to keep it."""
        if self.foreign:
            return None
        # A held slice gets no heartbeats, and only its labels say that it is held: read them before deciding.
        mode_is_known = self.status == 200 or self.config.get("heartbeats", True)
        if self.mode == RUN and self.first and self.silence.over and mode_is_known:
            return f"no heartbeat for {self.silence.total_s:.0f} s"
        if self.mode == DETACHED and self.ending.over and not self.has_client(self.grace_s):
            return "no job was started" if self.job[0] == "none" else "the job ended"
        if self.mode == HOLD and self.config["idle_s"] and self.first and self.idling.over:
            return f"idle for {self.idling.total_s:.0f} s"
        return None

    @property
    def reads_heartbeats(self) -> bool:
        """A client that collects sends heartbeats to every worker: after a failed job each of them would delete."""
        return self.first or self.mode == DETACHED

    def has_client(self, within_s: float) -> bool:
        return self.reads_heartbeats and self.heartbeat_seen and self.silence.total_s - self.silence.left_s < within_s

    def left_s(self) -> float:
        """Return the estimated seconds to the deadline. Only the server's clock decides; this says when to ask."""
        if self.boot_time is None or self.foreign:
            return float("inf")
        left_s: float = self.deadline - self.boot_time - self.now
        return left_s

    def delete_reason(self) -> str | None:
        """Return why to delete the slice now, after a fresh read of the node; None to keep it."""
        if self.status not in DECISIVE:
            return None
        reason = None if self.foreign else self.server_reason() or self.local_reason()
        if reason is None:
            self.turn.restart()
            return None
        self.turn.watch(self.now)
        return reason if self.turn.over else None

    def server_reason(self) -> str | None:
        if self.server_now is not None and self.server_now > self.deadline:
            return "its deadline passed"
        if self.status == 200 and self.expiry.over and not self.has_client(self.silence.total_s):
            return "its claim expired and was not renewed"
        return None

    def plan_next_poll(self) -> None:
        if self.should_prove() or not self.route:  # soon after boot, later less often
            wait_s, self.unproven_s = self.unproven_s, min(2 * self.unproven_s, self.period_s)
            if self.may_get:
                wait_s = max(wait_s, self.prove_at - self.now)
        elif self.status not in API_ANSWERED or self.expiry.running or self.turn.running:
            # Often enough that a few lost replies in a row do not look like an outage.
            wait_s = self.poll_s / FAST_FACTOR
        else:
            wait_s = self.period_s
        self.next_poll = self.now + wait_s

    def pause(self, urgent: bool) -> float:
        if self.turn.running and not self.turn.over:
            return max(self.retry_s, min(self.poll_s / FAST_FACTOR, self.turn.left_s))
        if urgent:
            pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, self.heartbeat_s / 2)
            return pause_s
        self.pause_s, self.reported_delete = self.retry_s, None
        tick_s = self.heartbeat_s if self.mode == DETACHED else self.tick_s  # a client waits for the end
        waits = [tick_s, self.next_poll - self.now, self.left_s()]
        if self.republish_s < self.tick_s:  # else it is published with another look
            waits.append(self.next_publish - self.now)
        waits += [countdown.left_s for countdown in (self.silence, self.ending, self.expiry) if countdown.running]
        return max(self.retry_s, min(wait for wait in waits if wait > 0))

    # -- actions --

    def delete(self, reason: str) -> Effects:
        """Send the delete. An accepted delete may still fail, so `run` repeats it until this VM is gone.

        The queued resource is deleted with its node. If that fails, the node is deleted alone: the node is what is billed.
        """
        status = 0
        if self.queue:
            status = yield from self.send_delete(f"{self.api['base']}{self.queue}?force=true")
        if status != 200 or self.reported_delete is not None:
            status = yield from self.send_delete(self.path)
        if f"{reason} ({status})" != self.reported_delete:
            self.reported_delete = f"{reason} ({status})"
            yield ("log", f"{reason}: deleting {self.config['node']} was answered with {status}")

    def should_prove(self) -> bool:
        """Return whether this worker proves the permission for all. If the first one is dead or rate-limited, the next one
        follows; the others only check their route."""
        return self.worker < PROVERS and not (self.may_get and self.may_delete)

    def prove(self) -> Effects:
        """Prove the permission to delete: a delete of a name that never exists is answered with 404."""
        yield from self.send_delete(self.path + "-probe")

    def send_delete(self, path: str) -> Effects:
        status, _, _ = yield ("call", "DELETE", path, None)
        if status in DECISIVE:
            self.may_delete = status != 403
        yield from self.observe()
        return status

    def publish(self) -> Effects:
        """Publish the record repeatedly, ever less often (an accepted write may be lost), within the rate limit."""
        refused = self.may_get is False or self.may_delete is False
        permission = False if refused else True if self.may_get and self.may_delete else None
        record = {
            "v": self.config["v"],
            "worker": self.worker,
            "armed": self.route and permission is True and not self.foreign,
            "route": self.route,
            "permission": permission,
            "mode": self.mode,
            "claimed_until": self.claimed_until,
            "deadline": self.deadline,
            "sha256": self.config.get("sha256"),
        }
        metrics: dict[str, Any] = {}
        if self.mode == DETACHED and self.report:
            record["job"], metrics = self.report
        news = record != self.published_record
        if metrics != self.published_metrics:  # no news: with the next heartbeat
            self.next_publish = min(self.next_publish, self.published_at + self.heartbeat_s)
        least_s = self.heartbeat_s / PUBLISHES_PER_MINUTE
        if news and self.next_publish > self.now + least_s:
            self.next_publish = self.published_at + least_s
        if self.now < self.next_publish:
            return
        said = yield ("publish", "watchdog", dict(record, metrics=metrics) if metrics else record)
        self.published_at = self.now
        if not said:
            self.next_publish = self.now + least_s
            return
        self.published_metrics = metrics
        self.republish_s = min(2 * self.republish_s, SLOW_FACTOR * self.poll_s) if not news else self.heartbeat_s / 3
        self.next_publish = self.now + self.republish_s
        if news:
            self.published_record = record
            yield ("log", f"published {json.dumps(record)}")


def _labels(node: Any, name: str) -> dict[str, Any] | None:
    """Return the labels; None if this does not describe the node."""
    if not isinstance(node, dict) or not f"/{node.get('name')}".endswith("/" + name.rpartition("/")[2]):
        return None
    labels = node.get("labels", {})
    return labels if isinstance(labels, dict) else None


def _queue(node: dict[str, Any], name: str) -> str:
    """Return the queued resource with the node's own name, or "": one with another name may hold more than this node."""
    full = str(node.get("queuedResource") or "")
    ours = full.endswith("/queuedResources/" + name.rpartition("/")[2]) and full.startswith("projects/")
    return full if ours and "?" not in full and ".." not in full else ""


def _seconds(text: Any, otherwise: float) -> float:
    readable = isinstance(text, str) and text.isascii() and text.isdigit() and 9 <= len(text) <= 11
    return int(text) if readable else otherwise


class Vm:
    """Performs the effects on this VM. None of them raises, and each has a timeout."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.timeout_s = max(2.0, min(15.0, config["heartbeat_s"] / 4))
        self.emulated = os.environ.get("TPUJOB_WATCHDOG_DIR")
        self.user = str(config["user"])
        self.directory = self.emulated or "/run/tpujob"
        self.api = os.environ.get("TPUJOB_TPU_API", config["api"]["url"])
        self.metadata = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}"
        self.token, self.token_until = "", 0.0
        self.failed = ""
        self.run, self.seen = "", self._state(None)
        if not self.api.startswith("https:"):
            sys.modules["ssl"] = None  # type: ignore[assignment]  # http.client does without it: 4 MB for each worker
        signal.signal(signal.SIGALRM, _on_timeout)

    def perform(self, effect: tuple[Any, ...]) -> Any:
        name, *arguments = effect
        if name == "sleep":
            return time.sleep(arguments[0])
        try:
            signal.setitimer(signal.ITIMER_REAL, 2 * self.timeout_s)  # the timeouts of single reads add up
            try:
                return getattr(self, name)(*arguments)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception as error:
            text = f"{name} failed: {type(error).__name__}: {error}"
            if name != "call" and text != self.failed:  # calls fail in every outage, and the program handles that
                self.failed = text
                self.log(text)
            return DEFAULT_REPLIES.get(name)

    def clock(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def log(self, text: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text, flush=True)

    def call(self, method: str, path: str, body: Any) -> tuple[int, Any, float | None]:
        for _ in range(2):
            headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
            status, said, text = self._http(method, self.api, path, None if body is None else json.dumps(body), headers)
            if status != 401:
                break
            self.token_until = 0.0  # revoked early: request another token, once
        from email.utils import mktime_tz, parsedate_tz  # http.client has imported it

        date = parsedate_tz(said or "")
        return status, _parsed(text), None if date is None else float(mktime_tz(date))

    def heartbeat(self) -> str | None:
        text = _read(f"{self.directory}/heartbeat", 256)
        return None if text is None else text.decode("utf-8", "replace")

    def job(self) -> tuple[str, float | None, int | None]:
        """Return the state of the newest `main` phase; files and locks as in vm/files/phases.py."""
        phase = self._main_phase()
        self.run, self.seen = (phase or "")[: -len("/main")], DEFAULT_REPLIES["job"]
        self.seen = self._state(phase)
        return self.seen

    def report(self, metrics: bool) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return what `job` saw, with its attempt, and the newest metrics."""
        state, _, rc = self.seen
        if state == "none":
            return None, {}
        job = {"attempt": self.run.rpartition("/")[2], "state": state, "rc": rc if rc in range(256) else None}
        return job, _metrics(f"{self.run}/artifacts") if metrics else {}

    def _state(self, phase: str | None) -> tuple[str, float | None, int | None]:
        if phase is None:
            return "none", None, None
        running = _locked(f"{phase}/lock")
        # Read after the lock: it exists before the lock drops.
        ended = _parsed(_read(f"{phase}/exit.json", 1 << 16) or b"")
        if isinstance(ended, dict):
            return "ended", self._ago_s(ended), ended.get("rc")
        if running:
            return "running", None, None
        # Killed, or the VM rebooted.
        return "none" if _read(f"{phase}/started.json", 1) is None else "ended", None, None

    def _ago_s(self, ended: dict[str, Any]) -> float | None:
        """Return how long ago, by the boot clock; None if this VM restarted since."""
        ended_s, boot = float(ended["ended_boot_s"]), _read("/proc/sys/kernel/random/boot_id", 64)
        if boot is None or ended["boot"] != boot.decode().strip():
            return None
        return max(0.0, self.clock() - ended_s)

    def stop(self, grace_s: float) -> bool:
        """Ask supervisor.py to stop the job. The supervisor runs as the job's user, which only needs to read the file."""
        phase = self._main_phase()
        if phase is None or not _locked(f"{phase}/lock") or _read(f"{phase}/stop.json", 1) is not None:
            return True
        draft = ".stop.watchdog"
        directory = os.open(phase, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if draft in os.listdir(directory):  # left by a watchdog that was killed here
                os.unlink(draft, dir_fd=directory)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
            os.write(fd, json.dumps({"grace_s": grace_s}).encode())
            os.close(fd)
            os.rename(draft, "stop.json", src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)
        return True

    def preempted(self) -> bool:
        return (self._ask_metadata("GET", "preempted", None) or b"").strip().upper() == b"TRUE"

    def _main_phase(self) -> str | None:
        home = os.environ["HOME"] if self.emulated else os.path.expanduser("~" + self.user)
        phases = []
        for attempt in _names(f"{home}/tpujob/runs"):
            lock = f"{home}/tpujob/runs/{attempt}/main/lock"
            if os.path.exists(lock):
                phases.append((os.stat(lock).st_mtime, lock[: -len("/lock")]))
        return max(phases)[1] if phases else None

    def busy(self) -> bool:
        """Return whether a user is logged in, or a process that was started over SSH is alive."""
        wanted = b"\0TPUJOB_WATCHDOG_DIR=" + os.fsencode(self.emulated) + b"\0" if self.emulated else b"\0"
        for pid in _names("/proc"):
            environment = b"\0" + (_read(f"/proc/{pid}/environ", 1 << 20) or b"") + b"\0" if pid.isdigit() else b""
            if b"\0SSH_CONNECTION=" in environment and wanted in environment:
                return True
        return False

    def publish(self, key: str, value: Any) -> bool:
        return self._ask_metadata("PUT", f"guest-attributes/tpujob/{key}", json.dumps(value)) is not None

    def worker(self) -> int:
        """Return the worker's index; 1, the more careful role, where nothing tells it; None without metadata."""
        said = self._ask_metadata("GET", "attributes/agent-worker-number", None)
        if said is None:
            said = os.uname().nodename.rpartition("-w-")[2].encode()
        return int(said) if said.strip().isdigit() else 1

    def _token(self) -> str:
        if self.clock() >= self.token_until:
            said = json.loads(self._ask_metadata("GET", "service-accounts/default/token", None) or b"")
            self.token, self.token_until = said["access_token"], self.clock() + said["expires_in"] - 60
        return self.token

    def _ask_metadata(self, method: str, path: str, body: str | None) -> bytes | None:
        """Return the value; None if it does not exist. Raises OSError."""
        path = f"/computeMetadata/v1/instance/{path}"
        status, _, text = self._http(method, self.metadata, path, body, {"Metadata-Flavor": "Google"})
        if status not in (200, 404):
            raise OSError(f"the metadata server answered {status} to {path}")
        return text if status == 200 else None

    def _http(
        self, method: str, base: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, str | None, bytes]:
        import http.client  # not before it has something to ask

        scheme, _, host = base.partition("://")
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(host, timeout=self.timeout_s)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.getheader("Date"), reply.read(4 << 20)
        finally:
            connection.close()


DEFAULT_REPLIES: dict[str, Any] = {  # of any other effect: None
    "call": (0, None, None),
    "job": ("running", None, None),  # without an observation, do not judge
    "busy": True,
    "publish": False,
    "preempted": False,
    "stop": False,
}


def _on_timeout(*_: Any) -> NoReturn:
    raise TimeoutError("it took too long")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: str, limit: int) -> bytes | None:
    """Return the last bytes of a regular file, without blocking and without following a link: the directories belong to the
    job's user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return os.pread(fd, limit, max(0, os.fstat(fd).st_size - limit))  # a FIFO has no offset
    except OSError:
        return None
    finally:
        os.close(fd)


def _metrics(artifacts: str) -> dict[str, Any]:
    """Return numbers and short texts of the newest whole line of metrics.jsonl; anything may be there."""
    path = "" if os.path.islink(artifacts) else f"{artifacts}/metrics.jsonl"
    text = b"\n" + (_read(path, METRICS_BYTES) or b"")
    line = _parsed(text.split(b"\n")[-2])  # the end of a longer line is no object
    metrics: dict[str, Any] = {}
    for name in sorted(line, key="step".__ne__) if isinstance(line, dict) else ():
        value, kind = line[name], type(line[name])
        fits = abs(value) <= sys.float_info.max if kind in (int, float) else kind is str and len(value) <= METRIC_CHARS
        if fits and len(name) <= METRIC_CHARS and len(metrics) < METRICS:
            metrics[name] = value
    return metrics if len(json.dumps(metrics)) <= METRICS_CHARS else {}


def _locked(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def main(argv: list[str]) -> int:
    """`watchdog.py CONFIG`. Returns only when another watchdog is running."""
    with open(argv[1], encoding="utf-8") as file:
        config = json.load(file)
    lock = os.open(os.path.dirname(argv[1]), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    vm = Vm(config)
    while (worker := vm.perform(("worker",))) is None:  # without metadata there is no token either
        time.sleep(2)
    vm.log(f"watching {config['node']} as worker {worker}")
    while True:
        try:
            effects = program(config, worker)
            answer = None
            while True:
                answer = vm.perform(effects.send(answer))
        except Exception as error:
            vm.log(f"starting over after {type(error).__name__}: {error}")
            time.sleep(5)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
