"""Which cloud, which project, which zone, and where state lives: decided once per command, from what is configured.

An explicit option goes before the environment, that before our own settings file, gcloud's configuration and the
application default credentials; with no project anywhere it is the emulator. I ask no network and run no gcloud; the
standard library is enough, and yaml when there is a settings file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.lease import timings as claim_timings
from orchestrator.core.lease.timings import Timings
from orchestrator.core.text import names
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.clouds.google.config import Found
    from orchestrator.core.planning.grants import Grant

EMULATED, GOOGLE = "emulated", "google"
EMULATED_PROJECT = "emulated"
MAX_EMULATED_CORES = 64

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """`why` is the first line of output; `source` names what decided it."""

    kind: str
    project: str
    zone: str | None = None
    why: str = ""
    source: str = "default"
    network: str = "default"
    service_account: str | None = None
    runs_dir: str | None = None
    emulated_cores: int | None = None
    endpoint: str | None = None  # of an emulator that the environment names
    token_file: str | None = None
    timings: Timings = claim_timings.GOOGLE
    grants: tuple[Grant, ...] = ()  # quota that the person need not pay for


def resolve(cli_cloud: str | None, cli_project: str | None, environ: Environ) -> Target:
    """Raises ConfigError for what is set and unusable; nothing that is set is passed over in silence."""
    path = settings_path(environ)
    own = read_settings(path, environ)
    kind, asked_by = _asked_kind(cli_cloud, environ)
    endpoint = environ.get("TPUJOB_ENDPOINT") or None
    if endpoint is not None:
        if problem := loopback_problem(endpoint):
            raise ConfigError(f"TPUJOB_ENDPOINT: {endpoint!r} {problem}", hint="it can only name an emulator; unset it")
        if kind == GOOGLE:
            raise ConfigError(f"{asked_by} asks for google, TPUJOB_ENDPOINT for an emulator", hint="drop one of them")
        kind, asked_by = EMULATED, "TPUJOB_ENDPOINT"
    emulated = Target(
        EMULATED,
        _project(cli_project, "--project") if cli_project else EMULATED_PROJECT,
        _zone(environ["TPUJOB_ZONE"], "TPUJOB_ZONE") if environ.get("TPUJOB_ZONE") else own.get("zone"),
        source=asked_by,
        network=own.get("network", "default"),
        service_account=own.get("service_account"),
        runs_dir=own.get("runs_dir"),
        emulated_cores=own.get("emulated_cores"),
        endpoint=endpoint,
        token_file=environ.get("TPUJOB_TOKEN_FILE") or None,
        timings=pace_of(EMULATED, environ),
        grants=own.get("quota", ()),
    )
    if kind == EMULATED:
        return replace(emulated, why=_emulated_words(endpoint, f"{asked_by} asks for it"))
    explicit = cli_project or environ.get("TPUJOB_PROJECT")
    source = "--project" if cli_project else "TPUJOB_PROJECT"
    if not explicit and "project" in own:
        explicit, source = own["project"], str(path)
    return _google(emulated, kind, (explicit, source) if explicit else None, environ)


def pace_of(kind: str, environ: Environ) -> Timings:
    """How fast claims are judged in that cloud: the emulated one is faster, by TPUJOB_EMULATED_SPEED times."""
    if kind == GOOGLE:
        return claim_timings.GOOGLE
    text = environ.get("TPUJOB_EMULATED_SPEED")
    if not text:
        return claim_timings.emulated()
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 1 <= speed <= 1000:
        raise ConfigError(f"TPUJOB_EMULATED_SPEED: {text!r} is not a number between 1 and 1000", hint="unset it for 30")
    return claim_timings.emulated(speed)


def _google(emulated: Target, kind: str | None, named: tuple[str, str] | None, environ: Environ) -> Target:
    """Google's cloud if a project is configured anywhere, else the emulator unless `kind` insists."""
    from orchestrator.clouds.google import config
    from orchestrator.clouds.google.config import Found

    tools = config.gcloud(environ)
    found: Found | None = Found(*named) if named else None
    if found is None and tools.tpu_endpoint and not loopback_problem(tools.tpu_endpoint):
        if kind is None:
            why = f"gcloud is pointed at {tools.tpu_endpoint} here, not at Google"
            return replace(emulated, why=_emulated_words(None, why), source="gcloud")
        tools = config.Gcloud()  # its project is the emulator's
    found = found or tools.project or config.adc_project(environ)
    if found is None:
        if kind == GOOGLE:
            hint = "name one with --project, TPUJOB_PROJECT or `gcloud config set project`"
            raise ConfigError("there is no Google Cloud project to use", hint=hint)
        return replace(emulated, why=_emulated_words(None, "no Google Cloud project is configured"))
    project = _project(found.value, found.source)
    why = f"Google Cloud, project {project} (from {found.source})"
    zone = emulated.zone
    if zone is None and tools.zone is not None:
        if _has_tpus(tools.zone.value):
            zone = tools.zone.value
        else:  # chosen with other machines in mind
            why += f"; the zone of {tools.zone.source}, {tools.zone.value}, has no TPUs and is not used"
    return replace(
        emulated, kind=GOOGLE, timings=claim_timings.GOOGLE, project=project, zone=zone, why=why, source=found.source
    )


def _has_tpus(zone: str) -> bool:
    from orchestrator import catalog

    return zone in catalog.zones()


