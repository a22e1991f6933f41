"""Errors, named by what the caller should do next.

Every failure that reaches a person is one of these: one line of what happened, one `hint` of what to do, and the exit
code of the process. Foreign errors (HTTP, SSH, YAML, SQLite) are translated once, at the edge that met them. Assertions
are for our own broken promises, never for the world.
"""

from __future__ import annotations

import signal
from typing import Any


class TpujobError(Exception):
    """Something a person should read: `message`, perhaps a `hint`, and the exit code that a script can act on."""

    exit_code = 70
    result: Any = None  # the RunResult of the run that it ended, where the Python API raises it

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message


class UserError(TpujobError):
    """The request itself is wrong; nothing was created."""

    exit_code = 64


class JobSpecError(UserError):
    """One or more mistakes in a job file. `problems` holds lines of the form `file:line: field: what, why, fix`."""

    def __init__(self, problems: list[str], *, hint: str | None = None) -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class ConfigError(UserError):
    """Settings, environment or state directory are unusable."""


class NeedsConsent(UserError):
    """Only deleting what exists would help, and the request does not allow that. Ask, then try again with consent."""


class UnknownRun(UserError):
    """No run (or lease, or node) goes by that name, or several do."""


class UnknownLease(UserError):
    """The ledger holds no such lease: its intent was never written, so nothing of it can exist."""


class CloudError(TpujobError):
    """Any failure of a cloud call. `reason` is a stable lower-case word, `details` what the API attached."""

    exit_code = 69
    reason = "cloud"

    def __init__(
        self, message: str, *, hint: str | None = None, details: Any = None, exit_code: int | None = None
    ) -> None:
        super().__init__(message, hint=hint, exit_code=exit_code)
        self.details = details


class AuthError(CloudError):
    """No usable credentials or a missing permission. A person must act. Never means that a resource is absent."""

    exit_code = 77
    reason = "auth"


class CapacityError(CloudError):
    """Stockout in this zone: try the next candidate, or wait."""

    reason = "capacity"


class QuotaError(CloudError):
    """A quota is used up: a person must act, or another quota bucket be tried."""

    reason = "quota"


class BadRequest(CloudError):
    """The API refuses this very request (type not in zone, bad name, wrong state): repeating it is useless."""

    exit_code = 64
    reason = "bad-request"


class AlreadyExists(CloudError):
    """409: the name is taken. After a retried create this usually means that the first try had its effect."""

    reason = "exists"


class WrongState(CloudError):
    """400 FAILED_PRECONDITION or 409 conflict: not possible in the present state; later it may be."""

    reason = "state"


class CloudUnavailable(CloudError):
    """Timeouts, 5xx, rate limits, broken replies: unknown whether it had an effect. Retry with backoff to a deadline."""

    reason = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.retry_after_s = retry_after_s


class UnexpectedReply(CloudError):
    """The API changed or we have a bug; the reply is attached in `details`."""

    exit_code = 70
    reason = "unexpected"


class SliceLost(CloudError):
    """The slice cannot be worked on any more, through no fault of the job. A new attempt may be made if the job allows it.

    `reason` tells: preempted, maintenance, host-failure, unreachable (the API says READY, SSH is dead), hung.
    """

    exit_code = 71
    reason = "host-failure"

    def __init__(self, message: str, *, reason: str | None = None, still_there: bool = False, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.reason = reason or self.reason
        self.still_there = still_there  # for a moment yet: what the job has made so far can be saved


class Preempted(SliceLost):
    """The slice was taken away, as spot capacity may be."""

    reason = "preempted"


class Vanished(CloudError):
    """Somebody else deleted the slice, or asked for it, while it was in use."""

    exit_code = 71
    reason = "vanished"


class RemoteError(TpujobError):
    """A worker could not be reached or a step on it failed."""

    exit_code = 71


class Unreachable(RemoteError):
    """No SSH connection to a worker, for now. Retry with a new connection."""


class HostKeyMismatch(RemoteError):
    """The worker showed another host key than the one the cloud published. Stop: somebody else may be answering."""


class CommandFailed(RemoteError):
    """A command of ours on a worker ended with a non-zero code."""

    def __init__(self, argv: list[str], rc: int, tail: str, *, worker: int = 0) -> None:
        last = tail.strip().splitlines()[-1:] or ["(no output)"]
        super().__init__(f"worker{worker}: {' '.join(argv)} ended with code {rc}: {last[0]}")
        self.argv, self.rc, self.tail, self.worker = argv, rc, tail, worker


class PayloadFailed(TpujobError):
    """The job's own failure. Its code (1-63; larger ones become 63) is the exit code."""

    def __init__(self, message: str, *, rc: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=rc if 1 <= rc <= 63 else 63)
        self.rc = rc


class DeadlineExceeded(TpujobError):
    """The job reached `limits.max_duration`."""

    exit_code = 124


class ArtifactError(TpujobError):
    """A promised file is missing, has another hash than its manifest says, was refused, or could not be brought home yet."""

    exit_code = 65


class WatchdogNotArmed(TpujobError):
    """The slice could not be trusted to delete itself, which a detached run needs. It was released."""

    exit_code = 74


class TeardownUnproven(TpujobError):
    """Resources may still be billed. Outranks every other exit code."""

    exit_code = 75


class Interrupted(TpujobError):
    """SIGINT, SIGTERM or SIGHUP: unwind, release, exit with 128 + signal."""

    def __init__(self, signum: int, *, by: str = "") -> None:
        words = by or ("Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name)
        super().__init__(f"interrupted by {words}", exit_code=128 + signum)
        self.signum = signum
