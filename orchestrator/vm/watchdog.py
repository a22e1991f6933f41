"""The switch: runs on every worker from boot on, and deletes its own slice through the API when nobody claims it any more.

One file, standard library only, shipped inside the slice's startup-script. `program` decides; it is what the simulator
runs, too. `Vm` performs its effects on a real (or emulated) TPU VM. It never deletes a slice whose `tpujob-lease-id` label is
not its own, never without a fresh look at the labels, and once decided it repeats until it dies of it. On spot it also passes
on the notice that the VM is about to be taken away: the job gets its SIGTERM while there is time for a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, NoReturn

    Effects = Generator[tuple[Any, ...], Any, Any]

RUN, HOLD, DETACHED = MODES = ("run", "hold", "detached")
COMING = ("CREATING", "STARTING")  # states in which nobody can have logged in yet
ANSWERS = (200, 403, 404)  # after anything else nothing is known, and nothing is deleted
REACHED = (*ANSWERS, 429)  # it was the API that answered: there is a way to it
PROVERS = 3  # so many workers prove, each in its turn, that all may delete: the service account is one
APART = 60  # of a stagger: so much later than the one before it does a worker look for the first time
WORDS = 10  # guest attributes may be written so often in a minute, which is a beat
RARELY = 5  # the other workers look so much less often than the first
SOON = 4  # and everybody so much more often while the end is near, or an answer is missing
MAX_STAGGER = 10  # workers beyond this one wait no longer than it does
NOTICE_S = 30.0  # about as long before the end it comes; the job has all of it
NOTES = 3  # so often it is said to whoever looks from outside: a word may be lost


class Countdown:
    """How much longer something may last, in seconds during which it was watched.

    A longer gap between two looks was an outage, or the VM was paused: it does not count, and a grace follows it.
    """

    def __init__(self, total_s: float, max_gap_s: float, grace_s: float) -> None:
        self.total_s, self.max_gap_s, self.grace_s = total_s, max_gap_s, grace_s
        self.restart()

    def restart(self) -> None:
        self.left_s: float = self.total_s
        self.seen_at: float | None = None

    def watch(self, now: float) -> None:
        """It lasts still. Only for a look that succeeded: one that failed says nothing."""
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
    """For ever. The effects and their answers:

    ("clock",) -> seconds since boot, ("call", method, path, body) -> (status, json or None, the server's unix time or None)
    ("heartbeat",) -> text or None, ("job",) -> ("none"|"running"|"ended", ended so long ago or None, exit code or None)
    ("busy",) -> bool, ("publish", key, value) -> bool, ("log", text), ("sleep", seconds)
    ("preempted",) -> bool, ("stop", grace in seconds) -> was it asked to, or is there none running?
    """
    return Watchdog(config, worker).run()


class Watchdog:
    """What one worker's switch knows, and what it makes of it."""

    def __init__(self, config: dict[str, Any], worker: int) -> None:
        self.config, self.worker, self.first = config, worker, worker == 0
        self.path = "/v2/" + config["node"]
        self.queue = ""  # the request of which our node came: deleted with its node it leaves nothing behind
        self.heartbeat_s: float = config["heartbeat_s"]
        self.poll_s: float = config["poll_s"]
        self.grace_s: float = config["grace_s"]
        self.period_s: float = self.poll_s if self.first else RARELY * self.poll_s
        self.tick_s: float = min(self.heartbeat_s, self.period_s) if self.first else self.period_s
        # The claim: what the create call said, until the labels say more.
        self.mode, self.claimed_until, self.deadline = config["mode"], config["claimed_until"], config["deadline"]
        self.now = 0.0  # seconds since boot
        self.status = 0  # of the last look at the node; 0: no answer
        self.state = ""
        self.server_now: float | None = None  # what the server's clock said at the last look, if it did
        self.boot_time: float | None = None  # when, by the server's clock, our own was zero
        self.read = self.foreign = self.route = self.asked = False
        self.may_get: bool | None = None  # None: nobody has said yet
        self.may_delete: bool | None = None
        self.guest_attributes: dict[str, Any] | None = None
        self.next_poll = self.prove_at = 0.0
        self.next_word = self.written_at = self.again_s = 0.0  # about what is published
        self.retry_s: float = self.heartbeat_s / 12
        self.pause_s: float = self.retry_s
        self.unproven_s: float = self.retry_s
        self.said: str | None = None
        # Far more often than a beat: of a notice that comes half a minute before the end every second counts.
        self.listen_s: float = max(0.25, self.retry_s) if config.get("spot") else float("inf")
        self.preempted = self.stopped = False
        self.noticed_at: int | None = None
        self.noted, self.note_at = 0, 0.0
        self.beat: str | None = None
        self.looked = self.beaten = False
        self.job: tuple[str, float | None, int | None] = ("none", None, None)
        own, polls = 3 * max(self.heartbeat_s, self.tick_s), 3 * self.poll_s
        self.silence = Countdown(config["ttl_s"], 3 * self.heartbeat_s, self.grace_s)
        self.ending = Countdown(config["linger_s"], own, self.grace_s)
        self.idling = Countdown(config["idle_s"] or 0.0, own, self.grace_s)
        self.expiry = Countdown(self.grace_s, polls, self.grace_s)
        self.turn = Countdown(min(worker, MAX_STAGGER) * config["stagger_s"], polls, 0.0)

    def run(self) -> Effects:
        yield from self.look()
        # Not all at once: of hundreds of workers that boot together, the API would refuse most.
        self.next_poll = (
            self.now + (0 if self.worker < PROVERS else self.worker % 256) * self.config["stagger_s"] / APART
        )
        self.prove_at = self.now + self.worker * self.config["stagger_s"]
        while True:
            yield from self.look()
            yield from self.heed()
            yield from self.look_at_job()
            urgent = self.local_reason() is not None or self.left_s() <= 0
            reason = None
            if urgent or self.now >= self.next_poll:
                yield from self.ask()
                reason = self.verdict()
                if reason is not None:
                    yield from self.delete(reason)
                elif self.status == 200 and self.should_prove() and self.now >= self.prove_at and not self.foreign:
                    yield from self.prove()
                self.plan_next_poll()
                self.asked = True
            if self.asked:
                yield from self.publish()
            yield ("sleep", min(self.pause(urgent or reason is not None), self.listen_s))

    # -- what is seen --

    def look(self) -> Effects:
        """At the clock and the sign of life, also after every call, since a call may take long."""
        self.now = yield ("clock",)
        if not self.heeds_beats:
            return
        text = yield ("heartbeat",)
        if self.looked and text is not None and text != self.beat:  # what was there before us may be of any age
            self.beaten = True
            self.silence.restart()
        if self.state in COMING:
            self.silence.restart()
        self.looked, self.beat = True, self.beat if text is None else text
        self.silence.watch(self.now)

    def heed(self) -> Effects:
        """The notice of preemption, once it is there: first the job, then whoever looks at us from outside."""
        if not self.config.get("spot") or (self.stopped and self.noted == NOTES):
            return
        self.preempted = self.preempted or (yield ("preempted",))
        if not self.preempted:
            return
        if not self.stopped:
            self.stopped = yield ("stop", NOTICE_S)
            yield ("log", f"this VM is about to be taken away: the job was told to stop: {self.stopped}")
        if self.noticed_at is None and self.boot_time is not None:
            self.noticed_at = round(self.boot_time + self.now)
        if self.noted == NOTES or self.now < self.note_at:
            return
        if (yield ("publish", "notice", {"v": self.config["v"], "preempted": True, "at": self.noticed_at})):
            self.noted, self.note_at = self.noted + 1, self.now + self.heartbeat_s / 6

    def look_at_job(self) -> Effects:
        if self.mode == DETACHED:
            before, self.job = self.job[0], (yield ("job",))
            self.count_ending(before)
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

    def ask(self) -> Effects:
        """The API about the node: its labels and the server's clock are the truth about the claim."""
        self.status, node, self.server_now = yield ("call", "GET", self.path, None)
        yield from self.look()
        if self.server_now is not None:
            self.boot_time = self.server_now - self.now
        labels = _labels(node, self.config["node"]) if self.status == 200 else None
        if labels is not None:
            self.may_get, self.state = True, str(node.get("state", ""))
            self.queue = _queue(node, self.config["node"])
            self.take(labels)
        elif self.status == 200:
            self.status = 0  # something answered, and it was not the Cloud TPU API
        elif self.status == 403:
            self.may_get = False
        self.route = self.route or self.status in REACHED

    def take(self, labels: dict[str, Any]) -> None:
        self.foreign = labels.get("tpujob-lease-id") != self.config["lease_id"]
        if self.foreign:
            return
        mode = labels.get("tpujob-mode")
        if mode in MODES and mode != self.mode:
            self.mode = mode
            for countdown in (self.silence, self.ending, self.idling):
                countdown.restart()
        self.deadline = _seconds(labels.get("tpujob-deadline"), self.deadline)
        # Unreadable: then only the deadline counts.
        claimed_until = _seconds(labels.get("tpujob-claimed-until"), self.deadline)
        if self.read and claimed_until > self.claimed_until:
            self.silence.restart()  # whoever renews it lives, even where SSH is cut
        self.claimed_until, self.read = claimed_until, True
        if self.server_now is not None:
            self.expiry.watch(self.now) if self.server_now > claimed_until else self.expiry.restart()

    # -- what follows from it --

    def local_reason(self) -> str | None:
        """Why the slice should go, by what is seen on this VM."""
        if self.foreign:
            return None
        # Of what `up` brings nobody shows signs of life: its labels say that it is held, and only who reads them knows.
        if (
            self.mode == RUN
            and self.first
            and self.silence.over
            and (self.status == 200 or self.config.get("heartbeats", True))
        ):
            return f"no sign of life for {self.silence.total_s:.0f} s"
        if self.mode == DETACHED and self.ending.over and not self.attended(self.grace_s):
            return "no job was started" if self.job[0] == "none" else "the job ended"
        if self.mode == HOLD and self.config["idle_s"] and self.first and self.idling.over:
            return f"idle for {self.idling.total_s:.0f} s"
        return None

    @property
    def heeds_beats(self) -> bool:
        """Who collects the results of a detached run beats on every worker: each would end it after a job that failed."""
        return self.first or self.mode == DETACHED

    def attended(self, within_s: float) -> bool:
        return self.heeds_beats and self.beaten and self.silence.total_s - self.silence.left_s < within_s

    def left_s(self) -> float:
        """Until the deadline, as far as is known. Only the server's own word decides, but this says when to ask for it."""
        if self.boot_time is None or self.foreign:
            return float("inf")
        left_s: float = self.deadline - self.boot_time - self.now
        return left_s

    def verdict(self) -> str | None:
        """Why to delete the slice now, right after a look at it."""
        if self.status not in ANSWERS:
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
        if self.status == 200 and self.expiry.over and not self.attended(self.silence.total_s):
            return "its lease ended and nobody renewed it"
        return None

    def plan_next_poll(self) -> None:
        if self.should_prove() or not self.route:  # at boot soon, later less often
            wait_s, self.unproven_s = self.unproven_s, min(2 * self.unproven_s, self.period_s)
            if self.may_get:
                wait_s = max(wait_s, self.prove_at - self.now)
        elif self.status not in REACHED or self.expiry.running or self.turn.running:
            wait_s = self.poll_s / SOON  # often enough that a few lost answers in a row do not look like an outage
        else:
            wait_s = self.period_s
        self.next_poll = self.now + wait_s

    def pause(self, urgent: bool) -> float:
        if self.turn.running and not self.turn.over:
            return max(self.retry_s, min(self.poll_s / SOON, self.turn.left_s))
        if urgent:
            pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, self.heartbeat_s / 2)
            return pause_s
        self.pause_s, self.said = self.retry_s, None
        collecting = self.mode == DETACHED and self.ending.over  # somebody is, or it would have been deleted
        tick_s = self.heartbeat_s if collecting else self.tick_s
        waits = [tick_s, self.next_poll - self.now, self.left_s()]
        waits += [self.next_word - self.now] if self.again_s < self.tick_s else []  # later it is said in passing
        waits += [countdown.left_s for countdown in (self.silence, self.ending, self.expiry) if countdown.running]
        return max(self.retry_s, min(wait for wait in waits if wait > 0))

    # -- what is done --

    def delete(self, reason: str) -> Effects:
        """Success is our own death: an accepted delete may fail yet, so `run` comes here again until then.

        The request goes with its node. If it does not, or not at once, the node alone goes: that is what is billed.
        """
        status = 0
        if self.queue:
            status = yield from self.send_delete(f"/v2/{self.queue}?force=true")
        if status != 200 or self.said is not None:
            status = yield from self.send_delete(self.path)
        if f"{reason} ({status})" != self.said:
            self.said = f"{reason} ({status})"
            yield ("log", f"{reason}: deleting {self.config['node']} was answered with {status}")

    def should_prove(self) -> bool:
        """The permission is that of one account, the same on all workers: a few of them ask for all, the others see to it
        that they reach the API. If the first one is dead, or is refused for asking too often, the next one's turn comes."""
        return self.worker < PROVERS and not (self.may_get and self.may_delete)

    def prove(self) -> Effects:
        """That we may delete: for a name that never exists a 404 says so."""
        yield from self.send_delete(self.path + "-probe")

    def send_delete(self, path: str) -> Effects:
        status, _, _ = yield ("call", "DELETE", path, None)
        if status in ANSWERS:
            self.may_delete = status != 403
        yield from self.look()
        return status

    def publish(self) -> Effects:
        """Again and again, ever less often: a write may be lost though it was accepted. Never more often than is allowed."""
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
        news = record != self.guest_attributes
        least_s = self.heartbeat_s / WORDS
        if news and self.next_word > self.now + least_s:
            self.next_word = self.written_at + least_s
        if self.now < self.next_word:
            return
        said = yield ("publish", "watchdog", record)
        self.written_at = self.now
        if not said:
            self.next_word = self.now + least_s
            return
        self.again_s = min(2 * self.again_s, RARELY * self.poll_s) if not news else self.heartbeat_s / 3
        self.next_word = self.now + self.again_s
        if news:
            self.guest_attributes = record
            yield ("log", f"published {json.dumps(record)}")


