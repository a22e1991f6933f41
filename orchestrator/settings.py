"""Which cloud, project and zone to use, and where state is kept: decided once per command, from the configuration.

The order is: options, environment, tpujob's settings file, gcloud's configuration, application default credentials; without
a project anywhere it is the emulator. No network is used and no gcloud is run. The client and the CLI import this module.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator import gcloud_config
from orchestrator.errors import ConfigError, JobSpecError
from orchestrator.job.cluster import NO_WISH as NO_CLUSTER_WISH
from orchestrator.job.cluster import ClusterWish
from orchestrator.promise.lease import periods
from orchestrator.promise.lease.access import NO_WISH, AccessWish
from orchestrator.promise.lease.periods import Timings
from orchestrator.text import names, parsing

if TYPE_CHECKING:
    from orchestrator.capacity.grants import Grant
    from orchestrator.promise.lease.run_spec import NotifyWish, QueueWish

EMULATED, GOOGLE = periods.EMULATED, "google"
GKE = "gke"  # the cloud of jobs on a cluster, which each job names itself
EMULATED_PROJECT = "emulated"
MAX_EMULATED_CORES = 64

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The cloud of a command. `why` is the first line of output; `source` names the setting that decided."""

    kind: str
    project: str
    zone: str | None = None
    why: str = ""
    source: str = "default"
    access: AccessWish = NO_WISH
    gke: ClusterWish = NO_CLUSTER_WISH
    notify: NotifyWish | None = None
    queue: QueueWish | None = None
    service_account: str | None = None
    runs_dir: str | None = None
    emulated_cores: int | None = None
    endpoint: str | None = None  # of an emulator that the environment names
    token_file: str | None = None
    timings: Timings = periods.GOOGLE
    grants: tuple[Grant, ...] = ()  # quota that is free of charge for the user
    owner: str | None = None  # as the settings name it
    account: str | None = None  # of gcloud's login, on Google Cloud


def resolve(cli_cloud: str | None, cli_project: str | None, environ: Environ) -> Target:
    """Return the cloud to use. Raises ConfigError for any setting that is unusable; none is silently ignored."""
    path = settings_path(environ)
    own = read_settings(path, environ)
    kind, asked_by = _asked_kind(cli_cloud, environ)
    endpoint = environ.get("TPUJOB_ENDPOINT") or None
    if endpoint is not None:
        if problem := loopback_problem(endpoint):
            raise ConfigError(f"TPUJOB_ENDPOINT: {endpoint!r} {problem}", hint="it can only name an emulator; unset it")
        if kind is not None and not periods.is_emulated(kind):
            raise ConfigError(f"{asked_by} asks for {kind}, TPUJOB_ENDPOINT for an emulator", hint="drop one of them")
        kind, asked_by = EMULATED, "TPUJOB_ENDPOINT"
    emulated = Target(
        EMULATED,
        _project(cli_project, "--project") if cli_project else EMULATED_PROJECT,
        _zone(environ["TPUJOB_ZONE"], "TPUJOB_ZONE") if environ.get("TPUJOB_ZONE") else own.get("zone"),
        source=asked_by,
        endpoint=endpoint,
        token_file=environ.get("TPUJOB_TOKEN_FILE") or None,
        timings=timings_of(EMULATED, environ),
        grants=own.get("quota", ()),
        owner=_owner(environ["TPUJOB_OWNER"], "TPUJOB_OWNER") if environ.get("TPUJOB_OWNER") else own.get("owner"),
        **{
            key: own[key]
            for key in ("access", "gke", "notify", "queue", "service_account", "runs_dir", "emulated_cores")
            if key in own
        },
    )
    if kind is not None and periods.is_emulated(kind):
        return replace(emulated, why=_emulated_why(endpoint, f"{asked_by} asks for it"))
    explicit = cli_project or environ.get("TPUJOB_PROJECT")
    source = "--project" if cli_project else "TPUJOB_PROJECT"
    if not explicit and "project" in own:
        explicit, source = own["project"], str(path)
    return _google(emulated, kind, (explicit, source) if explicit else None, environ)


