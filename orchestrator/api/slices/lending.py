"""A slice for the length of a `with` block: created when the block begins, proven absent when it ends.

The program (`run.lend`) runs in a thread of its own beside the block. It keeps the claim on the slice; when
the block ends, it releases the slice. When the process dies in the block, the guardian does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal

from orchestrator import catalog, errors
from orchestrator.api.session.session import Session
from orchestrator.api.session.sleep_inhibitor import awake
from orchestrator.api.slices.up import SliceOptions, plan_of
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned
from orchestrator.places.vms import plans, vms_of
from orchestrator.promise.effects.interpreter import HEARD_WITHIN_S
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.obtain.candidate_search import Search
from orchestrator.promise.standing import check_slice
from orchestrator.run.lend import LendRequest, Loan, lend
from orchestrator.text import names

EXEC_S = 600.0
AT_ONCE = 32  # workers that run a command at the same time


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command on one worker left: its exit code, and up to 1 MiB each of what it wrote."""

    worker: int
    exit_code: int
    output: str
    errors: str  #: stderr


class Slice:
    """A TPU slice, READY from the beginning of a `with` block and proven absent at its end.

    Leaving the block raises TeardownUnproven if the slice may still be billed. It raises the error that ended the slice early
    (SliceLost, Vanished, DeadlineExceeded) unless the block itself ends with an exception. Ctrl-C while the slice is created or
    released does not stop the release; the third one leaves it to the guardian.

    Example::

        with tpujob.Client().slice("v5e-8", zone="us-central1") as s:
            for done in s.exec(["hostname"]):
                print(done.worker, done.exit_code, done.output)
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], options: SliceOptions) -> None:
        self._open_session = open_session
        self._options = options
        self._pid = os.getpid()
        self._given_back = threading.Event()
        self._begun = threading.Event()  # the block may begin, or there is no slice
        self._session: Session | None = None
        self._lease: Lease | None = None
        self._fleet: Fleet | None = None
        self._loan: Loan | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # -- in the block --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of its node in the API."""
        return self._there[0].name.node

    @property
    def zone(self) -> str:
        """The zone that had capacity."""
        return self._there[0].name.zone

    @property
    def accelerator(self) -> str:
        """The accelerator type, by the API's name: `v5litepod-16`."""
        return self._there[0].accelerator_type

    @property
    def hosts(self) -> tuple[str, ...]:
        """The address of each worker, in their order."""
        return tuple(worker.host for worker in self._there[1].workers)

    def exec(
        self,
        argv: str | Sequence[str],
        workers: Literal["all"] | int = "all",
        *,
        timeout_s: float = EXEC_S,
        check: bool = False,
    ) -> list[CommandResult]:
        """Run a command on every worker at once, or on one, and return the results in the order of the workers.

        `argv` is one program with its arguments, or a text for bash. It runs in the home directory. With `check`, a worker
        on which it does not end with 0 raises CommandFailed. Raises Unreachable if a worker does not answer, or the command
        has not ended after `timeout_s` seconds (it may go on there); SliceLost, Vanished or DeadlineExceeded if the slice is
        gone; UserError outside the block.
        """
        words = ["bash", "-c", argv] if isinstance(argv, str) else list(argv)
        if not words:
            raise errors.UserError("there is no command")
        fleet = self._there[1]
        indexes = [worker.index for worker in fleet.workers] if workers == "all" else [workers]
        try:
            with ThreadPoolExecutor(min(len(indexes), AT_ONCE), thread_name_prefix="exec") as pool:
                done = list(pool.map(partial(_run, fleet, words, timeout_s), indexes))
        except (errors.Unreachable, FanOutAbandoned) as error:
            raise self._loss(error) from error
        failed = next((each for each in done if each.exit_code != 0), None)
        if check and failed is not None:
            raise errors.CommandFailed(words, failed.exit_code, failed.errors or failed.output, worker=failed.worker)
        return done

    def _loss(self, error: errors.RemoteError) -> BaseException:
        """Return why a worker does not answer: how the slice was lost, where it was, else the error itself."""
        if isinstance(error, FanOutAbandoned):  # by the end of the lending, which knows
            assert self._thread is not None
            self._thread.join()
            return self._error() or error
        try:
            with self._open_session() as session:
                session.run(check_slice(self._there[0]))
        except (errors.SliceLost, errors.Vanished) as lost:
            return lost
        except errors.TpujobError:
            pass
        return error

    @property
    def _there(self) -> tuple[Lease, Fleet]:
        if self._lease is None or self._fleet is None:
            raise errors.UserError("the slice exists only inside its `with` block")
        if os.getpid() != self._pid:
            raise errors.UserError("a forked child cannot use the slice of its parent")
        if self._loan is not None:
            raise self._loan.error or errors.UserError("the slice was given back")
        return self._lease, self._fleet

    # -- around the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Slice:
        if self._thread is not None:
            raise errors.UserError("a slice is for one `with` block; ask the client for another one")
        # Not a daemon: the end of the program waits for the release. `_returned` notices that it has ended.
        self._thread = threading.Thread(target=self._serve, name="tpujob-slice")
        self._thread.start()
        try:
            while not self._begun.wait(HEARD_WITHIN_S):
                pass
        except BaseException:
            self._given_back.set()
            self._interrupt()
            self._end()
            raise
        if self._lease is None:
            self._end()
            raise self._error() or errors.TpujobError("there is no slice, and no error")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = self._end()
        own = self._error()
        if isinstance(own, errors.TeardownUnproven) or (own is not None and error is None and interrupted is None):
            raise own from error
        if own is not None and error is not None:
            error.add_note(f"the slice: {own}")
        if interrupted is not None and error is None:
            raise interrupted

    def _end(self) -> KeyboardInterrupt | None:
        """Give the slice back and wait for the proof. Returns the first Ctrl-C that came meanwhile."""
        self._given_back.set()
        first = None
        thread = self._thread
        while thread is not None and thread.is_alive():
            try:
                thread.join(HEARD_WITHIN_S)
            except KeyboardInterrupt as interrupted:
                first = first or interrupted
                self._interrupt()
        return first

    def _interrupt(self) -> None:
        if self._session is not None:
            self._session.interrupt(signal.SIGINT)

    def _error(self) -> BaseException | None:
        if self._failure is not None or self._loan is None:
            return self._failure
        if self._loan.owed.unproven:
            assert self._loan.owed.released is not None
            node = self._loan.owed.released.lease.name.node
            return errors.TeardownUnproven(f"{node} is not proven absent, and may still be billed")
        return self._loan.error

    # -- in the thread beside it ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with self._open_session() as session:
                self._session = session
                if self._given_back.is_set():  # before there was a session to interrupt
                    session.interrupt(signal.SIGINT)
                self._loan = _lend(session, self._options, self._lent, self._returned)
        except BaseException as error:
            self._failure = error
        finally:
            self._begun.set()

    def _lent(self, lease: Lease, fleet: Fleet) -> None:
        self._lease, self._fleet = lease, fleet
        self._begun.set()

    def _returned(self, wait_s: float) -> bool:
        return self._given_back.wait(wait_s) or not threading.main_thread().is_alive()


