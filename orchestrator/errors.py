"""Errors, named after what the caller should do next, and their exit codes. Everything imports this module; it imports nothing.

Every failure that reaches the user is one of these: one line about what happened, one `hint` about what to do, and the exit
code of the process. Errors of libraries (HTTP, SSH, YAML, SQLite) are translated once, in the package that uses the library.
Assertions are for bugs in tpujob, never for the outside world.

The tree, with exit codes; an error without one has that of its parent:

    TpujobError                     70
      UserError                     64
        JobSpecError
        ConfigError
        NeedsConsent
        UnknownRun
        UnknownLease
      CloudError                    69
        AuthError                   77
        CapacityError
        QuotaError
        BadRequest                  64
          ExternalAddressRefused
          OsLoginRequired
        AlreadyExists
        WrongState
        CloudUnavailable
          NotSent
        UnexpectedReply             70
        SliceLost                   71
          Preempted
        Vanished                    71
          Canceled
      RemoteError                   71
        Unreachable
        TunnelRefused               77
        NoRouteOut
        HostKeyMismatch
        CommandFailed
      PayloadFailed                 1-63, the job's own
        RemoteFunctionError
      DeadlineExceeded              124
      ArtifactError                 65
      DoesNotFit                    72
      NotJudged                     73
      WatchdogNotArmed              74
      TeardownUnproven              75
      Interrupted                   128 + the signal

docs/cli.md explains each code; `cli/dispatching.py` ends the process with it.
"""

import signal
from typing import Any, Literal

# What a refusal of the cloud is about: this place only, or the whole project, wherever it asks. Empty: its kind tells.
Scope = Literal["", "place", "project"]


class TpujobError(Exception):
    """The base of all errors: `message` and `hint` for the user, `exit_code` for scripts."""

    exit_code = 70  #: of the command line
    result: Any = None  #: the RunResult of the run that it ended, if the Python API raises it

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message  #: one line: what happened
        self.hint = hint  #: what to do; None: nothing special
        if hint:
            self.add_note(f"hint: {hint}")  # for the traceback of a Python program; the commands print `hint`
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message


class UserError(TpujobError):
    """The request is wrong; nothing was created."""

    exit_code = 64


class JobSpecError(UserError):
    """One or more mistakes in a job file. `problems` holds lines of the form `file:line: field: what, why, fix`."""

    def __init__(self, problems: list[str], *, hint: str | None = None) -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class ConfigError(UserError):
    """Settings, environment or state directory are unusable."""


class NeedsConsent(UserError):
    """Only deleting an existing resource would help, and the request does not allow it. Ask, then retry with consent."""


class UnknownRun(UserError):
    """No run (or lease, or node) has that name, or several have it."""


class UnknownLease(UserError):
    """The ledger has no such lease: its intent was never recorded, so its slice cannot exist."""


class CloudError(TpujobError):
    """Any failure of a cloud call. `reason` is a stable lower-case word, `details` is what the API attached."""

    exit_code = 69
    reason = "cloud"
    details: Any = None

    def __init__(self, message: str, *, details: Any = None, scope: Scope = "", **kw: Any) -> None:
        super().__init__(message, **kw)
        self.details = details
        self.scope: Scope = scope


class AuthError(CloudError):
    """No usable credentials, or a missing permission. The user must act. Never means that a resource is absent."""

    exit_code = 77
    reason = "auth"


class CapacityError(CloudError):
    """Stockout in this zone: try the next candidate, or wait."""

    reason = "capacity"


class QuotaError(CloudError):
    """A quota is used up: the user must act, or a candidate under another quota can be tried."""

    reason = "quota"


class BadRequest(CloudError):
    """The API refuses this request (type not in zone, bad name, wrong state): a retry is useless."""

    exit_code = 64
    reason = "bad-request"


class ExternalAddressRefused(BadRequest):
    """A policy of the organization forbids workers with external addresses."""

    reason = "external-address-refused"


class OsLoginRequired(BadRequest):
    """A policy of the organization forbids SSH keys in the metadata: OS Login is required."""

    reason = "os-login-required"


class AlreadyExists(CloudError):
    """409: the name is taken. After a retried create it usually means that the first try took effect."""

    reason = "exists"


class WrongState(CloudError):
    """400 FAILED_PRECONDITION or 409 conflict: not possible in the present state; possible later perhaps."""

    reason = "state"


