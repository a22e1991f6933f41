"""Who may know whom: the import rules of docs/architecture.md, checked on the source itself.

Imports inside functions and under TYPE_CHECKING count too: knowing a type is knowing the module.
"""

import ast
import functools
import graphlib
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.count import code_lines
from tests import ROOT

HOUSES = ("orchestrator", "cloud_tpu_emulator", "tpujob")
# Lines of code of the modules that have more than 300.
LONGER = {"orchestrator/promise/watchdog.py": 524}

IN_FUNCTIONS = 57  # imports inside functions: this number may only shrink

VALUES = {"text", "catalog", "errors", "capacity", "promise.lease", "traits", "job"}
PROMISE = {"promise", "system", "orchestrator"} | {"text", "catalog", "errors", "capacity"}
HOSTS = {"hosts", "promise", "system", "text", "errors", "vm.files.sensitive", "vm.agent.stream"}
HOSTS |= {"vm.buckets.manifest"}  # what workers have saved is read from here, and what of it is work counts alike
OF_THE_VM = {"vm.buckets.cloud_storage", "vm.buckets.data_objects", "vm.buckets.upload"}
OF_THE_VM |= {"vm.files.beside"}  # which files a pattern of `collect --work` means
OF_THE_VM |= {"vm.environment.tools"}  # pip and uv are set up alike on both sides
PLACES = {"places", "settings"} | OF_THE_VM | VALUES | HOSTS
RUN = {"run"} | PLACES
CHECK = {"check", "cloud_tpu_emulator.vms.pythons"} | PLACES
REPORT = {"report", "check"} | RUN
NOTIFY = {"notify"} | REPORT
QUEUE = {"queue"} | NOTIFY

# The parts of `orchestrator` and what each may import of the others, from the bottom up.
MAY_IMPORT = {
    "": set(),
    "errors": set(),
    "text": {"text"},
    "catalog": {"catalog"},
    "system": {"errors", "system"},
    "capacity": {"capacity", "catalog", "errors", "text"},
    "promise": PROMISE,
    "traits": {"promise.lease"},
    "job": {"system.lazy"} | VALUES,
    "gcloud_config": {"errors"},
    "settings": {"gcloud_config"} | VALUES,
    "hosts": HOSTS,
    "places": PLACES,
    "run": RUN,
    "check": CHECK,
    "report": REPORT,
    "notify": NOTIFY,
    "queue": QUEUE,
    "api": {"api", "tpujob", "cloud_tpu_emulator.daemon.control"} | QUEUE,
    "cli": {"cli", "api", "report", "text", "errors", "catalog", "system.lazy"},
    "drill": {"drill", "cloud_tpu_emulator.daemon.control", "text", "errors"},
    "vm": {"vm"},
    "emulator": {"cloud_tpu_emulator.pytest_plugin"},  # an old name of it
}
# What is promised knows nothing of what keeps it, and only what measures knows it.
NARROWER = {"drill.bounds": set(), "promise.lease": {"promise.lease", "text", "errors"}, "promise.watchdog": set()}
# Commands that may import more than the rest of `cli`: they run what is not the client's.
WIDER = {
    "cli.commands.emulator": {"cloud_tpu_emulator.daemon.control"},
    "cli.commands.guarantee.drill": {"drill"},
    "cli.commands.guarantee.smoke": {"drill.smoke", "promise.guardian_process", "traits"},
}
# The rooms of the emulator and what each may import of the others, from the bottom up (cloud_tpu_emulator/__init__.py).
_MODEL = {"faults", "model"}
_VMS = _MODEL | {"wire", "vms"}
EMULATOR_MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "faults": {"faults"},
    "model": _MODEL,
    "wire": _MODEL | {"wire"},
    "vms": _VMS,
    "api": _VMS | {"api"},
    "relay": _VMS | {"api", "relay"},
    "daemon": _VMS | {"api", "relay", "daemon"},
    "__main__": {"daemon", "model"},
    "fixture": {"daemon"},
    "pytest_plugin": {"fixture"},
}
# What it shares with the product: facts about this machine and about Cloud TPU, and one checksum.
EMULATOR_SHARES = {"catalog", "system", "vm.buckets.crc32c", "orchestrator"}
PURE_ROOMS = ("orchestrator/text", "orchestrator/capacity", "orchestrator/job", "orchestrator/promise/lease")