def _run(fleet: Fleet, words: Sequence[str], timeout_s: float, index: int) -> CommandResult:
    done = fleet.run(index, words, timeout_s=timeout_s)
    return CommandResult(index, done.rc, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def _lend(
    session: Session, options: SliceOptions, lent: Callable[[Lease, Fleet], None], returned: Callable[[float], bool]
) -> Loan:
    assert options.name is not None and options.accelerator is not None, "a slice that is lent has both"
    if problem := names.job_name_problem(options.name):
        raise errors.UserError(f"{options.name!r} {problem}", hint="give another name")
    session.announce()
    places = () if options.zone is None else tuple(place.strip() for place in options.zone.split(","))
    plan = plan_of(session, options, catalog.canonical(options.accelerator), places)
    wish = AccessWish(via=options.via)
    for line in plans.lines_of(session, plan, wish=wish):
        session.reporter.notice("plan", line)
    session.recover()
    drafter = plans.drafter(
        session, plan, wish, vms_of(session.target.kind).watched, handle=options.name, purpose=Purpose.RUN
    )
    search = Search(drafter.make(), wait_s=options.wait_s, drafter=drafter)
    with ExitStack() as stack:
        stack.enter_context(awake(session, "a slice is in use"))
        loan = session.on_cloud(partial(lend, LendRequest(search, lent, returned)))
    if loan.owed.released is not None:
        session.note(loan.owed.released)
    session.forget_drafts(drafter.made)
    return loan
