"""What the words of `tpujob ssh`, `scp` and `forward` mean, how they end, and the line in the user's own ~/.ssh/config."""

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.api.session.session import Session
from orchestrator.api.slices import copies, shell
from orchestrator.api.slices.copies import LEASH, Copy, Place, Said, check_sources, parse, place
from orchestrator.api.slices.shell import PortWish, check_forwards, failures, port_wish, wait_for_end
from orchestrator.errors import AuthError, CloudUnavailable, ConfigError, UnexpectedReply, UserError
from orchestrator.hosts.fleet.on_workers import Ended
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.settings import Target
from orchestrator.system import fork
from tests.waiting import HANG_S, ran, until

LINE = b'Include "x"'
OWN = b"# mine\nUser me\n\nHost a\r\n  Port 1\nMatch host b\n  Port 2"  # no newline at its end, either


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    state = tmp_path / "state [1]"
    state.mkdir()
    return Session(Target("emulated", "emulated", "us-central1-a", "a test"), state)


@pytest.fixture
def config(session: Session, tmp_path: Path) -> Path:
    directory = tmp_path / "home" / ".ssh"
    directory.mkdir(mode=0o700)
    path = directory / "config"
    path.write_bytes(OWN)
    path.chmod(0o640)
    return path


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_the_line_stands_before_every_host_and_goes_without_a_trace() -> None:
    assert shell.with_line(OWN, LINE) == LINE + b"\n" + OWN
    assert shell.without_line(shell.with_line(OWN, LINE), LINE) == OWN
    assert shell.with_line(shell.with_line(OWN, LINE), LINE) == shell.with_line(OWN, LINE)
    assert shell.with_line(b"", LINE) == LINE + b"\n"


def test_a_line_that_the_user_put_below_own_settings_stays_there_and_one_of_a_host_does_not_count() -> None:
    below = b"User me\n  " + LINE + b"\nHost a\n"
    assert shell.with_line(below, LINE) == below
    inside = b"host=a\n" + LINE + b"\n"
    assert shell.with_line(inside, LINE) == LINE + b"\nhost=a\n"
    hosts = b"HostName x\n" + LINE + b"\n"
    assert shell.with_line(hosts, LINE) == hosts, "HostName begins no section"


def test_installing_twice_changes_the_file_once_and_keeps_its_mode_and_removing_restores_it(
    session: Session, config: Path
) -> None:
    assert shell.install_include(session).changed
    assert config.read_bytes().endswith(OWN) and stat.S_IMODE(config.stat().st_mode) == 0o640
    number = config.stat().st_ino
    assert not shell.install_include(session).changed
    assert config.stat().st_ino == number, "nothing is written where nothing changes"
    assert shell.remove_include(session).changed and not shell.remove_include(session).changed
    assert config.read_bytes() == OWN and names(config.parent) == ["config"]


def test_where_there_is_no_file_one_is_made_that_only_the_user_can_read(session: Session, tmp_path: Path) -> None:
    assert not shell.remove_include(session).changed and not (tmp_path / "home" / ".ssh").exists()
    file = shell.install_include(session).file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_link_stays_a_link_and_the_file_it_leads_to_is_changed(
    session: Session, config: Path, tmp_path: Path
) -> None:
    real = tmp_path / "dotfiles" / "ssh-config"
    real.parent.mkdir()
    config.replace(real)
    config.symlink_to(real)
    assert shell.install_include(session).changed
    assert config.is_symlink() and real.read_bytes().endswith(OWN) and real.read_bytes() != OWN
    assert names(config.parent) == ["config"] and names(real.parent) == ["ssh-config"]


@pytest.mark.parametrize(("trouble", "why"), [
    (lambda path: path.chmod(0o400), "it is read-only"),
    (lambda path: (path.unlink(), path.mkdir()), "it is no file"),
    (lambda path: (path.unlink(), path.symlink_to("config")), "(Symlink loop|Too many levels)"),
    (lambda path: (path.unlink(), path.symlink_to("/nonexistent/config")), "No such file or directory"),
])  # fmt: skip
def test_a_file_that_cannot_be_changed_is_left_and_the_line_is_told(
    session: Session, config: Path, trouble: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble(config)  # type: ignore[operator]
    if os.getuid() == 0:  # root may write everything
        monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & stat.S_IWUSR))
    with pytest.raises(ConfigError, match=why) as refused:
        shell.install_include(session)
    assert refused.value.hint is not None and 'Include "' in refused.value.hint
    assert not list(config.parent.glob(".*"))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_the_real_ssh_finds_the_hosts_of_slices_and_no_others_by_the_line(session: Session, config: Path) -> None:
    (session.lease_directory("l1") / "ssh_config").write_text("Host tpu-mine-0\n  Port 77\n")
    shell.install_include(session)

    def port(host: str) -> str:
        words = ["ssh", "-G", "-F", str(config), host]
        done = ran(words, check=True)
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)["port"]

    assert (port("tpu-mine-0"), port("a"), port("tpu-other-0")) == ("77", "1", "22")
    session.forget_keys("l1")
    assert port("tpu-mine-0") == "22"


