"""Which project and zone Google's own tools are set to on this machine: gcloud's active configuration, and the ADC.

I read the files that gcloud and `gcloud auth application-default login` write, without running gcloud and without asking
the network. Only `settings` calls me. What is not configured is None; what is configured and unreadable is a ConfigError.
"""

from __future__ import annotations

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
    """A value, and in words where it was found."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Gcloud:
    """`tpu_endpoint` is set where gcloud was pointed at another API than Google's public one."""

    project: Found | None = None
    zone: Found | None = None
    tpu_endpoint: str | None = None


def gcloud(environ: Environ) -> Gcloud:
    """gcloud's active configuration, its CLOUDSDK_* variables first, as gcloud itself has it."""
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
    return Gcloud(value("core", "project"), value("compute", "zone"), endpoint.value if endpoint else None)


def adc_project(environ: Environ) -> Found | None:
    """The project that application default credentials stand for."""
    if environ.get("GOOGLE_CLOUD_PROJECT"):
        return Found(environ["GOOGLE_CLOUD_PROJECT"], "GOOGLE_CLOUD_PROJECT")
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(named) if named else config_dir(environ) / "application_default_credentials.json"
    source = "GOOGLE_APPLICATION_CREDENTIALS" if named else "application default credentials"
    text = _read(path)
    if not text:
        if named:
            raise ConfigError(f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which does not exist or is empty")
        return None
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} ({source}) is not JSON: {error}") from error
    keys = ("project_id", "quota_project_id") if isinstance(said, dict) else ()
    project = next((said[key] for key in keys if isinstance(said.get(key), str) and said[key]), None)
    return Found(project, source) if project else None


def config_dir(environ: Environ) -> Path:
    """Where gcloud keeps its files. (Not XDG: gcloud does not follow it.)"""
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
    import configparser

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_read(path), source=str(path))
    except configparser.Error as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"gcloud's configuration cannot be read: {said}", hint="see `gcloud info`") from error
    return parser