# What computes and nothing else. A module that is not here (os, time, socket, random, datetime, …) may wait or look outside.
PURE = {
    *("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "typing", "math", "statistics"),
    *("bisect", "re", "string", "textwrap", "unicodedata", "difflib", "shlex", "json", "hashlib"),
    *("base64", "urllib.parse", "ipaddress", "fnmatch", "operator"),
    *("pathlib.PurePath", "pathlib.PurePosixPath", "tomllib", "yaml", "pydantic", "pydantic_core", "regex"),
}
OF_PURE = {"units.py": {"datetime.UTC", "datetime.datetime"}}  # a time that it is given, in words
OF_PURE |= {"pod.py": {"posixpath.normpath"}}  # of a path in a container
LOOKS_OUTSIDE = {"open", "input", "print", "__import__", "exec", "eval"}


def test_every_part_of_orchestrator_has_its_row_in_the_table() -> None:
    assert {part_of(path) for path in sources("orchestrator")} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in ("orchestrator", "payload")])
def test_there_are_sources_to_look_at(path: str) -> None:
    assert len(list(sources(path))) > 3


def test_imports_of_orchestrator_go_down() -> None:
    assert list(problems_of_layers()) == []


def test_the_emulator_shares_only_small_modules_with_the_product_and_its_rooms_import_downwards() -> None:
    rooms = {path: part_of(path) for path in sources("cloud_tpu_emulator")}
    assert set(rooms.values()) == set(EMULATOR_MAY_IMPORT)
    wrong = [
        f"{path} imports {name}"
        for path, room in rooms.items()
        for name in imports(read(path), package_of(path))
        if not is_within(
            name.removeprefix("orchestrator.").removeprefix("cloud_tpu_emulator.").removesuffix(".__version__"),
            {"orchestrator": EMULATOR_SHARES, "cloud_tpu_emulator": EMULATOR_MAY_IMPORT[room]}.get(
                root_of(name), {name}
            ),
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("of", ["file", "folder"])
def test_no_files_and_no_folders_import_each_other_in_a_circle(of: str) -> None:
    """A file right in `orchestrator/` counts as a folder of its own."""
    modules = {module_of(path): path for house in HOUSES for path in sources(house)}
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for module, path in modules.items():
        for name in imports(read(path), package_of(path)):
            there = next(
                (each for each in (name, name.rpartition(".")[0]) if each in modules and read(modules[each])), None
            )
            if there is not None:
                ends = [
                    each if of == "file" or modules[each].parent == Path("orchestrator") else modules[each].parent
                    for each in (module, there)
                ]
                if ends[0] != ends[1]:
                    sorter.add(*map(str, ends))
    sorter.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("house", HOUSES)
def test_a_folder_has_at_most_twelve_modules(house: str) -> None:
    found = Counter(str(path.parent) for path in sources(house) if path.name != "__init__.py")
    assert [(folder, count) for folder, count in found.items() if count > 12] == []


def test_a_module_has_at_most_three_hundred_lines() -> None:
    """Of code: without docstrings and comments. The list of exceptions may only shrink."""
    found = {str(path): lines for house in HOUSES for path in sources(house) if (lines := code_lines(read(path))) > 300}
    assert {name: lines for name, lines in found.items() if lines > LONGER.get(name, 300)} == {}
    assert set(found) == set(LONGER)


def test_commands_import_at_the_top_of_their_modules() -> None:
    """The table of commands is without them: nothing is gained by an import inside a function."""
    inside = [
        f"{path}: {ast.unparse(statement)}"
        for path in sources("orchestrator/cli/commands")
        for function in ast.walk(ast.parse(read(path)))
        if isinstance(function, ast.FunctionDef)
        for statement in ast.walk(function)
        if isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    assert inside == []


def test_an_import_inside_a_function_has_its_reason_beside_it_and_there_are_not_many() -> None:
    """The reason is a comment on its line: what takes long to import, what is seldom needed, what may not be there."""
    inside = [(path, *each) for house in HOUSES for path in sources(house) for each in imports_in_functions(read(path))]
    assert [f"{path}:{line}" for path, line, reason in inside if not reason] == []
    assert len(inside) == IN_FUNCTIONS, "fewer: lower the number; more: is there a lazy package (`system/lazy.py`)?"


@pytest.mark.parametrize(("source", "found"), [
    ("def f():\n    import a  # slow", [(2, "slow")]), ("def f():\n    import a  # type: ignore", [(2, "")]),
    ("def f():\n    from a import (  # an extra\n        b,\n    )", [(2, "an extra")]), ("import a", []),
    ("class A:\n    async def f(self):\n        def g():\n            import a", [(4, "")]),
    ("if TYPE_CHECKING:\n    import a", []),
])  # fmt: skip
def test_imports_inside_functions_are_found_with_their_reasons(source: str, found: list[tuple[int, str]]) -> None:
    assert list(imports_in_functions(source)) == found


def test_pure_rooms_import_only_what_computes() -> None:
    wrong = [
        f"{path}: {name}"
        for room in PURE_ROOMS
        for path in sources(room)
        for name in imports(read(path), package_of(path))
        if not is_within(name, PURE | OF_PURE.get(path.name, set()) | {"orchestrator"})
    ]
    assert wrong == []


def test_pure_rooms_call_nothing_that_reaches_a_file_or_a_terminal() -> None:
    wrong = [
        f"{path}:{call.lineno}: {call.func.id}"
        for room in PURE_ROOMS
        for path in sources(room)
        for call in ast.walk(ast.parse(read(path)))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in LOOKS_OUTSIDE
    ]
    assert wrong == []


def test_what_runs_on_the_vm_needs_the_standard_library_and_itself() -> None:
    asked = {"chips.py": "libtpu"}  # by the job's own Python, which may have none
    wrong = [
        f"{path}: {name}"
        for path in [*sources("orchestrator/vm"), Path("orchestrator/promise/watchdog.py")]
        for name in imports(read(path), package_of(path))
        if name.partition(".")[0] not in {*sys.stdlib_module_names, asked.get(path.name)}
        and not is_within(name, {"orchestrator.vm"})
    ]
    assert wrong == []


def test_what_runs_on_the_vm_has_only_relative_imports_because_its_package_has_another_name_there() -> None:
    wrong = [
        f"{path}: {name}"
        for path in sources("orchestrator/vm")
        for node in ast.walk(ast.parse(read(path)))
        for name in absolute_names(node)
        if name.startswith("orchestrator")
    ]
    assert wrong == []


def test_orchestrator_knows_nothing_of_the_payload() -> None:
    assert [path for path in sources("orchestrator") if knows(path, "payload")] == []


def test_the_payload_knows_neither_orchestrator_nor_any_cloud() -> None:
    allowed = {"payload", "numpy", "torch", "torch_xla", "torch_tpu"}
    wrong = [
        f"{path}: {name}"
        for path in sources("payload")
        for name in imports(read(path), package_of(path))
        if name.partition(".")[0] not in sys.stdlib_module_names and not is_within(name, allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize(("source", "package", "names"), [
    ("import os.path, json", "a.b", ["os.path", "json"]),
    ("from orchestrator import catalog, errors", "a", ["orchestrator.catalog", "orchestrator.errors"]),
    ("from . import process_tree", "orchestrator.vm", ["orchestrator.vm.process_tree"]),
    ("from .frames import reply", "orchestrator.vm.files", ["orchestrator.vm.files.frames.reply"]),
    ("from ..clouds.x import y", "orchestrator.vm", ["orchestrator.clouds.x.y"]),
    ("def f():\n    import socket", "a", ["socket"]),
    ("if TYPE_CHECKING:\n    from a.b import C", "a", ["a.b.C"]),
    ("import_module('orchestrator.clouds.x')", "a", ["orchestrator.clouds.x"]),
])  # fmt: skip
def test_every_way_to_import_is_seen(source: str, package: str, names: list[str]) -> None:
    assert list(imports(source, package)) == names


@pytest.mark.parametrize(("part", "name", "fine"), [
    ("promise.ledger.ledger", "promise.lease.lease.Lease", True), ("promise.ledger.ledger", "places.tpu.api.client", False),
    ("promise.lease.lease", "promise.ledger.ledger", False), ("promise.lease.lease", "settings", False),
    ("promise.release", "hosts.fleet.fleet", False), ("hosts.fleet.effects", "promise.effects.base", True),
    ("job.sweep", "traits", True), ("job.sweep", "places", False), ("run.program", "report.messages", False),
    ("report.results", "run.progress", True), ("run.program", "promise.release", True),
    ("cli.console", "cloud_tpu_emulator.daemon.control", False),
    ("cli.commands.emulator.stop", "cloud_tpu_emulator.daemon.control", True),
    ("cli.commands.jobs.run", "cloud_tpu_emulator.daemon.control", False),
    ("cli.commands.guarantee.drill", "drill.runner", True), ("cli.commands.guarantee.gc", "drill.runner", False),
    ("cli.console", "promise.release", False), ("cli.console", "promise.ledger.ledger", False),
    ("cli.console", "hosts.fleet.fleet", False), ("api.client", "cli.console", False), ("api.client", "promise.release", True),
    ("report.results", "cloud_tpu_emulator.daemon.control", False), ("drill.runner", "cloud_tpu_emulator.daemon.control", True),
    ("drill.runner", "promise.release", False), ("drill.runner", "drill.bounds", True), ("cli.console", "drill.bounds", False),
    ("queue.store", "places.google.objects", True), ("queue.store", "api.client", False),
    ("notify.sender", "queue.store", False),
    ("promise.release", "drill.bounds", False), ("vm.agent.serve", "drill.bounds", False),
    ("drill.bounds", "promise.lease.cloud_api", False), ("drill.bounds", "cloud_tpu_emulator.model.records", False),
    ("text.names", "json", True),
])  # fmt: skip
def test_the_table_says_what_the_page_says(part: str, name: str, fine: bool) -> None:
    full = name if root_of(name) in ("json", "cloud_tpu_emulator") else f"orchestrator.{name}"
    assert may_import(f"orchestrator.{part}", full) is fine


# -- reading the source ---------------------------------------------------------------------------------------------


def problems_of_layers() -> Iterator[str]:
    for path in sources("orchestrator"):
        for name in imports(read(path), package_of(path)):
            if not may_import(module_of(path), name):
                yield f"{path} imports {name}"


def may_import(module: str, name: str) -> bool:
    """`orchestrator.x.y` is fine for a module whose part may import x, or x.y. Other packages are not this rule's business."""
    inner, imported = module.removeprefix("orchestrator").removeprefix("."), name.removeprefix("orchestrator.")
    if root_of(name) not in HOUSES or imported in ("orchestrator", "__version__"):
        return True
    allowed = next((rule for room, rule in NARROWER.items() if is_within(inner, {room})), MAY_IMPORT[root_of(inner)])
    return is_within(imported, allowed.union(*(more for room, more in WIDER.items() if is_within(inner, {room}))))


def root_of(module: str) -> str:
    return module.partition(".")[0]


def is_within(name: str, allowed: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


def knows(path: Path, package: str) -> bool:
    return any(is_within(name, {package}) for name in imports(read(path), package_of(path)))


@functools.cache
def imports(source: str, package: str) -> tuple[str, ...]:
    """Full names of everything that the source imports; of `from a import b`, `a.b`, because b may be a module."""
    return tuple(_imports(source, package))


def _imports(source: str, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        yield from absolute_names(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_in_functions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each, and the comment there that says why; empty: none does."""
    functions = (
        each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lines = {
        each.lineno
        for function in functions
        for each in ast.walk(function)
        if isinstance(each, ast.Import | ast.ImportFrom)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    for line in sorted(lines):
        yield line, re.sub(r"#\s*(type: ignore(\[.*?\])?|noqa.*)?\s*", "", comments.get(line, ""))


def absolute_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def sources(folder: str) -> Iterator[Path]:
    """The Python files of a folder, relative to the root of the repository."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT)


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def package_of(path: Path) -> str:
    return ".".join(path.parent.parts)


def module_of(path: Path) -> str:
    """Return `orchestrator.cli.main` for `orchestrator/cli/main.py`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def part_of(path: Path) -> str:
    """Return cli for `orchestrator/cli/commands/jobs/run.py`, errors for `orchestrator/errors.py`, '' for the package."""
    inner = path.with_suffix("").parts[1:]
    return "" if inner == ("__init__",) else inner[0]