def _asked_kind(cli_cloud: str | None, environ: Environ) -> tuple[str | None, str]:
    kind, source = cli_cloud, "--cloud"
    if not kind:
        kind, source = environ.get("TPUJOB_CLOUD"), "TPUJOB_CLOUD"
    if not kind:
        return None, "default"
    if kind not in (EMULATED, GOOGLE):
        raise ConfigError(f"{source}: {kind!r} is not a cloud", hint=f"it is `{EMULATED}` or `{GOOGLE}`")
    return kind, source


def _emulated_words(endpoint: str | None, why: str) -> str:
    where = f"EMULATED Cloud TPU at {endpoint}" if endpoint else "EMULATED Cloud TPU on this machine"
    return f"{where}: {why}; nothing is billed"


def loopback_problem(url: str) -> str | None:
    """None for an http address of this machine's loopback interface, else the end of a sentence about `url`."""
    import ipaddress
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = port = False
    plain = parts.scheme == "http" and parts.username is None and parts.path in ("", "/") and not parts.query
    if is_loopback and plain and port:
        return None
    return "is not an address on this machine's loopback such as http://127.0.0.1:8080"


# -- our own settings file -------------------------------------------------------------------------------------------


def settings_path(environ: Environ) -> Path:
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "tpujob" / "settings.yaml"


def read_settings(path: Path, environ: Environ) -> dict[str, Any]:
    """The keys that are set, checked. A file that does not exist sets none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    from orchestrator.core.text import settings_file  # most people have no such file, and every command looks for it

    found: dict[str, Any] = {}
    for key, value in settings_file.read(text, file=str(path)):
        where = f"{value.where}: {key}"
        if key not in _KEYS and key != "quota":
            known = ", ".join([*_KEYS, "quota"])
            raise ConfigError(f"{where}: unknown setting", hint=f"the settings are {known}")
        if key in found:
            raise ConfigError(f"{where}: set twice", hint="keep one of the two")
        found[key] = value.grants() if key == "quota" else _KEYS[key](value.text(), where, environ)
    return found


def _project(text: str, source: str, _environ: Environ | None = None) -> str:
    if problem := names.project_problem(text):
        raise ConfigError(f"{source}: {text!r} {problem}")
    return text


def _zone(text: str, source: str, _environ: Environ | None = None) -> str:
    """Zones and regions both: a region means its zones."""
    if names.zone_problem(text) and names.region_problem(text):
        from orchestrator import catalog

        near = ", ".join(catalog.nearest_place(text)) or "us-central1-a"
        raise ConfigError(f"{source}: {text!r} is not a zone or region", hint=f"nearest: {near}")
    return text


def _word(text: str, source: str, _environ: Environ) -> str:
    """A network's name or path, or a service account: what a URL and a command line can carry."""
    if text.startswith("-") or not all(char.isascii() and (char.isalnum() or char in "-_./@:") for char in text):
        raise ConfigError(f"{source}: {text!r} is not a name that Google Cloud knows")
    return text


def _directory(text: str, source: str, environ: Environ) -> str:
    home = environ.get("HOME") or str(Path.home())
    path = Path(home) / text[2:] if text.startswith("~/") else Path(text)
    if not path.is_absolute():
        raise ConfigError(f"{source}: {text!r} is relative", hint="begin it with / or ~/")
    return str(path)


def _cores(text: str, source: str, _environ: Environ) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_EMULATED_CORES):
        raise ConfigError(f"{source}: {text!r} must be a whole number from 1 to {MAX_EMULATED_CORES}")
    return int(text)


_KEYS: dict[str, Callable[[str, str, Environ], Any]] = {
    "project": _project,
    "zone": _zone,
    "service_account": _word,
    "network": _word,
    "runs_dir": _directory,
    "emulated_cores": _cores,
}

# -- state -----------------------------------------------------------------------------------------------------------


def state_dir(environ: Environ) -> Path:
    if environ.get("TPUJOB_STATE_DIR"):
        return Path(environ["TPUJOB_STATE_DIR"]).expanduser().absolute()
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "tpujob"


def open_state_dir(path: Path, *, warn: Callable[[str], None] | None = None) -> Path:
    """The directory, made if need be, for its owner alone. Refused where somebody else could write or redirect it.

    With `warn` that is only said: what already exists in a cloud must be ended whatever became of this directory.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"the state directory {path} cannot be used: {error.strerror}", hint=_ELSEWHERE) from error
    problem = _open_to_others(path, found)
    if problem is None:
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    elif warn is None:
        raise problem
    else:
        warn(f"{problem.message}; nothing new is created until that is mended")
    return path


def _open_to_others(path: Path, found: os.stat_result) -> ConfigError | None:
    if stat.S_ISLNK(found.st_mode):
        return ConfigError(f"the state directory {path} is a symbolic link", hint=f"replace it; {_ELSEWHERE}")
    if found.st_uid != os.geteuid():
        return ConfigError(f"the state directory {path} belongs to another user", hint=_ELSEWHERE)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return ConfigError(f"other users can write to the state directory {path}", hint=f"`chmod 700 {path}`")
    return None


_ELSEWHERE = "TPUJOB_STATE_DIR can name another directory"


def _base(environ: Environ, variable: str, default: str) -> Path:
    """An XDG base directory. By its specification, a relative one does not count."""
    named = Path(environ.get(variable) or ".")
    return named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / default
