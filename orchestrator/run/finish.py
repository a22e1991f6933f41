"""The end that every run shares: its error is captured and explained from its log, its slice released, its outcome recorded.

Only what is certain is said of a path: it exists on this machine, and a rule left it out, or it lies outside of `code:`.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from orchestrator.errors import Canceled, PayloadFailed, TpujobError, UserError
from orchestrator.hosts.fleet.effects import Disconnect
from orchestrator.hosts.shipping.ignore import OWN, Rules
from orchestrator.hosts.shipping.links import reach_of
from orchestrator.hosts.shipping.tree import is_secret
from orchestrator.promise.effects.base import Make, MaskSignals, Now, Program, Unlock
from orchestrator.promise.lease.changes import AttemptEnded, Leased
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.run_and_attempt import AttemptState, RunRecord, job_file
from orchestrator.promise.obligations import release_owed
from orchestrator.promise.release import latest_lease, try_record
from orchestrator.promise.standing import check_attempt
from orchestrator.run.progress import JobProgress, Outcome
from orchestrator.text.terminal import clean
from orchestrator.traits import is_emulated, traits_of


async def capture(progress: JobProgress, work: Program[None], *, shield: bool = True) -> None:
    """Do the work; what ends it early becomes the error and the state of the run. A bug must not leave a slice behind.

    The ledger decides whether the run was canceled: then any other error is a consequence. `shield`: signals wait from then on.
    """
    try:
        try:
            await work
            progress.state = AttemptState.RUNNING if progress.detached else AttemptState.SUCCEEDED
        except TpujobError as error:
            progress.fail(error)
        if shield:
            await MaskSignals()
        await check_canceled(progress)
    except Canceled as error:
        progress.detached = False  # no job goes on
        progress.fail(error)
    except Exception as error:
        progress.fail_with_bug(error)


async def check_canceled(progress: JobProgress) -> None:
    """Raise Canceled if the user has ended the run, or the slice on which it runs.

    An error of the ledger raises nothing: it must not delay the release.
    """
    lease = progress.lease or progress.owed.lease
    for each in (lease,) if lease is not None else tuple(progress.owed.losers):
        if (by := (await latest_lease(each)).canceled_by) is not None:
            raise Canceled(by)
    await _check_attempt(progress)


async def _check_attempt(progress: JobProgress) -> None:
    """Raise Canceled if the ledger says that the user has ended the attempt; an error of it raises nothing."""
    try:
        await check_attempt(progress.attempt.id)
    except Canceled:
        raise
    except TpujobError:
        pass  # the record of the end reports what is wrong with the ledger


async def finish(progress: JobProgress, capabilities: Capabilities) -> Outcome:
    """Release the slices that are owed, record the end, and return the outcome.

    A ledger that cannot be written is reported, and changes neither result nor exit code.
    """
    owed, lease = progress.owed, progress.lease
    if progress.detached:
        owed.lease = None  # the job on the VM has the claim, not this process
    if progress.crew is not None:
        await Disconnect(progress.crew)  # heartbeats end with the claim: if no delete works, the watchdog deletes
    if owed.lease is not None or owed.losers:
        await release_owed(owed, capabilities, "the run ended" if progress.error is None else progress.error.message)
    progress.spans["release"] = owed.release_s
    ended_at = await Now()
    if lease is None and owed.released is not None:
        progress.lease = owed.released.lease  # it never became READY, but it was there
        await try_record(Leased(progress.attempt.id, ended_at, progress.lease.id))
    if progress.detached:
        if lease is not None:
            await Unlock(lease.id)
    else:
        if isinstance(progress.error, PayloadFailed):
            await Make(partial(_explain, progress, progress.error))
        await try_record(_ended(progress, ended_at))
        try:  # the first record of an end counts: the ledger and the exit code must not differ
            await _check_attempt(progress)
        except Canceled as error:
            if not progress.is_bug:  # which must be seen
                progress.fail(error)
    await Unlock(progress.attempt.id)
    return progress.outcome(ended_at)


def _explain(progress: JobProgress, error: PayloadFailed) -> None:
    """Add to the error what the logs of the workers say about the cause."""
    failed = [each.worker for each in error.workers if each.failed]
    with suppress(Exception):  # a hint costs no result
        error.hint = hint(progress.run, failed or [0], error.hint)
    error.__notes__ = [f"hint: {error.hint}"]


def _ended(progress: JobProgress, at: float) -> AttemptEnded:
    error = progress.error
    if not isinstance(error, PayloadFailed):
        return AttemptEnded.by(progress.attempt.id, at, progress.state, error)
    return AttemptEnded.by(progress.attempt.id, at, progress.state, error, rc=error.rc, workers=error.workers)


TAIL_BYTES, TAIL_LINES, LINE_CHARS = 64 << 10, 200, 1000
MOST, MOST_WORKERS, MOST_BASES, MOST_CHILDREN = 3, 4, 8, 50

_MISSING = re.compile(
    r"no such file|not found|not exist|doesn't exist|(can't|cannot|could not|couldn't|unable to) (open|find|load|access|read)"
    r"|not a local folder|incorrect path",
    re.IGNORECASE,
)
_WORD = r"[^\s'\"`,;:=()\[\]<>]*"
_PATHS = re.compile(rf"""(['"`])(.+?)\1|([^\s:'"`]+): No such file|({_WORD}[/.]{_WORD})""")
_SYSTEM = re.compile(r"/(usr|s?bin|lib\w*|etc|proc|sys|dev|run|opt|snap|tmp|var)/|.*/(site-packages|worker\d+)/")
_SCRIPT = re.compile(r'File "([^"]+)/[^/"]+", line')
_MODULE = re.compile(r"No module named '?([\w.]+)")
_PACKAGE = re.compile(r"No package metadata was found for ([\w.-]+)")
_CUDA = re.compile(
    r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|CUDA driver|a CUDA device|Error: .*libcuda|nvidia-smi: .*not found"
)
NO_CUDA = "a TPU has no CUDA: the device is `torch_xla.device()` (docs/your-own-script.md)"
ONE_MACHINE = (
    "emulated workers share the ports of this machine, and each TPU VM has its own; for `xla://`, `export "
    "MASTER_PORT=$((20000 + RANDOM))` in `bash -c` gives each worker another one here"
)
LEND = ", or lend this machine's: `tpujob emulator up --lend-torch`"
NO_KEYBOARD = "a job reads no keyboard: give what it asks for as an argument, or write `echo yes | …` before it"
# Modules of packages that have another name.
PACKAGES: dict[str, str] = dict(
    re.findall(
        r"(\S+):(\S+)",
        "PIL:pillow attr:attrs bs4:beautifulsoup4 cv2:opencv-python-headless dateutil:python-dateutil distutils:setuptools "
        "dotenv:python-dotenv fitz:pymupdf git:gitpython google.cloud:google-cloud-storage hydra:hydra-core "
        "mpl_toolkits:matplotlib pkg_resources:setuptools<81 skimage:scikit-image sklearn:scikit-learn yaml:pyyaml "
        "jax:jax[tpu] torch_xla:torch_xla[tpu]",
    )
)


def hint(run: RunRecord, workers: Sequence[int], otherwise: str | None) -> str | None:
    """Return what the logs of these workers, which failed, say about the cause, followed by the hint that holds otherwise."""
    logs = [_tail(Path(run.directory, "logs", f"worker{worker}.log")) for worker in list(workers)[:MOST_WORKERS]]
    said = _Said(run, [line for lines in logs for line in lines])
    hints: dict[str, str] = {}
    for line in dict.fromkeys(line for lines in logs for line in reversed(lines)):
        # Rules that are wrong now, or a path that nothing can have.
        with suppress(UserError, OSError, RuntimeError, ValueError):
            for key, text in said.hints(line):
                hints.setdefault(key, text)
    return "; ".join(filter(None, (*islice(filter(None, hints.values()), MOST), otherwise))) or None


def _tail(log: Path) -> list[str]:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        return [clean(line)[:LINE_CHARS] for line in file.read(TAIL_BYTES).splitlines()[-TAIL_LINES:]]
    return []


class _Said:
    """Judges what a log names by what the run shipped."""

    def __init__(self, run: RunRecord, lines: Sequence[str]) -> None:
        self.run, code = run, run.spec.values.get("code")
        self.traits, self.emulated = traits_of(run.cloud), is_emulated(run.cloud)
        self.root = (Path(run.job_path).absolute().parent / code).resolve() if isinstance(code, str) else None
        self._rules: dict[Path, Rules] = {}
        # To what a path may be relative: where the job starts, where it goes, and where its scripts are.
        scripts = (found[1] for line in lines for found in _SCRIPT.finditer(line))
        places = dict.fromkeys(["", *re.findall(r"\bcd (\S+)", str(run.spec.command)), *map(self._here, scripts)])
        self.bases = [self.root / place for place in islice(places, MOST_BASES)] if self.root else []

    def hints(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield what this line says, each with what is said once of it."""
        if "EOFError: EOF when reading a line" in line:
            yield NO_KEYBOARD, NO_KEYBOARD
        if self.traits.tpus and _CUDA.search(line):
            yield NO_CUDA, NO_CUDA
        if self.emulated and re.search("EADDRINUSE|Address already in use", line):
            yield ONE_MACHINE, ONE_MACHINE
        if found := _MODULE.search(line):
            yield self._of_module(found[1]) or ("", "")
        elif found := _PACKAGE.search(line):
            yield self._of_package(found[1])
        elif _MISSING.search(line):
            for each in _PATHS.finditer(line):
                said = self._here((each[2] or each[3] or each[4]).rstrip("."))
                told = (self._of_path(said, base / said) for base in self.bases if re.search(r"\w", said))
                yield next(filter(None, told), ("", ""))

    def _here(self, said: str) -> str:
        """Return a path of a worker's working directory as it is relative to the code; others as they are."""
        return re.sub(rf"^.*/{re.escape(self.run.id)}-\d+/work(/|$)", "", said)

    def _rule(self, root: Path, path: Path) -> tuple[str, str]:
        """Return the rule that left out a path of this tree, "" if none did, and the entry on the way to it that it names."""
        if root not in self._rules:
            self._rules[root] = Rules.at(root, gitignore=True)
        verdict, entry = self._rules[root].verdict_of(root, path.relative_to(root).as_posix())
        return verdict.rule if verdict.left_out else "", entry

    def _of_path(self, said: str, path: Path) -> tuple[str, str] | None:
        """Return why this path, which the log names as `said`, is not on the workers; None: it is, or it is not known why."""
        path, root = Path(os.path.normpath(path)), self.root
        if root is None or not path.exists() or _SYSTEM.match(said) or (said[:1] == "/" and len(path.parts) < 4):
            return None
        if is_secret(path):
            return None
        real, reach = path.resolve(), reach_of(root)
        inside = [each for each in (path, real) if each.is_relative_to(root) and each != root]
        if found := next(filter(None, (self._left_out(said, each, root) for each in inside)), None):
            return found
        if real.is_relative_to(root) or (inside and real.is_relative_to(reach) and not self._rule(reach, real)[0]):
            return None  # a link leads there
        return said, f"`{said}` exists here, outside of `code:`, and was not shipped; copy it into {root}"

    def _left_out(self, said: str, path: Path, root: Path) -> tuple[str, str] | None:
        rule, entry = self._rule(root, path)
        if not rule and path.is_dir() and not path.is_symlink():
            children = islice(sorted(path.iterdir()), MOST_CHILDREN)
            child = next((each for each in children if self._rule(root, each)[0]), None)
            return self._left_out(f"{said.rstrip('/')}/{child.name}", child, root) if child else None
        if not rule:
            return None
        name = path.relative_to(root).as_posix()
        lines = [f"!{name}{'/' * path.is_dir()}"]
        if entry.rstrip("/") != name:  # the directory that it is in may be what is needed
            lines.insert(0, f"!{name.rpartition('/')[0]}/")
        beside = islice(path.parent.iterdir(), MOST_CHILDREN) if path.is_file() and "/" in name else ()
        if sum(bool(self._rule(root, each)[0]) for each in beside) > 1:  # of which the next run would miss another one
            lines.insert(-1, f"!{name.rpartition('/')[0]}/*")
        rules = self._rules[root]
        line = next((each for each in lines if not rules.having(each).verdict_of(root, name)[0].left_out), lines[-1])
        return line, f"`{said}` exists here and was left out by {rule}; the line `{line}` in {OWN} ships it"

    def _of_module(self, module: str) -> tuple[str, str] | None:
        top = module.partition(".")[0]
        for place in (self.root, self.root / "src") if self.root else ():
            if (found := place / f"{top}.py").is_file() or any((found := place / top).glob("*.py")):
                where = "." if place == self.root else "src"
                finds = f"`--env PYTHONPATH={where}` lets Python find it"
                beside = f"`{top}` was shipped, but is not beside the script: {finds}"
                why = self._of_path(found.relative_to(self.root or place).as_posix(), found)
                return why or ((top, beside) if module == top else None)
        name = ".".join(module.split(".")[:2])
        package = PACKAGES.get(name)
        if package is None and (module != top or top in sys.stdlib_module_names):
            return None  # of a package that is there, whose version may be another one
        return self._absent(name, package or name)

    def _of_package(self, name: str) -> tuple[str, str]:
        """Return what installs a package that asks for its own version: where its code is that of the job, `.`."""
        project = self.root and self.root / "pyproject.toml"
        text = project.read_text(errors="replace") if project and project.is_file() else ""
        own = re.search(rf"(?im)^name\s*=\s*['\"]{re.sub('[-_.]+', '[-_.]+', name)}['\"]", text)
        return self._absent(name, "." if own else name)

    def _absent(self, name: str, package: str) -> tuple[str, str]:
        where = "requirements.txt" if job_file(self.run.job_path) is None else "`requirements:`"
        lent = LEND if name in ("torch", "torch_xla") and self.emulated else ""
        return name, f"`{name}` is not installed on the workers; name `{package}` in {where}{lent}"
