"""The check of a job before it is paid for: what the TPU compiler says of the program of its first steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.session.events import relative
from orchestrator.check.record import checked_text
from orchestrator.errors import DoesNotFit, NotJudged, PayloadFailed, TpujobError, UserError
from orchestrator.system import whole_file
from orchestrator.system.lazy import Later
from orchestrator.traits import traits_on

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.check import check as checks
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.report.page import check_page
else:
    check_page = Later("orchestrator.report.page.check_page")  # jinja2
    checks = Later("orchestrator.check.check")  # `plan` needs little of it

MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """What a check has found; as text, the lines of `tpujob check`."""

    verdict: str  #: "fits", "does not fit", "not judged" or "failed"
    directory: Path  #: of check.json, check.html, and program.log: what the program printed
    shape: Mapping[str, Any]  #: check.json
    lines: tuple[tuple[str, str], ...]  #: a word and a sentence each
    exit_code: int  #: of the command: 0, 72 (does not fit), 73 (not judged); of a program that failed, its own

    @property
    def fits(self) -> bool:
        """Whether everything that was seen fits on a chip. False also for what could not be judged."""
        return self.exit_code == 0

    def raise_unless_fits(self) -> None:
        """Raise DoesNotFit, NotJudged or PayloadFailed, with the reason."""
        if not self.fits:
            kinds: dict[str, type[TpujobError]] = {"does not fit": DoesNotFit, "not judged": NotJudged}
            why = f"{self.verdict}: {'; '.join(self.shape['why'])}"
            kind = kinds.get(self.verdict)
            raise PayloadFailed(why, rc=self.exit_code) if kind is None else kind(why)

    def __str__(self) -> str:
        return "\n".join(f"{word:<12} {line}" for word, line in self.lines)

    def __repr__(self) -> str:
        return f"<check of {self.shape['job']}: {self.verdict}>"


def recorded(session: Session, spec: JobSpec, path: Path, env: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the check.json of this very program; None: it has none, or the job has no TPU."""
    return checks.recorded(session, spec, path, env) if traits_on(spec.on).tpus else None


def told(spec: JobSpec, found: Mapping[str, Any] | None) -> str:
    """Return what `recorded` found as a sentence for the plan; "" for a job without a TPU."""
    if not traits_on(spec.on).tpus:
        return ""
    if found is None:
        return "not checked: `tpujob check` says whether the program fits the chips, and costs nothing"
    return f"checked: {checked_text(found)}"


def require(session: Session, spec: JobSpec, path: Path, env: Mapping[str, str]) -> None:
    """Check a job, unless this very program was found to fit. Raises DoesNotFit, NotJudged, PayloadFailed, UserError."""
    found = recorded(session, spec, path, env)
    if found is None or found["verdict"] != "fits":
        check(session, spec, path, env, steps=checks.STEPS, within_s=checks.WITHIN_S).raise_unless_fits()


def check(
    session: Session, spec: JobSpec, path: Path, env: Mapping[str, str], *, steps: int, within_s: float
) -> CheckResult:
    """Check a job, whose variables are resolved; see `Client.check`."""
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"steps: {steps} is not a number from 1 to {MOST_STEPS:,}")
    made = checks.check(session, spec, path, env, checks.Wanted(steps, within_s))
    code = made.found.exit_code
    if made.found.verdict == "failed":
        code = PayloadFailed("", rc=made.shape["exit_code"] or PayloadFailed.MOST).exit_code
    page = made.directory / checks.PAGE
    whole_file.replace(page, check_page.check_page(made.shape, made.lines, session.reporter.secrets.hide))
    return CheckResult(
        made.found.verdict, made.directory, made.shape, (*made.lines, ("written", str(relative(page)))), code
    )