class CloudUnavailable(CloudError):
    """Timeouts, 5xx, rate limits, broken replies: the call may have taken effect. Retry with backoff until a deadline."""

    reason = "unavailable"
    retry_after_s: float | None = None

    def __init__(self, message: str, *, retry_after_s: float | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.retry_after_s = retry_after_s


class NotSent(CloudUnavailable):
    """A call that came too late to leave: it has no effect."""


class UnexpectedReply(CloudError):
    """The API changed, or tpujob has a bug; the reply is in `details`."""

    exit_code = 70
    reason = "unexpected"


class SliceLost(CloudError):
    """The slice is not usable any more, and the job is not the cause. A new attempt may follow if the job allows it.

    `reason` is one of preempted, maintenance, host-failure, unreachable (READY by the API, but SSH is dead), hung, and
    not-begun (a pod could not begin the job).
    """

    exit_code = 71
    reason = "host-failure"
    still_there = False  #: for a moment: the job's work so far can be saved

    def __init__(self, message: str, *, reason: str | None = None, still_there: bool = False, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.reason = reason or self.reason
        self.still_there = still_there


class Preempted(SliceLost):
    """The cloud took the slice away, as it may do with spot capacity."""

    reason = "preempted"


class Vanished(CloudError):
    """The slice was deleted, or its deletion requested, from outside while it was in use."""

    exit_code = 71
    reason = "vanished"


class Canceled(Vanished):
    """The user ended the run: `tpujob cancel`, or `tpujob down` of its slice."""

    reason = "canceled"

    def __init__(self, by: str) -> None:
        super().__init__(f"canceled by `{by}`")


class RemoteError(TpujobError):
    """A worker could not be reached, or a step on it failed."""

    exit_code = 71


class Unreachable(RemoteError):
    """No SSH connection to a worker at present. Retry with a new connection."""


class TunnelRefused(RemoteError):
    """The relay to a worker refuses this user: a role or an API is missing. A retry is useless, unless the VM is new."""

    exit_code = 77
    code: int | None = None  #: the relay's, of its close frame


class NoRouteOut(RemoteError):
    """The setup failed because a worker cannot reach what it downloads from. The network of the slice must change."""


class HostKeyMismatch(RemoteError):
    """The worker presented another host key than the cloud published. Stop: it may be another machine."""


class CommandFailed(RemoteError):
    """A command of tpujob on a worker ended with a non-zero code."""

    def __init__(self, argv: list[str], rc: int, tail: str, *, worker: int = 0) -> None:
        last = tail.strip().splitlines()[-1:] or ["(no output)"]
        super().__init__(f"worker{worker}: {' '.join(argv)} ended with code {rc}: {last[0]}")
        self.argv, self.rc, self.tail, self.worker = argv, rc, tail, worker


class PayloadFailed(TpujobError):
    """The job failed. Its code (1-63; larger ones become 63) is the exit code."""

    MOST = 63  # also for a job whose own code is not known

    def __init__(self, message: str, *, rc: int = MOST, hint: str | None = None, workers: tuple[Any, ...] = ()) -> None:
        super().__init__(message, hint=hint, exit_code=rc if 1 <= rc <= self.MOST else self.MOST)
        self.rc = rc
        self.workers = workers  # a WorkerEnd for each; after the run, `result.workers` has their last lines, too


class RemoteFunctionError(PayloadFailed):
    """A function raised an exception on a worker. All of it is text: the exception itself stays on the worker."""

    type_name: str = ""  #: of the exception, such as "ValueError" or "numpy.linalg.LinAlgError"
    traceback: str = ""
    file: str = ""  #: where the function raised it
    line: int | None = None
    worker: int = 0


class DeadlineExceeded(TpujobError):
    """The job reached `limits.max_duration`."""

    exit_code = 124


class ArtifactError(TpujobError):
    """A result file is missing, differs from the hash in its manifest, was refused, or could not be collected yet."""

    exit_code = 65


class DoesNotFit(TpujobError):
    """A check has found that the program needs more memory than a chip has."""

    exit_code = 72


class NotJudged(TpujobError):
    """A check could not find out whether the program fits. That it does not is not said by this."""

    exit_code = 73


class WatchdogNotArmed(TpujobError):
    """The slice is not able to delete itself on its own, which a detached run needs. It was released."""

    exit_code = 74


class TeardownUnproven(TpujobError):
    """Resources may still be billed. Outranks every other exit code."""

    exit_code = 75


class Interrupted(TpujobError):
    """SIGINT, SIGTERM or SIGHUP: unwind, release, exit with 128 + signal."""

    BASE = 128

    def __init__(self, signum: int, *, by: str = "") -> None:
        cause = by or ("Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name)
        super().__init__(f"interrupted by {cause}", exit_code=self.BASE + signum)
        self.signum = signum


NOT_PROVEN = TeardownUnproven.exit_code  # 75: outranks every other code


def exit_code(error: TpujobError | None, *, unproven: bool = False) -> int:
    """Return the exit code for this error. `unproven`: a slice was released without a proof of its absence."""
    if unproven:
        return NOT_PROVEN
    if isinstance(error, TeardownUnproven):
        return CloudError.exit_code  # it took long, but the absence is proven now
    return error.exit_code if error else 0
