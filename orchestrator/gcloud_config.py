"""The project and zone of Google's own tools on this machine: gcloud's active configuration, and the ADC.

Reads the files that gcloud and `gcloud auth application-default login` write; runs no gcloud and uses no network. For
`settings`. A value that is not configured is None; one that cannot be read raises ConfigError.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from configparser import ConfigParser

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A value, and a name for where it was found."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Gcloud:
    """gcloud's configuration. `tpu_endpoint` is set if gcloud uses another API than Google's public one."""

    project: Found | None = None
    zone: Found | None = None
    tpu_endpoint: str | None = None
    account: str | None = None  # who is logged in: a person's or a service account's address


def gcloud(environ: Environ) -> Gcloud:
    """Return gcloud's active configuration; as in gcloud, CLOUDSDK_* variables come first. Raises ConfigError."""
    directory = config_dir(environ)
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _read(directory / "active_config").strip() or "default"
    file = _ini(directory / "configurations" / f"config_{name}")

    def value(section: str, key: str) -> Found | None:
        variable = f"CLOUDSDK_{section}_{key}".upper()
        if environ.get(variable):
            return Found(environ[variable], variable)
        written = file.get(section, key, fallback="").strip()
        return Found(written, f"gcloud's configuration {name!r}") if written else None

    endpoint = value("api_endpoint_overrides", "tpu")
    account = value("core", "account")
    return Gcloud(
        value("core", "project"),
        value("compute", "zone"),
        endpoint.value if endpoint else None,
        account.value if account else None,
    )


def adc_project(environ: Environ) -> Found | None:
    """Return the project of the application default credentials; None without one. Raises ConfigError."""
    if environ.get("GOOGLE_CLOUD_PROJECT"):
        return Found(environ["GOOGLE_CLOUD_PROJECT"], "GOOGLE_CLOUD_PROJECT")
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(named) if named else config_dir(environ) / "application_default_credentials.json"
    source = "GOOGLE_APPLICATION_CREDENTIALS" if named else "application default credentials"
    text = _read(path)
    if not text:
        if named:
            raise ConfigError(
                f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which does not exist or is empty",
                hint="correct the path, or unset the variable to use `gcloud auth application-default login`",
            )
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path} ({source}) is not JSON: {error}", hint="`gcloud auth application-default login` writes such a file"
        ) from error
    keys = ("project_id", "quota_project_id") if isinstance(fields, dict) else ()
    project = next((fields[key] for key in keys if isinstance(fields.get(key), str) and fields[key]), None)
    return Found(project, source) if project else None


def config_dir(environ: Environ) -> Path:
    """Return gcloud's directory. gcloud does not follow XDG."""
    if environ.get("CLOUDSDK_CONFIG"):
        return Path(environ["CLOUDSDK_CONFIG"]).expanduser()
    return Path(environ.get("HOME") or Path.home()) / ".config" / "gcloud"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _ini(path: Path) -> ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_read(path), source=str(path))
    except configparser.Error as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"gcloud's configuration cannot be read: {why}", hint="see `gcloud info`") from error
    return parser
