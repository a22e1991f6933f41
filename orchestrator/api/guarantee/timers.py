"""Install, show and remove timers that run `tpujob gc --local`: a systemd user timer, a launchd agent or a cron line.

`install-gc` installs and removes them, `doctor` looks for them. Each is written whole from a `Schedule`: installing one twice
is the same as once.
"""

import getpass
import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import orchestrator
from orchestrator import settings
from orchestrator.errors import ConfigError, TpujobError
from orchestrator.promise.guardian_process import has_user_manager, with_absolute_paths
from orchestrator.system import whole_file

NAME = "tpujob-gc"
LABEL = "dev.tpujob.gc"
MARKER = f"# {NAME}: written by `tpujob install-gc`"
PROGRAM_TIMEOUT_S = 30.0
LINGER = Path("/var/lib/systemd/linger")


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to run and how often. `environ` is the whole environment of the command."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    directory: Path
    every_s: int
    log: Path


class Timer(Protocol):
    kind: ClassVar[str]

    def written(self, schedule: Schedule) -> dict[str, str]:
        """Return the text to write by file; for cron its line, under `crontab`."""

    def install(self, schedule: Schedule) -> None:
        """Write and start the timer, in place of an earlier one. Raises TpujobError when its program fails."""

    def remove(self) -> bool:
        """Remove the timer. False: there was none."""

    def present(self) -> str | None:
        """Return what is installed and whether it is active; None when nothing is."""


def choose(environ: Mapping[str, str], platform: str) -> Timer:
    """Return the best timer of this machine. Raises ConfigError where there is none."""
    for timer in every(environ, platform):
        return timer
    raise ConfigError(
        "this machine has neither a systemd user manager, nor launchd, nor crontab",
        hint=f"run `{shlex.join(['tpujob', 'gc', '--local', '--quiet'])}` every few minutes by other means",
    )


