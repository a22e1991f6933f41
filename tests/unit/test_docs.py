"""What the docs and tables say is so: generated pages, names, promises, and the versions of `constraints.txt`."""

import ast
import functools
import importlib
import inspect
import itertools
import re
import shlex
import shutil
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cloud_tpu_emulator.model.records import Settings
from orchestrator import __version__, errors, settings
from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.plan import make
from orchestrator.cli import typer_app
from orchestrator.cli.command_table import COMMANDS
from orchestrator.drill import bounds
from orchestrator.drill.bounds import EMULATED_SPEED, PROMISES, Bound, Part, PromisedBound, PromiseWorld, bound
from orchestrator.drill.runner import formula, symbolic
from orchestrator.job import sweep
from orchestrator.promise.lease import periods as claim_timings
from orchestrator.promise.lease.periods import GOOGLE, Timings
from orchestrator.promise.watchdog import FAST_FACTOR, SLOW_FACTOR
from orchestrator.text.units import parse_duration
from tests import ROOT
from tests.waiting import ran

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "orchestrator/**/*.md", "payload/*.md", "bench/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
FILE_ENDINGS = (".py", ".md", ".yaml", ".sql", ".csv", ".json", ".txt", "/")
FOR_USERS = (ROOT / "README.md", ROOT / "cloud_tpu_emulator/README.md")
MAPS = ("README.md", "architecture.md", "glossary.md", "decisions.md")  # they name modules without a folder, too
EVERYWHERE = {"--help", "--quiet", "-q", "--verbose", "-v", "--timestamps"}  # options of all commands
TPUJOB = re.compile(r"^(?:\$ )?tpujob(?: (?P<words>.*))?$")