def timings_of(kind: str, environ: Environ) -> Timings:
    """Return the timings of a cloud; the emulated one is faster by TPUJOB_EMULATED_SPEED. Raises ConfigError."""
    if not periods.is_emulated(kind):
        return periods.GOOGLE
    text = environ.get("TPUJOB_EMULATED_SPEED")
    if not text:
        return periods.emulated()
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 1 <= speed <= 1000:
        raise ConfigError(f"TPUJOB_EMULATED_SPEED: {text!r} is not a number between 1 and 1000", hint="unset it for 30")
    return periods.emulated(speed)


def _google(emulated: Target, kind: str | None, named: tuple[str, str] | None, environ: Environ) -> Target:
    """Google's cloud if a project is configured anywhere, else the emulator unless `kind` asks for Google's."""
    tools = gcloud_config.gcloud(environ)
    found = gcloud_config.Found(*named) if named else None
    if found is None and tools.tpu_endpoint and not loopback_problem(tools.tpu_endpoint):
        if kind is None:
            why = f"gcloud is pointed at {tools.tpu_endpoint} here, not at Google"
            return replace(emulated, why=_emulated_why(None, why), source="gcloud")
        tools = gcloud_config.Gcloud()  # gcloud's project is that of the emulator
    found = found or tools.project or gcloud_config.adc_project(environ)
    if found is None:
        if kind is not None:
            hint = "name one with --project, TPUJOB_PROJECT or `gcloud config set project`"
            raise ConfigError("there is no Google Cloud project to use", hint=hint)
        return replace(emulated, why=_emulated_why(None, "no Google Cloud project is configured"))
    project = _project(found.value, found.source)
    why = f"Google Cloud, project {project} (from {found.source})"
    zone = emulated.zone
    if zone is None and tools.zone is not None:
        from orchestrator import catalog  # 4 ms, for a zone of gcloud

        if tools.zone.value in catalog.zones():
            zone = tools.zone.value
        else:  # it was chosen for other machines
            why += f"; the zone of {tools.zone.source}, {tools.zone.value}, has no TPUs and is not used"
    return replace(
        emulated,
        kind=GOOGLE,
        timings=periods.GOOGLE,
        project=project,
        zone=zone,
        why=why,
        source=found.source,
        account=tools.account,
    )


def _asked_kind(cli_cloud: str | None, environ: Environ) -> tuple[str | None, str]:
    kind, source = cli_cloud, "--cloud"
    if not kind:
        kind, source = environ.get("TPUJOB_CLOUD"), "TPUJOB_CLOUD"
    if not kind:
        return None, "default"
    if kind not in (EMULATED, GOOGLE):
        raise ConfigError(f"{source}: {kind!r} is not a cloud", hint=f"it is `{EMULATED}` or `{GOOGLE}`")
    return kind, source


def _emulated_why(endpoint: str | None, why: str) -> str:
    where = f"EMULATED Cloud TPU at {endpoint}" if endpoint else "EMULATED Cloud TPU on this machine"
    return f"{where}: {why}; nothing is billed"


def loopback_problem(url: str) -> str | None:
    """Return None for an http address on this machine's loopback interface, else the end of a sentence about `url`."""
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


# -- the settings file ------------------------------------------------------------------------------------------------


def settings_path(environ: Environ) -> Path:
    """Return where the settings file is, or would be."""
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "tpujob" / "settings.yaml"


def read_settings(path: Path, environ: Environ) -> dict[str, Any]:
    """Return the keys that are set, checked: lines `key: value`, a list `quota:`, and the other sections of `_SECTIONS`.

    Raises ConfigError. A file that does not exist sets none. Nodes are composed, not constructed: tags and aliases have no
    effect, and every value is its text.
    """
    try:
        text = parsing.text_of(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} {error}") from error
    found: dict[str, Any] = {}
    for key, node in _composed(text, str(path)):
        where = f"{path}:{key.start_mark.line + 1}: {key.value}"
        name = key.value if key.id == "scalar" else ""
        if name and name not in (*_KEYS, *_SECTIONS):
            known = ", ".join([*_KEYS, *_SECTIONS])
            raise ConfigError(f"{where}: unknown setting", hint=f"the settings are {known}")
        if name in found:
            raise ConfigError(f"{where}: set twice", hint="keep one of the two")
        if name == "quota":
            found[name] = _grants(node, str(path), where)
        elif name in ("access", "gke", "notify", "queue"):
            found[name] = _section(name, text, str(path))
        elif not name or node.id != "scalar" or not node.value:
            raise ConfigError(f"{where}: needs one plain value", hint="remove the line to unset it")
        else:
            found[name] = _KEYS[name](str(node.value), where, environ)
    return found