def _labels(node: Any, name: str) -> dict[str, Any] | None:
    """None: this is not our node's description."""
    if not isinstance(node, dict) or not str(node.get("name")).endswith("/" + name.rpartition("/")[2]):
        return None
    labels = node.get("labels", {})
    return labels if isinstance(labels, dict) else None


def _queue(node: dict[str, Any], name: str) -> str:
    """The queued resource of the node's own name, or nothing: one of another name may hold more than our node."""
    full = str(node.get("queuedResource") or "")
    ours = full.endswith("/queuedResources/" + name.rpartition("/")[2]) and full.startswith("projects/")
    return full if ours and "?" not in full and ".." not in full else ""


def _seconds(text: Any, otherwise: float) -> float:
    readable = isinstance(text, str) and text.isascii() and text.isdigit() and 9 <= len(text) <= 11
    return int(text) if readable else otherwise


class Vm:
    """The effects, for real. None of them raises, and each has an end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.timeout_s = max(2.0, min(15.0, config["heartbeat_s"] / 4))
        self.emulated = os.environ.get("TPUJOB_WATCHDOG_DIR")
        self.directory = self.emulated or "/run/tpujob"
        self.api = os.environ.get("TPUJOB_TPU_API", "https://tpu.googleapis.com")
        self.metadata = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}"
        self.token, self.token_until = "", 0.0
        self.failed = ""
        if not self.api.startswith("https:"):
            sys.modules["ssl"] = None  # type: ignore[assignment]  # http.client does without it: 4 MB for each worker
        signal.signal(signal.SIGALRM, _too_long)

    def perform(self, effect: tuple[Any, ...]) -> Any:
        name, *arguments = effect
        if name == "sleep":
            return time.sleep(arguments[0])
        try:
            signal.setitimer(signal.ITIMER_REAL, 2 * self.timeout_s)  # timeouts of single reads add up
            try:
                return getattr(self, name)(*arguments)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception as error:
            text = f"{name} failed: {type(error).__name__}: {error}"
            if name != "call" and text != self.failed:  # calls fail in every outage; the program knows what to do then
                self.failed = text
                self.log(text)
            return NOTHING[name]

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
            self.token_until = 0.0  # revoked early: ask for another one, once
        from email.utils import mktime_tz, parsedate_tz  # http.client has imported it

        date = parsedate_tz(said or "")
        return status, _parsed(text), None if date is None else float(mktime_tz(date))

    def heartbeat(self) -> str | None:
        text = _read(f"{self.directory}/heartbeat", 256)
        return None if text is None else text.decode("utf-8", "replace")

    def job(self) -> tuple[str, float | None, int | None]:
        """Of the newest `main` phase; files and locks as in phase.py."""
        phase = self._main_phase()
        if phase is None:
            return "none", None, None
        running = _locked(f"{phase}/lock")
        ended = _parsed(_read(f"{phase}/exit.json", 1 << 16) or b"")  # after the lock: it is there before that drops
        if isinstance(ended, dict):
            return "ended", self._ago_s(ended), ended.get("rc")
        if running:
            return "running", None, None
        return (
            ("none" if _read(f"{phase}/started.json", 1) is None else "ended"),
            None,
            None,
        )  # it was killed, or we rebooted

    def _ago_s(self, ended: dict[str, Any]) -> float | None:
        """How long ago, by the clock that nobody sets; None if this VM has restarted since."""
        ended_s, boot = float(ended["ended_boot_s"]), _read("/proc/sys/kernel/random/boot_id", 64)
        if boot is None or ended["boot"] != boot.decode().strip():
            return None
        return max(0.0, self.clock() - ended_s)

    def stop(self, grace_s: float) -> bool:
        """As supervisor.py is asked to by anybody. It runs as the job's user, who need only be able to read the file."""
        phase = self._main_phase()
        if phase is None or not _locked(f"{phase}/lock") or _read(f"{phase}/stop.json", 1) is not None:
            return True
        draft = ".stop.watchdog"
        directory = os.open(phase, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if draft in os.listdir(directory):  # noqa: PTH208 - of a switch that was killed here
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
        home = os.environ["HOME"] if self.emulated else os.path.expanduser("~tpujob")  # noqa: PTH111
        phases = []
        for attempt in _names(f"{home}/tpujob/runs"):
            lock = f"{home}/tpujob/runs/{attempt}/main/lock"
            if os.path.exists(lock):  # noqa: PTH110 (pathlib would double the start-up time)
                phases.append((os.stat(lock).st_mtime, lock[: -len("/lock")]))  # noqa: PTH116
        return max(phases)[1] if phases else None

    def busy(self) -> bool:
        """Somebody is logged in, or something that was started over SSH lives."""
        wanted = b"\0TPUJOB_WATCHDOG_DIR=" + os.fsencode(self.emulated) + b"\0" if self.emulated else b"\0"
        for pid in _names("/proc"):
            environment = b"\0" + (_read(f"/proc/{pid}/environ", 1 << 20) or b"") + b"\0" if pid.isdigit() else b""
            if b"\0SSH_CONNECTION=" in environment and wanted in environment:
                return True
        return False

    def publish(self, key: str, value: Any) -> bool:
        return self._ask_metadata("PUT", f"guest-attributes/tpujob/{key}", json.dumps(value)) is not None

    def worker(self) -> int:
        """Which worker this is; where nothing says so, one with the more careful role."""
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
        """None: there is no such thing."""
        path = f"/computeMetadata/v1/instance/{path}"
        status, _, text = self._http(method, self.metadata, path, body, {"Metadata-Flavor": "Google"})
        if status not in (200, 404):
            raise OSError(f"the metadata server answered {status} to {path}")
        return text if status == 200 else None

    def _http(
        self, method: str, base: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, str | None, bytes]:
        import http.client

        scheme, _, host = base.partition("://")
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(host, timeout=self.timeout_s)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.getheader("Date"), reply.read(4 << 20)
        finally:
            connection.close()


NOTHING: dict[str, Any] = {
    "call": (0, None, None),
    "job": ("running", None, None),  # what cannot be seen is not judged
    "busy": True,
    "publish": False,
    "preempted": False,
    "stop": False,
    "worker": None,
    "heartbeat": None,
    "log": None,
}


def _too_long(*_: Any) -> NoReturn:
    raise TimeoutError("it took too long")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208
    except OSError:
        return []


def _read(path: str, limit: int) -> bytes | None:
    """Its first bytes, never waiting, never through a link: the directories belong to the job's user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


def _locked(path: str) -> bool:
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def main(argv: list[str]) -> int:
    """`watchdog.py CONFIG`. Returns only when another switch runs already."""
    import fcntl

    with open(argv[1], encoding="utf-8") as file:  # noqa: PTH123
        config = json.load(file)
    lock = os.open(os.path.dirname(argv[1]), os.O_RDONLY)  # noqa: PTH120
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
