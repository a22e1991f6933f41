"""`install-gc` with programs that only pretend: what is written, that twice is once, and that it can be taken away."""

import json
import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.api.guarantee import timers
from orchestrator.api.guarantee.timers import KEPT_VARIABLES, Cron, Launchd, Schedule, Systemd, lingers, schedule
from orchestrator.cli.commands.guarantee.gc import every_seconds
from orchestrator.errors import ConfigError, TpujobError, UserError
from tests import ROOT
from tests.waiting import ran

FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$FAKE/asked"
[ -e "$FAKE/broken" ] && { echo "Failed to connect to bus" >&2; exit 1; }
case "$(basename "$0") $*" in
  "crontab -l") [ -e "$FAKE/crontab" ] || { echo "no crontab for me" >&2; exit 1; }; cat "$FAKE/crontab" ;;
  "crontab -") cat > "$FAKE/crontab" ;;
  "systemctl --user is-active"*) echo active ;;
  "launchctl print"*) echo running ;;
  "launchctl bootout"*) exit 3 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a state directory and a directory for programs; `asked` is what they were asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cat", "basename"):
        (programs / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    for name in (*KEPT_VARIABLES, "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def has(machine: Path, *programs: str) -> None:
    for name in programs:
        path = machine / "bin" / name
        path.write_text(FAKE)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def with_user_manager(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(machine, "systemctl", "systemd-run")
    (machine / "run" / "systemd").mkdir(parents=True)
    (machine / "run" / "systemd" / "private").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine / "run"))


def asked(machine: Path) -> list[str]:
    return (machine / "asked").read_text().splitlines() if (machine / "asked").exists() else []


def made(**environ: str) -> Schedule:
    return schedule(300, {**os.environ, **environ})


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_timer_keeps_the_state_directory_the_cloud_and_the_project_of_today(machine: Path) -> None:
    wanted = made(TPUJOB_PROJECT="acme", TPUJOB_CLOUD="google", SHELL="/bin/zsh", AWS_SECRET_ACCESS_KEY="x")
    assert wanted.environ == {
        "TPUJOB_STATE_DIR": str(machine / "state"),
        "TPUJOB_PROJECT": "acme",
        "TPUJOB_CLOUD": "google",
    }
    assert wanted.argv[1:] == ("-m", "orchestrator.cli", "gc", "--local", "--quiet")
    assert (wanted.every_s, wanted.log) == (300, machine / "state" / "gc.log")


def test_a_timer_finds_the_files_that_variables_name_from_its_own_directory(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine)
    assert made(KUBECONFIG="team.yaml").environ["KUBECONFIG"] == str(machine / "team.yaml")


def test_the_default_state_directory_is_written_out_because_the_timer_may_have_other_defaults(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPUJOB_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(machine / "elsewhere"))
    assert made().environ["TPUJOB_STATE_DIR"] == str(machine / "elsewhere" / "tpujob")


@pytest.mark.parametrize(("text", "every_s"), [("1m", 60), ("5m", 300), ("1h", 3600), ("6h", 21600), ("1d", 86400)])
def test_how_often(text: str, every_s: int) -> None:
    assert every_seconds(text) == every_s


@pytest.mark.parametrize("text", ["", "5", "30s", "90s", "90m", "2d", "soon", "0m"])
def test_how_often_in_other_words_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--every"):
        every_seconds(text)


def test_a_value_of_several_lines_is_refused(machine: Path) -> None:
    with pytest.raises(ConfigError, match="several lines"):
        made(TPUJOB_PROJECT="a\nExecStart=/bin/evil")


def test_the_command_of_a_timer_runs_with_nothing_but_its_environment(machine: Path) -> None:
    wanted = made(PYTHONPATH="")
    done = ran(wanted.argv, env=dict(wanted.environ), cwd=wanted.directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (machine / "state" / "ledger.sqlite3").exists()


# -- which one ---------------------------------------------------------------------------------------------------------


def test_the_best_that_the_machine_has_is_chosen(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="neither a systemd") as caught:
        timers.choose(os.environ, "linux")
    assert "tpujob gc --local --quiet" in (caught.value.hint or "")
    has(machine, "crontab", "launchctl")
    assert isinstance(timers.choose(os.environ, "linux"), Cron)
    assert isinstance(timers.choose(os.environ, "darwin"), Launchd)
    with_user_manager(machine, monkeypatch)
    assert isinstance(timers.choose(os.environ, "linux"), Systemd)
    (machine / "run" / "systemd" / "private").unlink()
    assert isinstance(timers.choose(os.environ, "linux"), Cron), "systemctl without a manager is no use"


# -- systemd -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def systemd(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    with_user_manager(machine, monkeypatch)
    return Systemd(machine / "home" / ".config")


def test_a_systemd_timer_is_written_and_started_and_twice_is_once(machine: Path, systemd: Systemd) -> None:
    assert systemd.present() is None
    systemd.install(made())
    units = machine / "home" / ".config" / "systemd" / "user"
    before = {path.name: path.read_text() for path in units.iterdir()}
    assert set(before) == {"tpujob-gc.service", "tpujob-gc.timer"}
    assert "OnUnitActiveSec=300s" in before["tpujob-gc.timer"] and "OnBootSec=1min" in before["tpujob-gc.timer"]
    assert "Persistent=true" in before["tpujob-gc.timer"]
    assert asked(machine)[:3] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable tpujob-gc.timer",
        "systemctl --user restart tpujob-gc.timer",
    ]
    systemd.install(made())
    assert {path.name: path.read_text() for path in units.iterdir()} == before
    assert systemd.present() == "systemd user timer tpujob-gc.timer, active"
    assert [stat.S_IMODE(path.stat().st_mode) for path in units.iterdir()] == [0o600, 0o600]
    assert systemd.remove() and not systemd.remove()
    assert list(units.iterdir()) == [] and systemd.present() is None


def test_odd_values_reach_the_command_of_a_unit_as_they_are() -> None:
    assert timers._quoted('A=50% "x" \\ $HOME') == '"A=50%% \\"x\\" \\\\ $HOME"'
    assert timers._quoted("/opt/a b/$x", command=True) == '"/opt/a b/$$x"'


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_itself_accepts_the_units(machine: Path, systemd: Systemd) -> None:
    analyze = shutil.which("systemd-analyze", path="/usr/bin:/bin")
    systemd.install(made(TPUJOB_PROJECT="acme", HTTPS_PROXY="http://u:p%20w@proxy:1"))
    units = [str(path) for path in (machine / "home" / ".config" / "systemd" / "user").iterdir()]
    done = ran(
        [str(analyze), "--user", "verify", "--man=no", *units],
        env={"PATH": "/usr/bin:/bin", "HOME": str(machine), "XDG_RUNTIME_DIR": str(machine / "run")},
    )
    assert "tpujob" not in done.stderr, done.stderr


def test_a_manager_that_does_not_answer_is_said(machine: Path, systemd: Systemd) -> None:
    (machine / "broken").touch()
    with pytest.raises(TpujobError, match="daemon-reload` failed: Failed to connect to bus"):
        systemd.install(made())
    assert systemd.present() == "systemd user timer tpujob-gc.timer, unknown"


def test_lingering_is_a_file_of_the_users_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    assert not lingers(tmp_path)
    (tmp_path / "alice").touch()
    assert lingers(tmp_path)


# -- cron --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cron(machine: Path) -> Cron:
    has(machine, "crontab")
    return Cron()


def crontab(machine: Path) -> list[str]:
    return (machine / "crontab").read_text().splitlines()


def test_a_cron_line_is_added_beside_what_is_there_and_twice_is_once(machine: Path, cron: Cron) -> None:
    mine = ["MAILTO=me", "# backup", "0 3 * * * backup --all"]
    (machine / "crontab").write_text("\n".join(mine) + "\n")
    cron.install(made())
    cron.install(made())
    *kept, line = crontab(machine)
    assert kept == mine
    assert line.startswith("*/5 * * * * cd ") and line.endswith(timers.MARKER)
    assert cron.present() == "cron line"
    assert cron.remove() and not cron.remove()
    assert crontab(machine) == mine


def test_a_first_crontab_is_made(machine: Path, cron: Cron) -> None:
    assert cron.present() is None
    cron.install(schedule(7200, os.environ))
    [line] = crontab(machine)
    assert line.startswith("0 */2 * * * ")


def test_a_crontab_that_cannot_be_read_is_not_overwritten(machine: Path, cron: Cron) -> None:
    (machine / "crontab").write_text("0 3 * * * backup --all\n")
    (machine / "broken").touch()
    with pytest.raises(TpujobError, match="crontab -l"):
        cron.install(made())
    assert crontab(machine) == ["0 3 * * * backup --all"]
    assert not any(line == "crontab -" for line in asked(machine))


def test_what_cron_hands_to_the_shell_is_the_command_with_its_environment(machine: Path, cron: Cron) -> None:
    """Undo what cron does (\\% becomes %), and let a real shell run the line with a command that tells what it sees."""
    tell = (
        sys.executable,
        "-c",
        "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))",
    )
    odd = "http://u:50%@proxy it's"
    wanted = Schedule((*tell, "a b", "$HOME"), {"HTTPS_PROXY": odd}, machine, 300, machine / "a log")
    line = cron.written(wanted)["crontab"].replace("\\%", "%").removeprefix("*/5 * * * * ")
    assert "%" not in cron.written(wanted)["crontab"].replace("\\%", "")
    subprocess.run(["/bin/sh", "-c", line], check=True, env={"PATH": "/usr/bin:/bin"})
    environ, argv, directory = json.loads((machine / "a log").read_text())
    assert (environ["HTTPS_PROXY"], argv, directory) == (odd, ["a b", "$HOME"], str(machine))


# -- launchd -----------------------------------------------------------------------------------------------------------


def test_a_launchd_agent_is_written_and_loaded(machine: Path) -> None:
    has(machine, "launchctl")
    agent = Launchd(machine / "home")
    agent.install(made())
    path = machine / "home" / "Library" / "LaunchAgents" / "dev.tpujob.gc.plist"
    said = plistlib.loads(path.read_bytes())
    assert said["ProgramArguments"] == list(made().argv)
    assert (said["StartInterval"], said["RunAtLoad"]) == (300, True)
    assert said["EnvironmentVariables"] == {"TPUJOB_STATE_DIR": str(machine / "state")}
    uid = os.getuid()
    assert asked(machine) == [f"launchctl bootout gui/{uid}/dev.tpujob.gc", f"launchctl bootstrap gui/{uid} {path}"]
    assert agent.present() == "launchd agent dev.tpujob.gc, loaded"
    assert agent.remove() and not agent.remove() and agent.present() is None


# -- the command -------------------------------------------------------------------------------------------------------


def tpujob(*words: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "orchestrator.cli", "install-gc", *words], cwd=ROOT)


