"""Who asks of which kind a place is, read from the syntax tree, and the traits that a place is asked for instead."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import places
from orchestrator import traits as place_traits
from orchestrator.promise.lease.lease import SliceName
from orchestrator.report.bill_parts import Period
from orchestrator.report.spending import clouds
from orchestrator.traits import NEWER
from tests.unit.report.test_costs import USED
from tests.unit.test_imports import imports, package_of, read, sources

# By module and function, each with its reason. Ten at most: what only one command, or the connection to a target, can know.
ALLOWED = {
    "traits.checks_on": "a job file may name no place at all",
    "promise.lease.periods.is_emulated": "the one question whether a target is emulated",
    "settings._asked_kind": "a word of the user's becomes a target",
    "cli.commands.slices.offers.offers": "`--on` says which of two tables of the catalog is printed",
    "api.jobs.planning._read": "`export --to jobset` makes a job one for a cluster",
    "api.jobs.planning.export": "only a job on a cluster has objects that kubectl takes",
}
NO_PLACE = {  # the same words with another meaning
    "a scope of gc": "api.guarantee.health_checks._age api.jobs.results._bounds",
    "a section of the job file": "job.job_spec._with_sections job.overrides._rivals "
    "job.sweep._variant job.tpu_keys._below_any_of",
    "a backend, or an extra of a package": "job.rules.cross_field_rules._environment "
    "job.rules.cross_field_rules._profile "
    "text.scripts.compiles_by_itself text.scripts.Environment.without_tpu places.vms.plans.lines_of",
}
IMPORTS = {  # of modules of one place
    "api.slices.offers": "asks the API what a project has",
    "api.jobs.planning": "`export` prints the objects of a cluster",
}
KINDS, TABLE = (
    {*place_traits.NAMES, *(cloud for name in place_traits.NAMES for cloud in place_traits.traits_on(name).clouds)},
    "a table by kinds",
)
OF_ONE_PLACE = tuple(f"orchestrator.places.{name}." for name in place_traits.NAMES)
HOME = (*(f"orchestrator/places/{name}/" for name in place_traits.NAMES), "cloud_tpu_emulator/")
ASK = {"eq", "ne", "is_", "contains", "__eq__", "__ne__", "__contains__", "startswith", "endswith"}


def test_no_module_outside_asks_of_which_kind_a_place_is() -> None:
    package = Package({f"orchestrator.{module_of(path)}": read(path) for path in sources("orchestrator")})
    found = {(name, at) for name in map(module_of, outside()) for at in package.reads(f"orchestrator.{name}")}
    known = {*ALLOWED, *" ".join(NO_PLACE.values()).split()}
    left = [(name, at) for name, at in found if f"{name}.{at}" not in known]
    assert not left, sorted(left)
    assert len(ALLOWED) <= 10 and len(found) == len(known), "an entry that names no read any more"


def test_modules_of_one_place_are_imported_only_where_its_client_is_opened() -> None:
    found = {
        module_of(path)
        for path in outside()
        if any(name.startswith(OF_ONE_PLACE) for name in imports(read(path), package_of(path)))
    }
    assert found == set(IMPORTS)


@pytest.mark.parametrize("name", place_traits.NAMES)
def test_a_place_imports_nothing_of_another_one(name: str) -> None:
    others = tuple(each for each in OF_ONE_PLACE if each != f"orchestrator.places.{name}.")
    found = {
        (str(path), each)
        for path in sources(f"orchestrator/places/{name}")
        for each in imports(read(path), package_of(path))
    }
    assert found and not [(path, each) for path, each in found if each.startswith(others)]


@pytest.mark.parametrize("text", [
    "spec.on == 'gke'", "x = 1 if 'gke' != cloud else 2", "cloud in ('gke', 'local')", "CLOUDS = {'tpu'}\ncloud in CLOUDS",
    "from words import GKE as G\nG == cloud", "import words as w\ncloud is w.GKE", "(k := 'gke') and cloud == k",
    "import words\nA, B = 1, words.GKE\nHERE = B\ncloud in [HERE]", "from words import Cloud\ncloud == Cloud.LOCAL",
    "from words import Cloud as C\nmatch cloud:\n    case C.LOCAL: ...",
    "match cloud:\n    case 'gke' | '': ...", "class A:\n    K = 'gke'\n    def f(self):\n        return self.K == self.cloud",
    "def f():\n    k = 'gke'\n    return k == cloud", "TABLE = {'gke': 1}\nTABLE[cloud]", "({'gke': 1} | MORE).get(cloud)",
    "frozenset({'gke'}).__contains__(cloud)", "operator.eq(cloud, 'gke')", "cloud.startswith('gke')",
    "[k for k in {'gke'} if k == c]",
    "for k in ('gke',):\n    cloud == k", "from orchestrator.places.gke.stay import ClusterStay as S\nisinstance(it, (int, S))",
    "from orchestrator.places.gke import stay\nT = stay.ClusterStay\ntype(it) is T",
    "from orchestrator.places.gke.stay import ClusterStay as S\nmatch it:\n    case S(): ...",
])  # fmt: skip
def test_a_read_is_found_behind_any_alias(text: str) -> None:
    assert Package({"words": WORDS, "m": text}).reads("m")


@pytest.mark.parametrize("text", [
    "ask('gke')", "cloud == other", "data['tpu']", "SECTIONS = ('tpu', 'train')\nkey in SECTIONS",
    "{'tpu': 1, 'xla': 2}[backend]",
    "k = 'gke'\nk is None", "def f():\n    k = 'gke'\ndef g(k):\n    return k == cloud", "traits_on(spec.on).billed",
])  # fmt: skip
def test_what_is_no_read_is_not_found(text: str) -> None:
    assert not Package({"words": WORDS, "m": text}).reads("m")


WORDS = "GKE = 'gke'\nclass Cloud:\n    LOCAL = 'local'"

# -- reading the source ---------------------------------------------------------------------------------------------


class Package:
    """Modules by their full names, and what the names in them may stand for. A scope is `Class.method`, or "" at the top."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.scoped = {module: list(scoped(ast.parse(text))) for module, text in texts.items()}
        self.bound: dict[tuple[str, str, str], list[tuple[str, ast.expr]]] = {}
        self.imported: dict[str, dict[str, str]] = {module: {} for module in texts}
        for module, nodes in self.scoped.items():
            for at, node in nodes:
                self._learn(module, at, node)

    def _learn(self, module: str, at: str, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(module, at, target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=ast.Name() as target, iter=value)
                | ast.comprehension(target=ast.Name() as target, iter=value)
            ):
                self._bind(module, at, target, value)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                self.imported[module] |= {each.asname or each.name: f"{base}{each.name}" for each in names}

    def _bind(self, module: str, at: str, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(module, at, one, its)
        else:
            owner, _, name = ast.unparse(target).rpartition(".")
            self.bound.setdefault((module, at.partition(".")[0] if owner == "self" else at, name), []).append(
                (at, value)
            )

    def words(self, module: str, at: str, node: ast.AST, seen: frozenset[object] = frozenset()) -> Iterator[str]:
        """Yield the texts that it may be or hold, the full names of what one place defines, and TABLE for a dict by kinds."""
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(keys=parts):
                found = [word for part in parts if part is not None for word in self.words(module, at, part, seen)]
                if all(is_kind(word) or not word for word in found):  # else it is another vocabulary
                    yield from [*found, *([TABLE] if isinstance(node, ast.Dict) and any(found) else [])]
            case ast.BoolOp() | ast.BinOp() | ast.IfExp() | ast.NamedExpr() | ast.Starred():
                for child in ast.iter_child_nodes(node):
                    yield from self.words(module, at, child, seen)
            case (
                ast.Call(func=ast.Name(id="frozenset" | "set"), args=[inner]) | ast.Attribute(value=inner, attr="value")
            ):
                yield from self.words(module, at, inner, seen)
            case ast.Name() | ast.Attribute():
                yield from self._named(module, at, ast.unparse(node), seen)

    def _named(self, module: str, at: str, name: str, seen: frozenset[object]) -> Iterator[str]:
        if (module, at, name) in seen:
            return
        seen |= {(module, at, name)}
        (first, _, rest), parts = name.partition("."), at.split(".")
        scopes = (
            [first, *parts[: first == "self"]] if rest else [".".join(parts[:count]) for count in range(len(parts) + 1)]
        )
        for within, value in (
            each for scope in set(scopes) for each in self.bound.get((module, scope, rest or first), ())
        ):
            yield from self.words(module, within, value, seen)
        for alias, owner in self.imported[module].items():
            if f"{name}.".startswith(f"{alias}."):
                full = owner + name[len(alias) :]
                yield from [full] if full.startswith(OF_ONE_PLACE) else []
                parts = full.split(".")
                for cut in range(len(parts)):
                    if (module := ".".join(parts[:cut])) in self.scoped:
                        yield from self._named(module, "", ".".join(parts[cut:]), seen)

    def reads(self, module: str) -> list[str]:
        """Return the scope of each read of a kind."""
        return [at for at, node in self.scoped[module] if self._is_read(module, at, node)]

    def _is_read(self, module: str, at: str, node: ast.AST) -> bool:
        def may(test: Callable[[str], bool], *nodes: ast.AST) -> bool:
            return any(test(word) for each in nodes for word in self.words(module, at, each))

        match node:
            case ast.Compare(left=left, comparators=others):
                is_none = any(isinstance(each, ast.Constant) and each.value is None for each in others)
                return not is_none and may(is_kind, left, *others)
            case ast.MatchValue(value=asked) | ast.MatchClass(cls=asked):
                return may(is_kind, asked)
            case ast.Subscript(value=table, slice=key):
                return not isinstance(key, ast.Constant) and may(TABLE.__eq__, table)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                return may(is_class, classes)
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args):
                return may(is_kind, owner, *args) if name in ASK else name == "get" and may(TABLE.__eq__, owner)
        return False


