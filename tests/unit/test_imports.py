"""Who may know whom: the import rules of docs/architecture.md, checked on the source itself.

Imports inside functions and under TYPE_CHECKING count too: knowing a type is knowing the module.
"""

import ast
import functools
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

BOTTOM = {"errors", "catalog"}
CORE = {"core"} | BOTTOM
EDGES = {"ledger", "remote"}
ENGINE = {"engine", "fork", "private_files"} | EDGES | CORE
PLACES = {"places", "settings", "peers", "whole_file"} | ENGINE
RUN = {"run"} | PLACES
REPORT = {"report", "whole_file"} | RUN

# The parts of `orchestrator` and what each may import of the others, from the bottom up.
MAY_IMPORT = {
    "": set(),
    "errors": set(),
    "peers": set(),
    "catalog": {"catalog"},
    "core": CORE,
    "settings": {"settings", "places.google.config"} | CORE,
    "boot_clock": set(),
    "fork": set(),
    "open_files": set(),
    "private_files": set(),
    "whole_file": set(),
    "trees": set(),
    "ledger": {"ledger", "boot_clock", "fork"} | CORE,
    "remote": {
        "remote",
        "fork",
        "open_files",
        "peers",
        "private_files",
        "trees",
        "vm.sensitive",
        "vm.stream",
        "vm.upload",
        "whole_file",
    }
    | CORE,  # a local job's log and metrics are read as on a worker
    "engine": ENGINE,
    "places": {"trees", "vm.data_objects", "vm.stream", "vm.upload"} | PLACES,
    "run": RUN,
    "report": REPORT,
    "promises": set(),  # what is promised knows nothing of what keeps it, and only what measures knows it
    "drill": {"drill", "promises", "emulator.daemon.control"} | CORE,
    "client": {"client", "settings", "boot_clock", "emulator.daemon.control", "whole_file"} | REPORT,
    "cli": {"cli", "client", "report", "settings", "places.traits_of", "places.traits_on"} | CORE,
    "emulator": {"emulator", "boot_clock", "catalog", "fork", "open_files", "peers", "trees", "vm.crc32c"},
    "vm": {"vm"},
}

# Commands that may import more than the rest of `cli`: they run what is not the client's.
COMMANDS_MAY_IMPORT = {"cli.commands.emulator": {"emulator.daemon.control"}, "cli.commands.guarantee.drill": {"drill"}}

# The rooms of the emulator and what each may import of the others, from the bottom up (cloud_tpu_emulator/__init__.py).
_FAULTS = {"api_errors", "plain_data", "faults"}
_MODEL = _FAULTS | {"supply", "model"}
_VMS = _MODEL | {"state", "wire", "vms"}
EMULATOR_MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "api_errors": set(),
    "plain_data": set(),
    "faults": _FAULTS,
    "supply": _FAULTS | {"supply"},
    "model": _MODEL,
    "state": _MODEL | {"state"},
    "wire": _MODEL | {"wire"},
    "vms": _VMS,
    "api": _VMS | {"api"},
    "relay": _VMS | {"api", "relay"},
    "daemon": _VMS | {"api", "relay", "daemon"},
    "__main__": {"daemon", "state"},
    "pytest_plugin": {"daemon"},
}

# What computes and nothing else. A module that is not here (os, time, socket, random, datetime, …) may wait or look outside.
PURE = {
    *("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "typing", "math", "statistics"),
    *("bisect", "re", "string", "textwrap", "unicodedata", "difflib", "shlex", "json", "hashlib"),
    *("base64", "urllib.parse", "ipaddress"),
    *("pathlib.PurePath", "pathlib.PurePosixPath", "tomllib", "yaml", "pydantic", "pydantic_core", "regex"),
}
OF_CORE = {"units.py": {"datetime.UTC", "datetime.datetime"}}  # a time that it is given, in words
LOOKS_OUTSIDE = {"open", "input", "print", "__import__", "exec", "eval"}


def test_every_part_of_orchestrator_has_its_row_in_the_table() -> None:
    assert {part_of(path) for path in sources("orchestrator")} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path)) for path in ("orchestrator", "payload")])
def test_there_are_sources_to_look_at(path: str) -> None:
    assert len(list(sources(path))) > 3


def test_imports_of_orchestrator_go_down_and_edges_do_not_know_each_other() -> None:
    assert list(problems_of_layers()) == []


def test_rooms_of_the_emulator_import_downwards() -> None:
    rooms = {path: part_of(path, "cloud_tpu_emulator") for path in sources("cloud_tpu_emulator")}
    assert set(rooms.values()) == set(EMULATOR_MAY_IMPORT)
    prefix = "cloud_tpu_emulator."
    wrong = [
        f"{path} imports {name}"
        for path, room in rooms.items()
        for name in imports(read(path), package_of(path))
        if name.startswith(prefix) and not is_within(name.removeprefix(prefix), EMULATOR_MAY_IMPORT[room])
    ]
    assert wrong == []


PLACES_AND_RUN = ("engine", "places", "run")


@pytest.mark.parametrize(("rooms", "of"), [
    (("emulator",), "file"), (PLACES_AND_RUN, "file"), (PLACES_AND_RUN, "folder"),
])  # fmt: skip
def test_no_files_and_no_folders_import_each_other_in_a_circle(rooms: tuple[str, ...], of: str) -> None:
    modules = {module_of(path): path for room in rooms for path in sources(f"orchestrator/{room}")}
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for module, path in modules.items():
        for name in imports(read(path), package_of(path)):
            inner = name.removeprefix("orchestrator.")
            imported = next((each for each in (inner, inner.rpartition(".")[0]) if each in modules), None)
            if imported is not None:
                here, there = (modules[each] if of == "file" else modules[each].parent for each in (module, imported))
                if here != there:
                    sorter.add(str(here), str(there))
    sorter.prepare()  # raises CycleError, which names the circle


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