def test_print_shows_the_line_and_changes_nothing(machine: Path) -> None:
    has(machine, "crontab")
    done = tpujob("--print", "--every", "10m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# crontab\n*/10 * * * * cd ")
    assert asked(machine) == []
    words = shlex.split(done.stdout.splitlines()[1].partition(" >> ")[0])
    assert words[-5:] == ["-m", "orchestrator.cli", "gc", "--local", "--quiet"]


def test_install_and_uninstall_say_what_they_did(machine: Path) -> None:
    has(machine, "crontab")
    done = tpujob()
    assert (done.returncode, done.stdout) == (0, "installed: cron line, every 5m\n"), done.stderr
    assert tpujob().returncode == 0
    assert len(crontab(machine)) == 1
    assert tpujob("--uninstall").stdout == "removed: cron line\n"
    assert tpujob("--uninstall").stdout == "none was installed\n"
    assert crontab(machine) == []


def test_a_better_timer_takes_the_place_of_the_cron_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(machine, "crontab")
    assert tpujob().returncode == 0
    with_user_manager(machine, monkeypatch)
    assert tpujob().stdout == "installed: systemd user timer tpujob-gc.timer, active, every 5m\n"
    assert crontab(machine) == []


def test_a_machine_with_none_of_them_gets_an_error_and_a_hint(machine: Path) -> None:
    done = tpujob()
    assert done.returncode == 64 and "hint: run `tpujob gc" in done.stderr