def _composed(text: str, file: str) -> list[tuple[Any, Any]]:
    """The pairs of nodes of the mapping in the file."""
    import yaml  # most users have no settings file, and every command looks for it

    try:
        top: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        raise ConfigError(
            f"{where}: not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}"
        ) from error
    if top is not None and top.id != "mapping":
        raise ConfigError(f"{file}: settings are lines of the form `key: value`")
    return [] if top is None else list(top.value)


def _section(name: str, text: str, file: str) -> Any:
    from orchestrator.job import shared_keys  # pydantic: few users have such a section

    try:
        return shared_keys.of_settings(text, file, name)
    except JobSpecError as error:
        raise ConfigError(error.message, hint=f"docs/settings.md lists the keys of `{name}:`") from error


def _grants(node: Any, file: str, where: str) -> tuple[Grant, ...]:
    from orchestrator.capacity import grants  # few users list grants

    if node.id != "sequence":
        hint = "such as `- 5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a`"
        raise ConfigError(f"{where}: needs a list", hint=hint)
    found = []
    for item in node.value:
        try:
            found.append(grants.from_text(item.value) if item.id == "scalar" else grants.from_keys(_flat(item)))
        except ValueError as error:
            message = f"{file}:{item.start_mark.line + 1}: quota: {error}"
            raise ConfigError(message, hint="`tpujob offers` names types and zones") from error
    return tuple(found)


def _flat(item: Any) -> dict[str, str]:
    """A mapping of plain scalars, as text."""
    if item.id != "mapping" or any(part.id != "scalar" for pair in item.value for part in pair):
        raise ValueError("is neither a line nor a mapping of plain values; write `accelerator`, `count` and `zone`")
    return {key.value: value.value for key, value in item.value}


def _project(text: str, source: str, _environ: Environ | None = None) -> str:
    if problem := names.project_problem(text):
        raise ConfigError(f"{source}: {text!r} {problem}")
    return text


def _zone(text: str, source: str, _environ: Environ | None = None) -> str:
    """A zone or a region, which means its zones."""
    if names.zone_problem(text) and names.region_problem(text):
        from orchestrator.capacity.location_rules import places_near  # only for a mistake

        raise ConfigError(f"{source}: {text!r} is not a zone or region", hint=places_near(text))
    return text


def _name(text: str, source: str, _environ: Environ) -> str:
    """A service account: harmless in a URL and a command line."""
    if text.startswith("-") or not all(char.isascii() and (char.isalnum() or char in "-_./@:") for char in text):
        raise ConfigError(f"{source}: {text!r} is not a name that Google Cloud knows")
    return text


def _owner(text: str, source: str, _environ: Environ | None = None) -> str:
    if problem := names.owner_problem(text):
        raise ConfigError(f"{source}: {text!r} {problem}")
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
    "service_account": _name,
    "owner": _owner,
    "runs_dir": _directory,
    "emulated_cores": _cores,
}
_SECTIONS = ("access", "gke", "notify", "queue", "quota")

# -- state -----------------------------------------------------------------------------------------------------------


def state_dir(environ: Environ) -> Path:
    """Return where the state directory is, or would be."""
    if environ.get("TPUJOB_STATE_DIR"):
        return Path(environ["TPUJOB_STATE_DIR"]).expanduser().absolute()
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "tpujob"


def open_state_dir(path: Path, *, warn: Callable[[str], None] | None = None) -> Path:
    """Return the directory, created if need be, private to its owner.

    Raises ConfigError if another user could write to it or redirect it. With `warn` that is only a warning: slices that
    already exist have to be released whatever the state of this directory.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"the state directory {path} cannot be used: {error.strerror}", hint=_ELSEWHERE) from error
    problem = _exposure(path, found)
    if problem is None:
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    elif warn is None:
        raise problem
    else:
        warn(f"{problem.message}; nothing new is created until that is fixed")
    return path


def _exposure(path: Path, found: os.stat_result) -> ConfigError | None:
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
