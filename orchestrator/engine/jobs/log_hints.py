"""Why a job failed, where the end of its log says it: a file that stayed here, a missing module, CUDA, a keyboard.

Only what is certain is said of a path: it exists on this machine, and a rule left it out, or it lies outside of `code:`.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from orchestrator.core.lease.run_and_attempt import LOCAL, RunRecord
from orchestrator.core.text.terminal import clean
from orchestrator.errors import UserError
from orchestrator.remote.shipping.ignore import OWN, Rules
from orchestrator.remote.shipping.links import reach_of

TAIL_BYTES, TAIL_LINES = 64 << 10, 200
MOST, MOST_WORKERS, MOST_CHILDREN = 3, 4, 50

_MISSING = re.compile(
    r"no such file|not found|not exist|doesn't exist|(can't|cannot|could not|couldn't|unable to) (open|find|load|access|read)"
    r"|not a local folder|incorrect path",
    re.IGNORECASE,
)
_PATHS = re.compile(
    r"""(['"`])(?P<quoted>.+?)\1|(?P<named>[^\s:'"`]+): No such file|(?P<word>[^\s'"`,;:=()\[\]<>]*[/.][^\s'"`,;:=()\[\]<>]*)"""
)
_SYSTEM = re.compile(r"/(usr|s?bin|lib\w*|etc|proc|sys|dev|run)/")
_SCRIPT = re.compile(r'File "([^"]+)/[^/"]+", line')
_MODULE = re.compile(r"No module named '?([\w.]+)")
_CUDA = re.compile(
    r"not compiled with CUDA|No CUDA GPUs|Found no NVIDIA driver|CUDA driver|on a CUDA device|libcuda|nvidia-smi: .*not found"
)
NO_CUDA = (
    "a TPU has no CUDA: the device is `torch_xla.device()`, and `map_location='cpu'` loads what a GPU has saved "
    "(docs/your-own-script.md)"
)
NO_KEYBOARD = "nobody can type into a job: give what it asks for as an argument, or write `echo yes | …` before it"
# Modules of packages that have another name.
PACKAGES = {"cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image"}
PACKAGES |= {"yaml": "pyyaml", "bs4": "beautifulsoup4", "dotenv": "python-dotenv", "dateutil": "python-dateutil"}
PACKAGES |= {"attr": "attrs", "tensorflow_datasets": "tensorflow-datasets", "google.cloud": "google-cloud-storage"}
PACKAGES |= {
    "hydra": "hydra-core",
    "Levenshtein": "levenshtein",
    "fitz": "pymupdf",
    "git": "gitpython",
    "serial": "pyserial",
}
PACKAGES |= {"distutils": "setuptools", "pkg_resources": "setuptools<81", "mpl_toolkits": "matplotlib"}


def hint(run: RunRecord, workers: Sequence[int], otherwise: str | None) -> str | None:
    """Return what the logs of these workers, which failed, say about the cause, followed by the hint that holds otherwise."""
    directory, hints = Path(run.directory, "logs"), dict[str, str]()
    code = run.spec.values.get("code")
    place = Path(run.job_path).absolute().parent
    logs = [_tail(directory / f"worker{worker}.log") for worker in list(workers)[:MOST_WORKERS]]
    if not any(logs):
        return otherwise
    with suppress(UserError, OSError):  # such as a rule that was changed meanwhile, and is wrong
        shipped = _Shipped(run, (place / code).resolve() if isinstance(code, str) else None, logs)
        for line in (line for lines in logs for line in reversed(lines)):
            for key, text in shipped.hints(line):
                hints.setdefault(key, text)
    return "; ".join(filter(None, (*islice(hints.values(), MOST), otherwise))) or None


def _tail(log: Path) -> list[str]:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        return [clean(line) for line in file.read(TAIL_BYTES).splitlines()[-TAIL_LINES:]]
    return []


@dataclass
class _Shipped:
    """What the run shipped. `root`: of its code, None without any."""

    run: RunRecord
    root: Path | None
    logs: list[list[str]]
    bases: list[Path] = field(
        init=False
    )  # to which a path may be relative: where the job starts, and where its scripts are
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        root = self.root or Path("/")
        scripts = (found[1] for lines in self.logs for line in lines for found in _SCRIPT.finditer(line))
        moved = re.findall(r"\bcd (\S+)", str(self.run.spec.command))
        self.bases = list(dict.fromkeys([root, *(root / self._here(each) for each in (*moved, *scripts))]))
        if self.root is not None:
            self.rules = Rules.at(root, gitignore=True)

    def hints(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield what this line says, each with what is said once of it."""
        if "EOFError: EOF when reading a line" in line:
            yield NO_KEYBOARD, NO_KEYBOARD
        if self.run.cloud != LOCAL and _CUDA.search(line):
            yield NO_CUDA, NO_CUDA
        if found := _MODULE.search(line):
            yield from self._module(found[1])
        elif _MISSING.search(line):
            for each in _PATHS.finditer(line):
                said = (each["quoted"] or each["named"] or each["word"]).rstrip(".")
                for base in self.bases:
                    if (told := self._path(said, base / self._here(said))) is not None:
                        yield told
                        break

    def _here(self, said: str) -> str:
        """Return a path of a worker's working directory as it is relative to the code; others as they are."""
        return re.sub(rf"^.*/{re.escape(self.run.id)}-\d+/work(/|$)", "", said)

    def _path(self, said: str, path: Path) -> tuple[str, str] | None:
        """Return why this path, which the log names as `said`, is not on the workers; None: it is, or it is not known why."""
        path = Path(os.path.normpath(path))
        if not path.exists() or _SYSTEM.match(str(path)) or self.root is None:
            return None
        real, reach = path.resolve(), reach_of(self.root)
        inside = [each for each in (path, real) if each.is_relative_to(self.root) and each != self.root]
        for each in inside:
            if (told := self._left_out(said, each)) is not None:
                return told
        if inside and said.startswith("/") and self._here(said) == said:
            name = inside[0].relative_to(self.root)
            return (
                said,
                f"`{said}` is a path of this machine; on a worker it is `{name}`, in the directory where the job starts",
            )
        if real.is_relative_to(self.root):
            return None
        if (
            inside
            and real.is_relative_to(reach)
            and not Rules.at(reach, gitignore=True).verdict_of(reach, str(real.relative_to(reach)))[0].left_out
        ):
            return None  # a link leads there
        return said, f"`{said}` exists here, outside of `code:`, and was not shipped; copy it into {self.root}"

    def _left_out(self, said: str, path: Path) -> tuple[str, str] | None:
        assert self.root is not None
        name = path.relative_to(self.root).as_posix()
        verdict, above = self.rules.verdict_of(self.root, name)
        if not verdict.left_out and path.is_dir() and not path.is_symlink():
            for child in islice(sorted(path.iterdir()), MOST_CHILDREN):
                if self.rules.verdict_of(self.root, f"{name}/{child.name}")[0].left_out:
                    return self._left_out(f"{said.rstrip('/')}/{child.name}", child)
        if not verdict.left_out:
            return None
        itself = f"{name}{'/' * path.is_dir()}"
        parent = f"{name.rpartition('/')[0]}/" if above not in (name, f"{name}/") else itself
        lines = [each for each in (parent, itself) if not self._with(each).verdict_of(self.root, name)[0].left_out]
        line = f"!{(lines or [itself])[0]}"
        return line, f"`{said}` exists here and was left out by {verdict.rule}; the line `{line}` in {OWN} ships it"

    def _with(self, wanted: str) -> Rules:
        return self.rules.having(f"!{wanted}")

    def _module(self, module: str) -> Iterator[tuple[str, str]]:
        top = module.partition(".")[0]
        for place in (self.root, self.root and self.root / "src", self.root and self.root.parent) if self.root else ():
            for path in (place / top, place / f"{top}.py"):
                if path.exists():
                    name = os.path.relpath(path, self.root)
                    where = os.path.relpath(place, self.root)
                    yield self._path(name, path) or (
                        top,
                        f"`{name}` is shipped; `env: {{PYTHONPATH: {where}}}` lets Python find it",
                    )
                    return
        if top not in sys.stdlib_module_names or top in PACKAGES:
            package = PACKAGES.get(".".join(module.split(".")[:2])) or PACKAGES.get(top, top)
            yield top, f"`{top}` is not installed on the workers; name `{package}` in `requirements:`"