def test_core_imports_only_what_computes() -> None:
    wrong = [
        f"{path}: {name}"
        for path in sources("orchestrator/core")
        for name in imports(read(path), package_of(path))
        if not is_within(name, PURE | OF_CORE.get(path.name, set()) | {"orchestrator"})
    ]
    assert wrong == []


def test_core_calls_nothing_that_reaches_a_file_or_a_terminal() -> None:
    wrong = [
        f"{path}:{call.lineno}: {call.func.id}"
        for path in sources("orchestrator/core")
        for call in ast.walk(ast.parse(read(path)))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in LOOKS_OUTSIDE
    ]
    assert wrong == []


def test_what_runs_on_the_vm_needs_the_standard_library_and_itself() -> None:
    asked = {"chips.py": "libtpu"}  # by the job's own Python, which may have none
    wrong = [
        f"{path}: {name}"
        for path in sources("orchestrator/vm")
        for name in imports(read(path), package_of(path))
        if name.partition(".")[0] not in {*sys.stdlib_module_names, asked.get(path.name)}
        and not is_within(name, {"orchestrator.vm"})
    ]
    assert wrong == []


def test_what_runs_on_the_vm_reaches_itself_only_by_relative_imports_because_its_package_has_another_name_there() -> (
    None
):
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
    ("from .frames import reply", "orchestrator.vm", ["orchestrator.vm.files.frames.reply"]),
    ("from ..clouds.x import y", "orchestrator.vm", ["orchestrator.clouds.x.y"]),
    ("def f():\n    import socket", "a", ["socket"]),
    ("if TYPE_CHECKING:\n    from a.b import C", "a", ["a.b.C"]),
    ("import_module('orchestrator.clouds.x')", "a", ["orchestrator.clouds.x"]),
])  # fmt: skip
def test_every_way_to_import_is_seen(source: str, package: str, names: list[str]) -> None:
    assert list(imports(source, package)) == names


@pytest.mark.parametrize(("part", "name", "fine"), [
    ("ledger", "orchestrator.promise.lease.lease.Lease", True),
    ("ledger", "orchestrator.places.tpu.api.transport", False), ("core", "orchestrator.promise.ledger.ledger", False),
    ("core", "orchestrator.settings", False), ("engine", "orchestrator.hosts.fleet.fleet", True),
    ("engine", "orchestrator.report.messages", False), ("emulator", "orchestrator.catalog", True),
    ("emulator", "orchestrator.text.names", False), ("cli", "cloud_tpu_emulator.daemon.control", False),
    ("cli.commands.emulator", "cloud_tpu_emulator.daemon.control", True),
    ("cli.commands.emulator", "orchestrator.api.session.session", True),
    ("cli.commands.jobs", "cloud_tpu_emulator.daemon.control", False),
    ("cli.commands.guarantee.drill", "orchestrator.drill.runner", True),
    ("cli.commands.guarantee.gc", "orchestrator.drill.runner", False),
    ("cli", "orchestrator.promise.release", False), ("cli", "orchestrator.promise.ledger.ledger", False),
    ("cli", "orchestrator.places.tpu.api.client", False), ("cli", "orchestrator.hosts.fleet.fleet", False),
    ("client", "orchestrator.cli.console", False), ("client", "orchestrator.promise.release", True),
    ("cli", "cloud_tpu_emulator.daemon.daemon", False), ("cli", "orchestrator.report.messages", True),
    ("report", "cloud_tpu_emulator.daemon.control", False),
    ("drill", "cloud_tpu_emulator.daemon.control", True),
    ("drill", "orchestrator.promise.release", False), ("drill", "orchestrator.drill.bounds", True),
    ("cli", "orchestrator.drill.bounds", False), ("core", "orchestrator.drill.bounds", False),
    ("engine", "orchestrator.drill.bounds", False), ("vm", "orchestrator.drill.bounds", False),
    ("emulator", "orchestrator.drill.bounds", False), ("promises", "orchestrator.promise.lease.cloud_api", False),
    ("promises", "cloud_tpu_emulator.model.records", False), ("core", "json", True),
])  # fmt: skip
def test_the_table_says_what_the_page_says(part: str, name: str, fine: bool) -> None:
    assert may_import(part, name) is fine


# -- reading the source ---------------------------------------------------------------------------------------------


def problems_of_layers() -> Iterator[str]:
    for path in sources("orchestrator"):
        for name in imports(read(path), package_of(path)):
            if not may_import(module_of(path), name):
                yield f"{path} imports {name}"


def may_import(module: str, name: str) -> bool:
    """`orchestrator.x.y` is fine for a module whose part may import x, or x.y. Other packages are not this rule's business."""
    root, _, inner = name.partition(".")
    if root != "orchestrator" or inner in ("", "__version__"):
        return True
    if root_of(module) == "core" and inner == "places":
        return True  # the registry, which imports nothing: what a place refuses is asked there
    more = [names for command, names in COMMANDS_MAY_IMPORT.items() if is_within(module, {command})]
    return is_within(inner, MAY_IMPORT[module.partition(".")[0]].union(*more))


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
    """Return `cli.commands.jobs.run` for `orchestrator/cli/commands/jobs/run.py`."""
    return ".".join(path.relative_to("orchestrator").with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def part_of(path: Path, package: str = "orchestrator") -> str:
    """Return cli for `orchestrator/cli/commands/jobs/run.py`, errors for `orchestrator/errors.py`, '' for the package."""
    inner = path.relative_to(package).with_suffix("").parts
    return "" if inner == ("__init__",) else inner[0]
