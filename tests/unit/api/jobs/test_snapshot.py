"""Snapshots: what a job is when it is added to a queue is what another machine has of it, and nothing else gets out of one."""

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.jobs.job import Job, Limits, Tpu, spec_and_path
from orchestrator.api.jobs.snapshot import git_of, pack, shipped, unpack, values_of
from orchestrator.api.session.session import Session
from orchestrator.errors import JobSpecError, UserError
from orchestrator.hosts.shipping.shipment import Shipment
from orchestrator.hosts.shipping.store import Manifest
from orchestrator.job import sweep
from orchestrator.job.job_spec import JobSpec, from_values, load
from orchestrator.places.preparation import code, requirements, resolving
from orchestrator.places.preparation.phases import Emulation
from orchestrator.settings import Target
from tests.fakes.package_index import Index, package_index

PATHS: Any = {"code": True, "requirements": True, "train": {"data_dir"}}  # where a job has them differs


class World:
    """A user's directory, and one `elsewhere` that gets the archive of a job: in a state directory, as that of a runner."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.elsewhere = directory / "mine", directory / "state" / "queue" / "job"
        self.archive = directory / "job.tar.gz"
        self.directory.mkdir()
        (directory / "state").mkdir()
        self.session = Session(Target("emulated", "emulated"), directory / "state")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def job(self, text: str, at: str = "job.yaml") -> tuple[JobSpec, Path]:
        self.write({at: text})
        return load(text, path=at), self.directory / at

    def moved(self, spec: JobSpec, path: Path) -> tuple[JobSpec, Path]:
        """The job as another machine has it: there, nothing is left of the directory that it came from."""
        pack(self.session, spec, path, self.archive)
        self.directory.rename(self.directory.with_name("gone"))
        there = unpack(self.archive, self.elsewhere)
        assert there[1].parent == self.elsewhere
        assert there[0].model_dump(exclude=PATHS) == spec.model_dump(exclude=PATHS)
        assert there[0].model_fields_set == spec.model_fields_set
        return there

    def shipment(self, spec: JobSpec, path: Path) -> Shipment:
        code.check_directories(spec, path)
        with ExitStack() as stack:
            shipment = code.shipment_of(self.session, code.survey_of(self.session, spec, path), stack)
        assert shipment is not None
        return shipment

    def shipped(self, spec: JobSpec, path: Path) -> Manifest:
        return self.shipment(spec, path).manifest

    def content(self) -> bytes:
        return gzip.decompress(self.archive.read_bytes())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("HOME", "XDG_CONFIG_HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return World(tmp_path)


@pytest.mark.parametrize(("at", "named"), [("mine.yaml", "."), ("jobs/mine.yaml", "../src"), ("mine.yaml", "src")])
def test_a_job_ships_the_same_files_from_another_machine(world: World, at: str, named: str) -> None:
    world.write({"src/train.py": "1", "src/pkg/run.sh": "#!/bin/sh", "src/with space/ü.txt": "x", "src/none": ""})
    (world.directory / "src/pkg/run.sh").chmod(0o750)
    (world.directory / "src/empty").mkdir()
    (world.directory / "src/to").symlink_to("pkg/run.sh")
    (world.directory / "src/pkg/up").symlink_to("../with space")
    spec, path = world.job(f"command: [bash, -c, echo a b]\ncode: {named}\n", at)
    before = world.shipped(spec, path)
    assert {each.executable for each in before.files} == {True, False}
    assert before.directories and len(before.links) == 2
    assert world.shipped(*world.moved(spec, path)) == before


@pytest.mark.parametrize("text", [
    "limits: {max_duration: 90m, linger: 5m, stall: 10m, max_results: 1GB, max_log: 10MB}\ntpu: {wait: 2h}\n",
    "keep_on_failure: 5m\n", "on: gke\ngke: {grace: 90s}\n",
])  # fmt: skip
def test_what_a_job_file_has_with_a_unit_is_written_with_one(world: World, text: str) -> None:
    spec, _ = world.job(f"command: a\n{text}")
    assert from_values(values_of(spec)).model_dump() == spec.model_dump()


def test_what_the_rules_have_let_pass_passes_again(world: World) -> None:
    """Git tracks some of it, a .tpujobignore names some, and the rules of a repository around it are not there any more."""
    world.write(
        {
            ".gitignore": "*.log\n",
            ".git/info/exclude": "*.tmp\n",
            "src/.gitignore": "/out/\n*.bin\n!keep.bin\n.tpujobignore\n",
            "src/.tpujobignore": "!out/model.pt\n!token.txt\n!*.pyc\n!.env\nlocal/\n",
            "src/sub/.tpujobignore": "*\n!only.py\n",
        }
    )
    names = ["a.log", "a.tmp", "out/model.pt", "out/rest", "a.bin", "keep.bin", "m.pyc", ".env", "local/x", "train.py"]
    world.write({f"src/{name}": f"{name}\n" for name in [*names, "sub/only.py", "sub/rest.py", ".venv/tracked.py"]})
    world.write({"src/.venv/pyvenv.cfg": "", "src/.venv/other.py": ""})
    (world.directory / "src/run").symlink_to("train.py")
    shutil.rmtree(world.directory / ".git")
    git = ("git", "-C", str(world.directory), "-c", "safe.directory=*")
    subprocess.run([*git, "init", "-q"], check=True)
    (world.directory / ".git/info/exclude").write_text("*.tmp\n")
    subprocess.run([*git, "add", "-f", "src/a.log", "src/.venv/tracked.py", "src/.gitignore"], check=True)
    spec, path = world.job("command: 'true'\ncode: src\n")
    before = world.shipped(spec, path)
    after = world.shipped(*world.moved(spec, path))
    assert after == before
    assert {each.path for each in after.files} == {
        *(".gitignore", "a.log", "out/model.pt", "keep.bin", "m.pyc", ".env", "train.py", "sub/only.py"),
        ".venv/tracked.py",
    }
    assert after.links == (("run", "train.py"),)


def test_rules_of_tpujob_that_would_be_shipped_stay_behind(world: World) -> None:
    world.write({"a/.tpujobignore": "*.x\n", ".tpujobignore": "b\n", "a/1.x": "1", "a/1.y": "1", "b": "1"})
    spec, path = world.job("command: 'true'\ncode: .\n")
    assert {each.path for each in world.shipped(spec, path).files} == {
        *(".tpujobignore", "a/.tpujobignore", "a/1.y", "job.yaml")
    }
    assert [each.path for each in world.shipped(*world.moved(spec, path)).files] == ["a/1.y", "job.yaml"]


@pytest.mark.parametrize("named", ["code: src\n", "code: .\n", ""])
def test_the_data_of_a_training_goes_along(world: World, named: str) -> None:
    """Of the payload each machine has its own."""
    world.write({"src/mine.py": "1", "data/x.idx": "1", "data/.gitignore": "*\n", "data/.tpujobignore": "!a.pyc\nz\n"})
    world.write({"data/a.pyc": "1", "data/z": "1", "src/payload/mine.py": "1", "src/.gitignore": "mine.pyc"})
    (world.directory / "data/same").symlink_to("x.idx")
    spec, path = world.job(f"{named}train: {{dataset: idx, data_dir: data}}\n")
    before = world.shipped(spec, path)
    there = world.moved(spec, path)
    after = world.shipped(*there)
    assert [each for each in before.files if Path(each.path).name != ".tpujobignore"] == list(after.files)
    assert before.links == after.links and ("data/same", "x.idx") in after.links
    assert {"data/x.idx", "data/a.pyc", "data/.gitignore"} <= {each.path for each in after.files}
    assert "payload/__main__.py" in {each.path for each in after.files}
    assert b"payload/__main__.py" not in world.content() and there[0].train.data_dir == "code/data"


def test_a_training_may_ship_nothing_of_its_own(world: World) -> None:
    spec, path = world.job("train: {epochs: 1}\n")
    before = world.shipped(spec, path)
    assert world.shipped(*world.moved(spec, path)) == before


@pytest.mark.parametrize("shipped", [(), ("empty",)])
def test_there_may_be_no_files_at_all(world: World, shipped: tuple[str, ...]) -> None:
    (world.directory / "src").mkdir()
    for name in shipped:
        (world.directory / "src" / name).mkdir()
    spec, path = world.job("command: 'true'\ncode: src\n")
    assert world.shipped(*world.moved(spec, path)).directories == shipped


def test_a_job_without_a_file_has_a_directory(world: World) -> None:
    world.write({"src/train.py": "1"})
    job = Job(
        name="mine",
        command=["python3", "train.py"],
        code=world.directory / "src",
        directory=world.directory,
        tpu=Tpu(accelerator="v5e-8", zone=["us-east5", "any"], spot=True, wait="90m"),
        limits=Limits(max_duration="1h30m", stall="10s", linger="5m", max_log="2MB", max_results="50GB", max_cost=3),
        keep_on_failure="30m",
        env={"N": 1e-4},
        params={"lr": 1e-5},
    )
    spec, path = world.moved(*spec_and_path(job))
    assert (spec.name, spec.env, spec.params) == ("mine", {"N": "0.0001"}, {"lr": 1e-5})
    assert path == world.elsewhere / "Job(mine)"


def test_every_variant_of_a_sweep_is_a_job(world: World) -> None:
    text = "command: echo ${params.lr}\ncode: .\nmatrix: {lr: [0.1, 1e-4]}\nvariants: {a: , b: {python: 3.10}}\nparallel: 2\n"
    world.write({"job.yaml": text})
    found = sweep.load(text, path="job.yaml")
    assert isinstance(found, sweep.Sweep)
    for number, variant in enumerate(found.variants):
        pack(world.session, variant.spec, world.directory / "job.yaml", world.archive)
        spec, _ = unpack(world.archive, world.elsewhere / str(number))
        assert spec.model_dump(exclude=PATHS) == variant.spec.model_dump(exclude=PATHS)
        assert not any(key.encode() in world.content() for key in ('"matrix"', '"variants"', '"parallel"'))


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[4].glob("jobs/*.yaml")), ids=lambda path: path.stem)
def test_the_keys_of_our_own_jobs_are_the_same_again(world: World, path: Path) -> None:
    found = sweep.load(path.read_bytes(), path=path.name)
    for spec in [each.spec for each in found.variants] if isinstance(found, sweep.Sweep) else [found]:
        pack(world.session, spec.model_copy(update={"requirements": None}), path, world.archive)
        assert unpack(world.archive, world.elsewhere)[0].model_dump(exclude=PATHS) == spec.model_dump(exclude=PATHS)


def test_a_secret_is_in_it_by_its_name_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "fortytwo-is-the-answer")
    monkeypatch.setenv("MY_HOOK", "https://example.org/hook-of-mine")
    text = "command: 'true'\nenv: {TOKEN: '${env:MY_TOKEN}', PLAIN: as it is}\nnotify: ${env:MY_HOOK}\n"
    spec, _ = world.moved(*world.job(text))
    assert spec.env == {"TOKEN": "${env:MY_TOKEN}", "PLAIN": "as it is"} and spec.notify.url == "${env:MY_HOOK}"
    content = world.content()
    assert b"fortytwo" not in content and b"hook-of-mine" not in content and b"as it is" in content


def test_the_same_job_makes_the_same_bytes(world: World) -> None:
    world.write({"a.py": "1", "b/c.py": "2"})
    spec, path = world.job("command: 'true'\ncode: .\n")
    pack(world.session, spec, path, world.archive)
    first = world.archive.read_bytes()
    os.utime(world.directory / "a.py", (1, 1))
    pack(world.session, spec, path, world.archive)
    assert world.archive.read_bytes() == first and first[4:8] == bytes(4)  # where gzip has a time


def test_what_a_run_would_refuse_is_refused(world: World) -> None:
    world.write({"src/id_rsa": "x"})
    for text, why in (
        ("command: 'true'\ncode: none\n", "none is not a directory"),
        ("command: 'true'\ncode: src\n", "looks like a secret"),
        ("command: python train.py\n", "`train.py` is not on the workers"),
        ("command: 'true'\nrequirements: none.txt\n", "none.txt cannot be read"),
    ):
        with pytest.raises(UserError, match=why):
            pack(world.session, *world.job(text), world.archive)
    with pytest.raises(UserError, match="cannot be written: No such file"):
        pack(world.session, *world.job("command: 'true'\n"), world.archive / "x" / "y")


# -- requirements ------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    with package_index() as made:
        made.wheel("alpha", "1.0", ["beta"])
        made.wheel("beta", "1.0")
        made.wheel("gamma", "1.0")
        made.wheel("delta", "1.0")
        made.wheel("leap", "1.0")
        made.wheel("leap", "2.0", python=">=3.11")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", made.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        yield made


LIB = '[project]\nname = "lib"\nversion = "3"\ndependencies = ["gamma"]\n'


@pytest.mark.parametrize("kind", ["emulated", "google"])
@pytest.mark.parametrize("is_file", [True, False])
def test_days_later_the_versions_of_packages_are_the_same(world: World, index: Index, is_file: bool, kind: str) -> None:
    world.session.target = Target(kind, "p")
    workers = {"emulated": (resolving.EMULATED, Emulation(1)), "google": (resolving.TPU_VM, None)}[kind]
    url = f"delta @ {index.api.url}/files/delta-1.0-py3-none-any.whl"
    world.write(
        {"src/lib/pyproject.toml": LIB, "jobs/more/r.txt": "-e ../../src/lib  # ours\n--find-links ../../src\n"}
    )
    world.write(
        {"jobs/requirements.txt": f"--pre\nalpha\nleap\n{url}\n-r more/r.txt\n-c c.txt\n", "jobs/c.txt": "beta<4\n"}
    )
    named = "requirements.txt" if is_file else f"[alpha, ../src/lib, leap, {url}]"
    spec, path = world.job(f"command: 'true'\ncode: ../src\nrequirements: {named}\n", "jobs/job.yaml")
    asked = requirements.read(spec, path)
    there = world.moved(spec, path)
    index.wheel("alpha", "1.1", ["beta", "gamma"])
    for name in ("beta", "gamma", "leap"):
        index.wheel(name, "3.0")
    again = requirements.read(*there)
    assert (again.requirements, again.needs_pip, again.uses_code) == (asked.requirements, asked.needs_pip, True)
    assert again.constraints.startswith(asked.constraints)
    here = spec, path.parents[2] / "gone/jobs/job.yaml"
    newest, chosen = (resolving.resolve(world.session, *job, {}, *workers).lock.versions for job in (here, there))
    assert (newest["alpha"], newest["beta"], newest["gamma"], newest["leap"]) == ("1.1", "3.0", "3.0", "3.0")
    assert (chosen["alpha"], chosen["beta"], chosen["gamma"]) == ("1.0", "1.0", "1.0")
    assert chosen["leap"] == ("2.0" if kind == "emulated" else "1.0")  # for the Python of its workers


def test_versions_that_cannot_be_chosen_are_left_to_the_workers_and_that_is_said(world: World, index: Index) -> None:
    said: list[str] = []
    world.session.reporter.notice = lambda stage, text: said.append(text)  # type: ignore[method-assign]
    index.login = "name:password"
    spec, path = world.moved(*world.job("command: 'true'\nrequirements: [alpha]\n"))
    assert "so the workers choose them" in " ".join(said)
    asked = requirements.read(spec, path)
    assert (asked.requirements, asked.constraints) == ("alpha\n", "")


def test_the_data_of_a_training_is_not_code_that_is_missing_in_git(world: World) -> None:
    world.write({"src/mine.py": "1", "src/new.py": "1", "elsewhere/x.idx": "1", "src/.gitignore": "\n"})
    spec, path = world.job("code: src\ntrain: {dataset: idx, data_dir: elsewhere}\n")
    for words in (("init", "-q"), ("add", "src/mine.py", "src/.gitignore")):
        subprocess.run(["git", *words], cwd=world.directory, check=True)
    found = git_of(world.session, spec, path, shipped(spec, path, world.shipment(spec, path)))
    assert found is not None and found["untracked"] == ["src/new.py"]


# -- hostile archives --------------------------------------------------------------------------------------------------

GOOD = b'{"command": "true", "name": "x", "code": "code"}'


def member(name: str, content: bytes = b"x", **of_it: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in of_it.items():
        setattr(made, key, value)
    return made, content


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=kind, linkname=to)


def written(world: World, *members: tuple[tarfile.TarInfo, bytes], job: bytes = GOOD) -> Path:
    with tarfile.open(world.archive, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for made, content in (member("job.json", job), *members):
            if made.size == len(content):
                archive.addfile(made, io.BytesIO(content))
            else:  # nothing of what its header promises
                archive.fileobj.write(made.tobuf(tarfile.GNU_FORMAT))
    return world.archive


OUT = "leads out"


@pytest.mark.parametrize(("members", "why"), [
    ([member("../x")], "does not belong"), ([member("/tmp/x")], "does not belong"), ([member("x")], "does not belong"),
    ([member("code/../../x")], "does not belong"), ([member("code/../job.json")], "does not belong"),
    ([member(".")], "does not belong"), ([member("code/x", pax_headers={"path": "code/x\0y"})], "null"),
    ([member("code/x"), member("code/x")], "exists"),
    ([member("code/x"), member("code/x/y")], "Not a directory|exists"),
    ([member("code/x", b"", type=tarfile.CHRTYPE)], "neither"), ([member("code/x", b"", type=tarfile.FIFOTYPE)], "neither"),
    ([member("code/x", b"", type=tarfile.BLKTYPE)], "neither"), ([link("code/x", "/etc/hosts", tarfile.LNKTYPE)], "neither"),
    ([link("code", "..")], "neither"), ([link("requirements.txt", "code/x")], "does not belong"),
    ([link("code/x", "/etc")], OUT), ([link("code/x", "../job.json")], OUT), ([link("code/x", "a/../../..")], OUT),
    ([link("code/d", "../../outside"), member("code/d/x")], "exists|leads out"),
    ([link("code/a", "."), link("code/a/b", "x")], "behind a link"), ([link("code/a", "a")], "loop|levels of symbolic links"),
    ([link("code/p/q/d", "../.."), link("code/y", "p/q/d/../z")], OUT),
    ([link("code/a", "d/e/../../../z"), link("code/d", "."), member("code/p/x")], OUT),
    ([member("code/x", b"", size=2 << 30)], "too large"), ([member("code/x", b"", size=-512)], "too large"),
    ([member("code/x", b"", type=tarfile.XHDTYPE, size=1 << 40)], "headers is too large"),
    ([member("constraints.txt", b"", size=32 << 20)], "not belong"),
])  # fmt: skip
def test_nothing_of_an_archive_gets_out_of_its_directory(
    world: World, members: list[tuple[tarfile.TarInfo, bytes]], why: str
) -> None:
    before = sorted(world.archive.parent.rglob("*"))
    with pytest.raises(UserError, match=why):
        unpack(written(world, *members), world.elsewhere)
    after = sorted(
        path for path in world.archive.parent.rglob("*") if path not in (world.archive, world.elsewhere.parent)
    )
    assert after == before


@pytest.mark.parametrize(("job", "why"), [
    (b"[]", "is not a job"), (b"{", "Expecting"), (b"\xff", "decode"), (b"[" * 1000, "nested"),
    (b'{"command": "true", "code": ".."}', "names '..'"), (b'{"command": "true", "code": "code/../.."}', "names"),
    (b'{"train": {"data_dir": "../x"}}', "names '../x'"), (b'{"command": "true", "requirements": "../r.txt"}', "names"),
    (b'{"command": "true", "matrix": {"a": [1]}}', "makes this a sweep"), (b'{"command": "true", "new": 1}', "new"),
    (b'{"command": "true", "requirements": "requirements.txt"}', "requirements.txt names another file: '-r /etc/hosts'"),
])  # fmt: skip
def test_a_job_names_nothing_outside_of_its_archive(world: World, job: bytes, why: str) -> None:
    with pytest.raises(UserError, match=why):
        unpack(written(world, member("requirements.txt", b"x\n-r /etc/hosts\n"), job=job), world.elsewhere)
    assert not world.elsewhere.exists()


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"x" * 600, mtime=0), None])
def test_what_is_no_archive_is_refused_and_what_was_there_stays(world: World, content: bytes | None) -> None:
    unpack(written(world, member("code/x")), world.elsewhere)
    whole = world.archive.read_bytes()
    world.archive.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(world.archive, world.elsewhere)
    assert (world.elsewhere / "code/x").read_bytes() == b"x"


def test_an_archive_takes_the_place_of_what_was_unpacked_before(world: World) -> None:
    unpack(written(world, member("code/old")), world.elsewhere)
    unpack(written(world, member("code/new"), link("code/to", "new")), world.elsewhere)
    assert {path.name for path in (world.elsewhere / "code").iterdir()} == {"new", "to"}
    assert [path.name for path in world.elsewhere.parent.iterdir()] == [world.elsewhere.name]


def test_a_job_of_another_version_says_what_is_not_known(world: World) -> None:
    with pytest.raises(JobSpecError, match="new: "):
        unpack(written(world, job=b'{"command": "true", "new": 1}'), world.elsewhere)
    assert from_values({"command": "true"}).name == "job"