def every(environ: Mapping[str, str], platform: str) -> list[Timer]:
    """Return every timer that this machine can have, the best first."""
    found: list[Timer] = []
    path = environ.get("PATH")
    if platform == "darwin" and shutil.which("launchctl", path=path):
        found.append(Launchd(_home(environ)))
    if shutil.which("systemctl", path=path) and has_user_manager(environ):
        found.append(Systemd(Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config")))
    if shutil.which("crontab", path=path):
        found.append(Cron())
    return found


@dataclass(frozen=True, slots=True)
class Systemd:
    config: Path
    kind: ClassVar[str] = "systemd user timer"

    def written(self, schedule: Schedule) -> dict[str, str]:
        units = self.config / "systemd" / "user"
        environment = "\n".join(f"Environment={_quoted(f'{k}={v}')}" for k, v in schedule.environ.items())
        service = f"""[Unit]
Description=Finish the teardowns that tpujob owes

[Service]
Type=oneshot
ExecStart={" ".join(_quoted(word, command=True) for word in schedule.argv)}
WorkingDirectory={str(schedule.directory).replace("%", "%%")}
{environment}
TimeoutStartSec=30min
Nice=5
"""
        timer = f"""[Unit]
Description=Finish the teardowns that tpujob owes, every few minutes

[Timer]
OnBootSec=1min
OnUnitActiveSec={schedule.every_s}s
AccuracySec=30s
Persistent=true

[Install]
WantedBy=timers.target
"""
        return {str(units / f"{NAME}.service"): service, str(units / f"{NAME}.timer"): timer}

    def install(self, schedule: Schedule) -> None:
        _write(self.written(schedule))
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", f"{NAME}.timer")
        _run("systemctl", "--user", "restart", f"{NAME}.timer")

    def remove(self) -> bool:
        units = [self.config / "systemd" / "user" / f"{NAME}.{kind}" for kind in ("timer", "service")]
        if not any(unit.exists() for unit in units):
            return False
        _run("systemctl", "--user", "disable", "--now", f"{NAME}.timer", must=False)
        for unit in units:
            unit.unlink(missing_ok=True)
        _run("systemctl", "--user", "daemon-reload", must=False)
        return True

    def present(self) -> str | None:
        if not (self.config / "systemd" / "user" / f"{NAME}.timer").exists():
            return None
        state = _run("systemctl", "--user", "is-active", f"{NAME}.timer", must=False).strip() or "unknown"
        return f"{self.kind} {NAME}.timer, {state}"


@dataclass(frozen=True, slots=True)
class Launchd:
    home: Path
    kind: ClassVar[str] = "launchd agent"

    @property
    def _plist(self) -> Path:
        return self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def written(self, schedule: Schedule) -> dict[str, str]:
        agent = {
            "Label": LABEL,
            "ProgramArguments": list(schedule.argv),
            "EnvironmentVariables": dict(schedule.environ),
            "WorkingDirectory": str(schedule.directory),
            "StartInterval": schedule.every_s,
            "RunAtLoad": True,
            "StandardOutPath": str(schedule.log),
            "StandardErrorPath": str(schedule.log),
        }
        return {str(self._plist): plistlib.dumps(agent).decode()}

    def install(self, schedule: Schedule) -> None:
        _write(self.written(schedule))
        _run("launchctl", "bootout", f"{_domain()}/{LABEL}", must=False)  # an earlier one
        _run("launchctl", "bootstrap", _domain(), str(self._plist))

    def remove(self) -> bool:
        if not self._plist.exists():
            return False
        _run("launchctl", "bootout", f"{_domain()}/{LABEL}", must=False)
        self._plist.unlink()
        return True

    def present(self) -> str | None:
        if not self._plist.exists():
            return None
        loaded = _run("launchctl", "print", f"{_domain()}/{LABEL}", must=False)
        return f"{self.kind} {LABEL}, {'loaded' if loaded else 'not loaded'}"


@dataclass(frozen=True, slots=True)
class Cron:
    kind: ClassVar[str] = "cron line"

    def written(self, schedule: Schedule) -> dict[str, str]:
        minutes = schedule.every_s // 60
        when = f"*/{minutes} * * * *" if minutes < 60 else f"0 */{minutes // 60} * * *"
        environment = [f"{name}={value}" for name, value in schedule.environ.items()]
        command = f"cd {shlex.quote(str(schedule.directory))} && {shlex.join(['env', *environment, *schedule.argv])}"
        # For cron a bare % ends the command, and nothing but a backslash before it helps.
        line = f"{when} {command} >> {shlex.quote(str(schedule.log))} 2>&1 {MARKER}".replace("%", "\\%")
        return {"crontab": line}

    def install(self, schedule: Schedule) -> None:
        self._replace([*self._others(), self.written(schedule)["crontab"]])

    def remove(self) -> bool:
        if self.present() is None:
            return False
        self._replace(self._others())
        return True

    def present(self) -> str | None:
        try:
            return self.kind if any(line.endswith(MARKER) for line in self._lines()) else None
        except TpujobError:
            return None  # this user may have no crontab at all

    def _others(self) -> list[str]:
        return [line for line in self._lines() if not line.endswith(MARKER)]

    @staticmethod
    def _lines() -> list[str]:
        """Raise TpujobError unless the crontab was read whole: what is not read would be lost when it is written."""
        done = _call("crontab", "-l")
        if done.returncode != 0 and "no crontab" not in done.stderr:
            raise _failed(done)
        return done.stdout.splitlines() if done.returncode == 0 else []

    @staticmethod
    def _replace(lines: list[str]) -> None:
        _run("crontab", "-", stdin="".join(f"{line}\n" for line in lines))


def _write(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = Path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_file.write(path, text, 0o600)  # a proxy's password may be in there
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _run(*argv: str, stdin: str | None = None, must: bool = True) -> str:
    """Return what the program printed; empty when it failed and `must` is off."""
    done = _call(*argv, stdin=stdin)
    if done.returncode != 0 and must:
        raise _failed(done)
    return done.stdout if done.returncode == 0 else ""


def _call(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, -1, "", str(error))


def _failed(done: subprocess.CompletedProcess[str]) -> TpujobError:
    reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
    command = shlex.join(done.args)
    return TpujobError(f"`{command}` failed: {reason}", hint="`--print` shows what would be installed")


def _quoted(word: str, *, command: bool = False) -> str:
    """Quote for systemd: % begins a specifier, and in a command line $ a variable."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def lingers(directory: Path = LINGER) -> bool:
    """Return whether systemd keeps this user's processes and timers after logout."""
    try:
        return (directory / getpass.getuser()).exists()
    except (KeyError, OSError):
        return False


# The variables that decide which cloud, project and state directory a command uses, and how it connects.
KEPT_VARIABLES = (
    *("TPUJOB_CLOUD", "TPUJOB_PROJECT", "TPUJOB_ZONE", "TPUJOB_ENDPOINT", "TPUJOB_TOKEN_FILE", "TPUJOB_EMULATED_SPEED"),
    "KUBECONFIG",
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CONFIG", "CLOUDSDK_ACTIVE_CONFIG_NAME"),
    *("CLOUDSDK_CORE_PROJECT", "XDG_CONFIG_HOME", "PYTHONPATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"),
    *("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)


@dataclass(frozen=True, slots=True)
class InstalledTimer:
    """`summary` names the timer and whether it is active; `written`: files, or `crontab`."""

    summary: str
    written: tuple[str, ...]
    ends_at_logout: bool


def preview(every_s: int) -> Mapping[str, str]:
    """Return what `install` would write, by file (`crontab` for a cron line). Raises ConfigError without a usable timer."""
    return choose(os.environ, sys.platform).written(schedule(every_s, os.environ))


def install(every_s: int) -> InstalledTimer:
    """Install the best timer of this machine, in place of any other, with today's state directory, cloud and project.

    Raises ConfigError without a usable timer, TpujobError when its program fails.
    """
    planned = schedule(every_s, os.environ)
    timer = choose(os.environ, sys.platform)
    timer.install(planned)
    for other in every(os.environ, sys.platform):
        if other.kind != timer.kind:
            other.remove()  # of an earlier time, when this machine had no better one
    ends_at_logout = timer.kind == Systemd.kind and not lingers()
    return InstalledTimer(timer.present() or timer.kind, tuple(timer.written(planned)), ends_at_logout)


def uninstall() -> tuple[str, ...]:
    """Remove every timer, and return their kinds."""
    return tuple(timer.kind for timer in every(os.environ, sys.platform) if timer.remove())


def schedule(every_s: int, environ: Mapping[str, str]) -> Schedule:
    """Return what the timer runs, with these variables of the environment. Raises ConfigError for one of several lines."""
    state = settings.state_dir(environ)
    kept = {name: environ[name] for name in KEPT_VARIABLES if environ.get(name)}
    kept = with_absolute_paths(kept, str(Path.cwd()))
    kept = {"TPUJOB_STATE_DIR": str(state)} | kept
    for name, value in kept.items():
        if "\n" in value or "\0" in value:
            raise ConfigError(
                f"the value of {name} spans several lines and cannot be written into a timer",
                hint=f"unset {name}, or correct it",
            )
    return Schedule(
        argv=(sys.executable, "-m", "orchestrator.cli", "gc", "--local", "--quiet"),
        environ=kept,
        directory=orchestrator.ROOT,
        every_s=every_s,
        log=settings.open_state_dir(state) / "gc.log",
    )
