"""`install-gc`: install, show and remove the timer of this machine that runs `tpujob gc --local`."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator import settings
from orchestrator.client.guarantee import timers
from orchestrator.client.guarantee.timers import Schedule, Systemd
from orchestrator.core.text.environment_paths import with_absolute_paths
from orchestrator.errors import ConfigError

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
    return timers.choose(os.environ, sys.platform).written(schedule(every_s, os.environ))


def install(every_s: int) -> InstalledTimer:
    """Install the best timer of this machine, in place of any other, with today's state directory, cloud and project.

    Raises ConfigError without a usable timer, TpujobError when its program fails.
    """
    planned = schedule(every_s, os.environ)
    timer = timers.choose(os.environ, sys.platform)
    timer.install(planned)
    for other in timers.every(os.environ, sys.platform):
        if other.kind != timer.kind:
            other.remove()  # of an earlier time, when this machine had no better one
    ends_at_logout = timer.kind == Systemd.kind and not timers.lingers()
    return InstalledTimer(timer.present() or timer.kind, tuple(timer.written(planned)), ends_at_logout)


def uninstall() -> tuple[str, ...]:
    """Remove every timer, and return their kinds."""
    return tuple(timer.kind for timer in timers.every(os.environ, sys.platform) if timer.remove())


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