@pytest.mark.parametrize(("word", "meaning"), [
    ("mine:x", Place("x", "mine")), ("mine:", Place("", "mine")), ("mine:2:x", Place("x", "mine", 2)),
    ("mine:2:", Place("", "mine", 2)), ("mine:2", Place("2", "mine")),
    ("mine:/a b/*:c\nd", Place("/a b/*:c\nd", "mine")), ("mine:x:2:y", Place("x:2:y", "mine")),
    ("./mine:x", Place("./mine:x")), ("/tmp/12:30", Place("/tmp/12:30")), (":x", Place(":x")),
    ("a b", Place("a b")), ("-r", Place("-r")),
])  # fmt: skip
def test_a_place_is_remote_where_scp_would_see_a_host(word: str, meaning: Place) -> None:
    assert place(word) == meaning


def test_workers_are_named_in_the_place_or_by_the_option() -> None:
    copy = parse(["mine:1:a", "mine:b", "dir"], None, recursive=True)
    assert copy == Copy("mine", (Place("a", "mine", 1), Place("b", "mine")), Place("dir"), recursive=True)
    assert parse(["a", "mine:"], "3", recursive=False).worker == 3
    assert parse(["a", "mine:"], "all", recursive=False).everywhere
    assert parse(["mine:a", "mine:b", "dir"], "all", recursive=False).everywhere
    assert not parse(["mine:0:a", "mine:1:"], None, recursive=False).everywhere