def scoped(node: ast.AST, at: str = "") -> Iterator[tuple[str, ast.AST]]:
    yield at, node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        at = f"{at}.{node.name}".lstrip(".")
    for child in ast.iter_child_nodes(node):
        yield from scoped(child, at)


def is_kind(word: str) -> bool:
    return word in KINDS or is_class(word)


def is_class(word: str) -> bool:
    return word.startswith(OF_ONE_PLACE) and re.search(r"\.[A-Z]\w*[a-z]\w*$", word) is not None


def outside() -> list[Path]:
    return [path for path in sources("orchestrator") if not str(path).startswith(HOME)]


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


@pytest.mark.parametrize("name", place_traits.NAMES)
def test_a_place_is_found_by_its_name_and_by_each_of_its_clouds(name: str) -> None:
    traits = place_traits.traits_on(name)
    assert traits.name == name and all(place_traits.traits_of(cloud) is traits for cloud in traits.clouds)


def test_a_cloud_that_only_a_newer_tpujob_knows_counts_as_billed_and_comes_after_those_that_this_one_knows() -> None:
    assert place_traits.traits_of("elsewhere") is NEWER and NEWER.billed
    assert places.place_of("elsewhere") is places.place_on("tpu"), (
        "its records are told, ended and tidied up as those of a slice"
    )
    assert "gcloud" in place_traits.by_hand("elsewhere").delete_command(SliceName("p", "us-x1-a", "n"))
    bills = [replace(USED, id=cloud, cloud=cloud) for cloud in ("local", "elsewhere", "emulated", "gke", "google")]
    order = [found.cloud for found in clouds(bills, Period(0.0, None), "job")]
    assert order == ["google", "gke", "elsewhere", "emulated", "local"]