@functools.cache
def reference(name: str = "cli_reference") -> ModuleType:
    """Return a script of docs/ as a module. It finds its neighbors, as it does when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_of(path: Path) -> Iterator[str]:
    """Every line of every code block, and every piece of inline code."""
    for block, inline in CODE.findall(path.read_text(encoding="utf-8")):
        yield from (line.strip() for line in (block or inline).splitlines())


def all_code() -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in PAGES]


def commands() -> dict[str, Any]:
    """Every command by its full name, groups too: `emulator up`, `emulator`."""
    return typer_app.everything()


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_reference_of_the_commands_is_what_the_app_says() -> None:
    assert page("docs/cli.md") == reference().page_text(), "run `make docs`"


def test_the_picture_and_the_transcript_in_the_readme_are_of_the_same_run() -> None:
    transcript = reference("transcript")
    run = transcript.run_of(transcript.transcript_of(page("README.md")))
    assert f"tEXtRun\0{run}".encode() in (ROOT / "docs" / "report.png").read_bytes(), "run `make transcript`"


def test_the_table_of_gcloud_says_what_its_contract_test_runs() -> None:
    text = page("docs/emulator.md")
    assert "| `tpu-vm create` | yes | yes |" in text
    assert text == reference("gcloud_table").with_table(text), "run `make docs`"


def test_every_exit_code_that_an_error_can_have_is_explained() -> None:
    def family(kind: type[errors.TpujobError]) -> Iterator[type[errors.TpujobError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from family(child)

    ours = {kind.exit_code for kind in family(errors.TpujobError) if kind.__module__.startswith("orchestrator")}
    assert ours <= {int(code) for code in reference().EXIT_CODES if code.isdecimal()}


@pytest.mark.parametrize("words", [words for words in commands() if words])
def test_every_command_argument_and_option_says_what_it_is_for(words: str) -> None:
    command = commands()[words]
    assert (command.help or COMMANDS[words].summary).endswith((".", "?"))
    assert [param.name for param in command.params if not (getattr(param, "help", None) or "").strip()] == []


@pytest.mark.parametrize("path", all_code())
def test_the_commands_and_options_that_a_page_names_exist(path: Path) -> None:
    known = commands()
    wrong = []
    for code in code_of(path):
        match = TPUJOB.match(code.partition("  #")[0].strip())
        if match is None or not match["words"]:
            continue
        words = list(itertools.takewhile("|".__ne__, shlex.split(match["words"], comments=True)))
        if words[0] not in known and words[0] not in ("COMMAND", "--help", "--version", "--install-completion"):
            wrong.append(code)
            continue
        name = next((said for said in (" ".join(words[:n]) for n in (3, 2)) if said in known), words[0])
        options = {
            option
            for param in getattr(known.get(name), "params", ())
            for option in (*param.opts, *param.secondary_opts)
        } | EVERYWHERE
        used = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
        wrong += [f"{code}: {word}" for word in used if word.startswith("-") and name in known and word not in options]
    assert wrong == []


# -- job files -----------------------------------------------------------------------------------------------------


def job_files() -> list[Any]:
    """Every YAML block of a page that is a job file, or a part of one."""
    found = []
    for path in PAGES:
        blocks = re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for number, text in enumerate(map(textwrap.dedent, blocks), 1):
            if {"tpu", "command", "train", "matrix", "variants"} & set(re.findall(r"^(\w+):", text, re.MULTILINE)):
                found.append(pytest.param(text, id=f"{path.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("text", job_files())
def test_every_job_file_on_a_page_is_one_that_can_be_planned(text: str) -> None:
    complete = re.search(r"^(command|train):", text, re.MULTILINE)
    loaded = sweep.load(text if complete else f"{text}\ncommand: python train.py\n", path="job.yaml")
    for spec in [each.spec for each in loaded.variants] if isinstance(loaded, sweep.Sweep) else [loaded]:
        if spec.on == "tpu":
            assert make([CapacityRequest(each.accelerator, each.zone) for each in spec.tpu.alternatives]).candidates


def test_the_page_of_the_settings_has_every_key() -> None:
    listed = re.findall(r"^\| `([a-z_]+)` \|", page("docs/settings.md"), re.MULTILINE)
    assert listed == [*settings._KEYS, *settings._SECTIONS]


# -- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_list_of_messages_is_what_the_sources_say() -> None:
    assert page("docs/messages.md") == reference("message_reference").page_text(), "run `make docs`"


def test_every_hint_of_the_program_is_in_the_list_of_messages() -> None:
    """Read in another way than the list is made: every piece of text of a `hint=` in the sources."""
    listed = re.sub(r"\\(.)", r"\1", page("docs/messages.md")).replace("`", "")
    missing = []
    for path in sorted([*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "payload").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                said = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
                words = [" ".join(each.replace("`", "").split()) for each in said if isinstance(each, str)]
                missing += [
                    f"{path.name}: {each}" for each in words if re.search("[a-z]{3}", each) and each not in listed
                ]
    assert missing == []


def test_a_function_of_a_module_is_not_taken_for_one_of_that_name_in_another() -> None:
    listed = page("docs/messages.md")
    assert "no capacity, but the failed create is not proven gone" in listed
    assert "addresses, but the failed create" not in listed, "words about a way to workers, in the place of a refusal"


def test_every_message_has_a_place_of_its_own_and_a_section_that_explains_it() -> None:
    guide, listed = page("docs/troubleshooting.md"), page("docs/messages.md")
    anchors = re.findall(r'<a id="([^"]+)"></a>', listed)
    assert len(anchors) == len(set(anchors)) > 400
    tool = reference("message_reference")
    assert set(reference("message_sections").SECTIONS) == set(tool.headings(listed)) <= set(tool.headings(guide))


# -- files, targets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", all_code())
def test_the_files_that_a_page_names_are_there(path: Path) -> None:
    """A path is relative to the checkout, to orchestrator/ or to the page, and starts with a folder there."""
    bases = (ROOT, ROOT / "orchestrator", path.parent)
    folders = {each.name for base in bases for each in base.iterdir() if each.is_dir()} - {"build", "dist", "runs"}
    missing = []
    for word in (word.rstrip(",;:") for code in code_of(path) for word in code.split()):
        first, slash, _ = word.partition("/")
        module = path.name in MAPS and path not in FOR_USERS and re.fullmatch(r"[a-z_]+\.py", word)
        if (
            (first in folders and word.endswith(FILE_ENDINGS) if slash else module)
            and "<" not in word
            and not any(list(base.glob(word.rstrip("/"))) for base in bases)
        ):
            missing.append(word)
    assert missing == []


@pytest.mark.parametrize("path", all_code())
def test_the_make_targets_that_a_page_names_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    assert {"install", "test", "lint", "check", "docs", "bench", "clean"} <= targets
    named = [re.match(r"make ([a-z][a-z-]*)", code) for code in code_of(path)]
    assert {match[1] for match in named if match} <= targets


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_every_target() -> None:
    listed = ran(["make"], cwd=ROOT, check=True).stdout
    targets = re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE)
    assert [target for target in targets if f"make {target} " not in listed] == []


def test_the_clean_machine_check_does_what_the_readme_tells_a_stranger() -> None:
    told = re.search(r"pip install (-e '[^']+') && python (-m pytest.*)$", page("README.md"), re.MULTILINE)
    what, test = told.groups()
    script = page(".ci/run").replace("\\\n", "")
    assert re.search(rf"install .*{re.escape(what)}$", script, re.MULTILINE)
    assert re.search(rf"^play \d+ \"\$work/venv/bin/python\" {re.escape(test)}$", script, re.MULTILINE)


# -- the project ---------------------------------------------------------------------------------------------------


def test_every_library_that_we_install_has_its_paragraph_in_the_decisions() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    required = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in required} - {"tpujob"}
    text = page("docs/decisions.md")
    assert sorted(name for name in names if not name.startswith("types-") and f"**{name}" not in text) == []


def test_the_changelog_speaks_of_this_version() -> None:
    assert f"## [{__version__}]" in page("CHANGELOG.md")


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for folder in ("orchestrator", "payload", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (source := path.read_text(encoding="utf-8")).strip() and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMED = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
    if not text.startswith("tpujob[")
]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("wanted", NAMED, ids=lambda wanted: wanted.name)
def test_every_library_has_a_version_that_pyproject_allows(wanted: Requirement) -> None:
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
    assert pins, f"`make constraints` writes a version of {wanted.name}"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "==" and wanted.specifier.contains(version.version), str(pin)


def test_each_line_is_one_version_that_pip_takes_as_a_constraint() -> None:
    assert all(len(pin.specifier) == 1 and not pin.extras and pin.url is None for pin in PINS)


def test_the_clean_machine_check_installs_these_versions() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("\\\n", "")
    assert re.search(r"^PIP_CONSTRAINT=constraints\.txt .* install .*-e ", script, re.MULTILINE)


EMULATED = PromiseWorld(speed=EMULATED_SPEED, ready_s=Settings().provision_s)
HERE = PromiseWorld(speed=100, deletion_s=1.5, ready_s=6.0, gc_every_s=18.0)
EVERY = [promise for promise in PROMISES.values() if promise.formula]


def derived(timings: Timings) -> dict[str, float]:
    """Every period of the table, from the code."""
    return {
        "heartbeat": timings.heartbeat_s, "poll": timings.poll_s, "rare poll": SLOW_FACTOR * timings.poll_s,
        "ttl": timings.ttl_s, "grace": timings.grace_s, "boot": timings.boot_s, "linger": timings.linger_s,
        "margin": timings.margin_s, "stagger": timings.stagger_s, "renew": timings.renew_s,
        "label": timings.label_ttl_s, "provision": timings.provision_s,
        "claimed": max(timings.label_ttl_s, timings.provision_s + timings.boot_s),
    }  # fmt: skip


@pytest.mark.parametrize("name", derived(GOOGLE))
def test_every_period_of_the_table_is_that_of_the_code(name: str) -> None:
    assert bounds.seconds(name) == derived(GOOGLE)[name]
    for speed in (1.0, EMULATED_SPEED, 300.0):
        assert bounds.seconds(name, speed) == pytest.approx(derived(claim_timings.emulated(speed))[name])


def test_the_code_s_own_times_are_those_of_the_table() -> None:
    from orchestrator.cli.commands.guarantee.gc import install_gc
    from orchestrator.promise.effects.retry import pauses

    every = inspect.signature(install_gc).parameters["every"].default
    assert bounds.seconds("timer") == parse_duration(every)
    assert claim_timings.EMULATED_SPEED == EMULATED_SPEED
    assert bounds.seconds("READY") == GOOGLE.provision_s and bounds.seconds("D") == GOOGLE.absent_s
    longest = [pause for pause, _ in zip(pauses(first_s=0.05, growth=1.25), range(100), strict=False)][-1]
    assert longest == bounds.LOOK_S
    # After its countdown the watchdog looks again within a heartbeat, asks the API, and deletes.
    assert GOOGLE.heartbeat_s / 12 + GOOGLE.poll_s / FAST_FACTOR <= bounds.seconds("watchdog")


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: f"{promise.class_} {promise.event}")
def test_the_page_has_the_sum_of_each_formula(promise: PromisedBound) -> None:
    assert symbolic(bound(promise, PromiseWorld())) == promise.google
    assert symbolic(bound(promise, EMULATED)) == promise.emulated


@pytest.mark.parametrize(("name", "seconds"), [
    ("command", 10 + 1.5), ("guardian", 5 + 1.5), ("guardian of a create", 5 + 6 + 1.5 + 1.5),
    ("watchdog", 9 + 1.8 + 3.2 + 1.5), ("watchdog of a create", 6 + 6 + 9 + 1.8 + 3.2 + 1.5),
    ("watchdog of a detached run", 36 + 1.8 + 1.8 + 3.2 + 1.5),
    ("gc", 96 + 1.2 + 18 + 5 + 1.5),  # here the first label reaches furthest
    ("gc of a detached run", 1.2 + 18 + 5 + 1.5),  # from its deadline, to which its label reaches
])  # fmt: skip
def test_the_bounds_on_a_faster_emulator_are_these(name: str, seconds: float) -> None:
    assert bound(PROMISES[name], HERE).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: promise.formula)
def test_every_delete_without_effect_adds_one_deletion_and_one_read(promise: PromisedBound) -> None:
    unlucky = bound(promise, replace(HERE, failed_deletes=2))
    looks_s = 1.5 / 4 + 3.0 / 4
    assert unlucky.seconds == pytest.approx(bound(promise, HERE).seconds + 2 * HERE.deletion_s + looks_s)
    assert symbolic(unlucky).endswith(" + 3 D")


def test_on_google_cloud_the_next_read_is_at_most_half_a_minute_away() -> None:
    assert symbolic(bound(PROMISES["command"], PromiseWorld(failed_deletes=2))) == "1 m 10 s + 3 D"


def test_a_faster_emulator_does_not_shorten_the_work_of_processes() -> None:
    assert bounds.seconds("watchdog", 1000) > 3.0
    assert bounds.seconds("watchdog", 100) == pytest.approx(3.2)
    assert bounds.seconds("watchdog") == 20.0


def test_a_slow_machine_stretches_its_own_work_and_no_period() -> None:
    for promise, own_s in (("command", 10), ("guardian", 5), ("watchdog", 3)):
        slow = bound(PROMISES[promise], replace(HERE, slowness=5.0)).seconds
        assert slow == pytest.approx(bound(PROMISES[promise], HERE).seconds + 4 * own_s)


def test_a_formula_names_every_part_with_its_length_and_adds_up() -> None:
    grace_and_deletions = Bound((Part("grace", 1.8), Part("3 deletions", 4.5, "3 D")))
    assert grace_and_deletions.seconds == pytest.approx(6.3)
    assert formula(grace_and_deletions) == "grace 1.8 s + 3 deletions 4.5 s"
    assert symbolic(grace_and_deletions) == "1.8 s + 3 D"


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: promise.formula)
def test_a_slower_cloud_never_tightens_a_bound(promise: PromisedBound) -> None:
    slower = replace(HERE, speed=50, deletion_s=3.0, ready_s=12.0, gc_every_s=36.0)
    assert bound(promise, slower).seconds >= bound(promise, HERE).seconds