@pytest.mark.parametrize(("words", "worker", "message"), [
    (["mine:a"], None, "nothing to copy to"), (["a", "b"], None, "neither SRC nor DST names a slice"),
    (["mine:a", "yours:b"], None, "one slice at a time, not mine and yours"),
    (["mine:1:a", "b"], "2", "named twice"), (["mine:1:a", "b"], "all", "named twice"),
    (["mine:a", "mine:b"], "all", "from this machine to all workers, or from them"),
    (["mine:a", "b", "c"], "all", "from this machine to all workers, or from them"),
    (["a", "mine:b", "mine:"], "all", "from this machine to all workers, or from them"),
    (["a", "mine:"], "-1", "--worker -1: must be the index of a worker"),
    (["a", "mine:"], "", "must be the index"), (["a", "mine:"], "²", "must be the index"),
])  # fmt: skip
def test_what_scp_cannot_be_asked_is_said_before_anything_is(
    words: list[str], worker: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse(words, worker, recursive=False)


@pytest.mark.parametrize("worker", [None, "all"])
def test_local_files_that_cannot_be_copied_are_said_once_and_before_a_connection(
    tmp_path: Path, worker: str | None
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "file").touch()
    missing = parse([f"{tmp_path}/file", f"{tmp_path}/none", "mine:"], worker, recursive=True)
    with pytest.raises(UserError, match=r"none: No such file or directory"):
        check_sources(missing)
    with pytest.raises(UserError, match=r"tree: is a directory\b") as raised:
        check_sources(parse([f"{tmp_path}/tree", "mine:"], worker, recursive=False))
    assert raised.value.hint == "copy it with `-r`"
    check_sources(parse([f"{tmp_path}/tree", f"{tmp_path}/file", "mine:"], worker, recursive=True))
    check_sources(parse(["mine:none", "here"], worker, recursive=False))


def test_what_scp_says_alike_of_several_workers_is_shown_once_whatever_their_names() -> None:
    workers = [WorkerAddress(index, f"10.0.0.{index}", 22000 + index, instance=f"w-{index}") for index in range(4)]
    said, shown = Said("node", workers), list[tuple[int, list[str]]]()
    for index in (2, 0, 1):
        lines = [f"ssh: connect to host 10.0.0.{index} port {22000 + index}: refused", f"node-{index}: w-{index} lost"]
        said(index, 255, lines, lambda *words: shown.append(words))
    assert [index for index, _ in shown] == [2]
    said(3, 1, ["scp: shard-1: No such file"], lambda *words: shown.append(words))
    said(2, 1, ["scp: shard-2: No such file"], lambda *words: shown.append(words))
    said(1, 0, [], lambda *words: shown.append(words))
    assert [lines[0] for _, lines in shown[1:]] == ["scp: shard-1: No such file", "scp: shard-2: No such file"]


def test_a_program_on_a_leash_keeps_its_code_its_arguments_and_its_output() -> None:
    process, leash = fork.start(
        ["sh", "-c", LEASH, "scp", "sh", "-c", 'cat; echo "$@"; exit 5', "x", "a b", "$HOME"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.communicate(timeout=HANG_S)[0] == b"a b $HOME\n"
    assert process.returncode == 5
    leash.close()


def test_a_program_on_a_leash_ends_with_it() -> None:
    process, leash = fork.start(["sh", "-c", LEASH, "scp", "sleep", "1000"], stdout=subprocess.PIPE)
    here = psutil.Process(process.pid)
    family = until(lambda: [each for each in here.children(recursive=True) if "sleep" in each.cmdline()], "the program")
    leash.close()
    assert process.wait(HANG_S) != 0
    psutil.wait_procs(family, HANG_S)
    assert process.stdout is not None and os.read(process.stdout.fileno(), 1) == b"", "nothing holds its output"
    process.stdout.close()


def test_a_worker_whose_scp_cannot_be_started_counts_as_failed_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, said = fork.start, list[str]()

    def failing(argv: list[str], **options: Any) -> Any:
        if argv[-1] == f"{tmp_path}/1":
            raise OSError(errno.EMFILE, "Too many open files")
        return start(argv, **options)

    monkeypatch.setattr(copies.fork, "start", failing)
    monkeypatch.setattr(copies, "_argv_for", lambda _shell, _copy, worker: ["touch", f"{tmp_path}/{worker}"])
    monkeypatch.setattr(copies, "AT_ONCE", 1)
    workers = [WorkerAddress(index, "127.0.0.1") for index in range(3)]
    shell: Any = SimpleNamespace(
        fleet=SimpleNamespace(workers=workers), lease=SimpleNamespace(name=SimpleNamespace(node="node"))
    )
    session: Any = SimpleNamespace(reporter=SimpleNamespace(notice=lambda _stage, text: said.append(text)))
    copy = Copy("mine", (Place("a"),), Place("", "mine"), everywhere=True)
    assert copies.copy_everywhere(session, shell, copy, lambda _worker, _lines: None) == 255
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
    assert said == ["worker1: scp cannot be started: Too many open files"]


@pytest.mark.parametrize(("word", "wish"), [
    ("6006", PortWish(6006)), ("8080:6006", PortWish(6006, 8080)), ("65535", PortWish(65535)), ("mine", None),
    ("mine-1", None), ("", None), ("6006/tcp", None), ("-1", None),
])  # fmt: skip
def test_a_word_is_a_port_or_the_name_of_a_slice(word: str, wish: PortWish | None) -> None:
    assert port_wish(word) == wish


@pytest.mark.parametrize("word", ["0", "65536", "0:6006", "99999:1"])
def test_a_number_that_is_no_port_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=f"{word} is no port"):
        port_wish(word)


def test_an_api_that_does_not_tell_of_the_slice_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "LOOK_S", 0.0)
    monkeypatch.setattr(shell, "ASK_S", 0.0)
    monkeypatch.setattr(shell, "ASK_EVERY_S", 0.0)
    answers = [CloudUnavailable("away"), AuthError("sign in again"), UnexpectedReply("what?"), None]

    def run(program: Any, cloud: str) -> None:
        program.close()
        if (answer := answers.pop(0)) is not None:
            raise answer

    session: Any = SimpleNamespace(ledger=SimpleNamespace(lease=lambda _id: SimpleNamespace(down_at=None)), run=run)
    opened: Any = SimpleNamespace(lease=SimpleNamespace(id="l", handle="mine", name="a name", cloud="emulated"))
    assert wait_for_end(session, opened) == "mine is gone"
    assert answers == []


@pytest.mark.parametrize(("option", "value"), [
    ("-L", "6006:localhost:6006"), ("-L", "127.0.0.1:6006:localhost:6006"), ("-L", "*:6006:localhost:6006"),
    ("-L", "[::1]:6006:[::1]:6006"), ("-L", "/tmp/here:/tmp/there"), ("-L", "6006:/tmp/there"), ("-R", "8080"),
    ("-R", "0.0.0.0:8080"), ("-D", "1080"), ("-D", "127.0.0.1:1080"),
])  # fmt: skip
def test_what_ssh_takes_for_a_forward_is_left_to_it(option: str, value: str) -> None:
    check_forwards(option, [value])


@pytest.mark.parametrize(("option", "value", "form"), [
    *(("-L", value, "PORT:HOST:PORT") for value in ("foo", "6006", "localhost:6006", "99999:a:1")),
    ("-R", "foo", "PORT:HOST:PORT"),
    *(("-D", value, "[ADDRESS:]PORT, ") for value in ("foo", "99999", "1080:localhost:80", "/tmp/here")),
])  # fmt: skip
def test_what_is_no_forward_is_said_with_the_form_of_one(option: str, value: str, form: str) -> None:
    with pytest.raises(UserError, match=f"{option} {value}: ") as error:
        check_forwards(option, [value])
    assert form in str(error.value.hint)


def test_workers_that_fail_alike_are_one_line() -> None:
    assert failures([Ended(index, 3) for index in (2, 0, 1, 3)]) == ["worker0 to worker3: exit code 3"]


def test_other_codes_and_other_causes_are_lines_of_their_own_the_first_failure_first() -> None:
    ended = [
        Ended(5, 1), Ended(1, 255, "worker1: the connection was cut"), Ended(0, 0), Ended(4, 2), Ended(7, 1),
        Ended(3, 255, "worker3: the connection was cut"), Ended(6, 255, "worker6: not started"), Ended(8, 255),
    ]  # fmt: skip
    assert failures(ended) == [
        "worker5 and worker7: exit code 1", "worker1: the connection was cut (2 alike: worker1 and worker3)",
        "worker4: exit code 2", "worker6: not started", "worker8: exit code 255",
    ]  # fmt: skip


def test_no_failure_is_no_line() -> None:
    assert failures([Ended(0, 0)]) == []
