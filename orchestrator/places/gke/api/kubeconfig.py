"""Which cluster a kubeconfig leads to, and a connection to it. Files are merged as kubectl merges them.

lightkube reads the files, and signs in with certificates and tokens; `plugins` runs plugins such as gke-gcloud-auth-plugin.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

INSTALL = "install it with: pip install 'tpujob[gke]'"
_ADDRESS = re.compile(r"https?://[^/]", re.IGNORECASE)
_PARSING = threading.Lock()  # msgspec crashes (SIGSEGV) if threads convert to the same class for the first time at once
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")
_HINT = "`kubectl config get-contexts` lists the contexts of your kubeconfig"


@dataclass(frozen=True, slots=True)
class Connection:
    """What a context leads to. `proxy`: that of the cluster (`proxy-url`), which outranks those of the environment.

    `tls_name`: of the server's certificate (`tls-server-name`); None: the host of its address.
    """

    config: SingleConfig
    proxy: str | None = None
    tls_name: str | None = None

    @property
    def server(self) -> str:
        return str(self.config.cluster.server)


def load(context: str | None, environ: Mapping[str, str]) -> Connection:
    """Return the configuration of a context; None: of the current one. Raises ConfigError. Reads no network."""
    try:
        import yaml
        from lightkube.config.kubeconfig import KubeConfig, SingleConfig
        from lightkube.core.exceptions import ConfigError as Unusable
    except ModuleNotFoundError as error:
        raise ConfigError(f"`on: gke` needs the Python package {error.name}", hint=INSTALL) from error
    found: list[Any] = []
    clusters: dict[str, Mapping[str, Any]] = {}
    users: dict[str, Mapping[str, Any]] = {}
    for path in _files(environ):
        try:
            text = _complete(yaml.safe_load(path.read_bytes()))
            with _PARSING:
                found.append(KubeConfig.from_dict(text, fname=path))
            clusters, users = _named_in(text, "cluster") | clusters, _named_in(text, "user") | users
        except (Unusable, OSError, KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be used as a kubeconfig: {error}", hint=_HINT) from error
    if not found:
        looked = " or ".join(map(str, _named(environ)))
        raise ConfigError(
            f"there is no kubeconfig: {looked} does not exist",
            hint="gcloud container clusters "
            "get-credentials writes it; or name the cluster itself: `gke: {cluster: projects/P/locations/L/clusters/C}`",
        )
    name = context or next((each.current_context for each in found if each.current_context), None)
    if name is None:
        raise ConfigError("your kubeconfig has no current context", hint="name one: `gke: {context: NAME}`")
    for each in found:
        if name in each.contexts:
            chosen = each.contexts[name]
            cluster = _first(found, "clusters", chosen.cluster)
            user = _first(found, "users", chosen.user) if chosen.user else None
            if cluster is None or (chosen.user and user is None):
                missing = "cluster" if cluster is None else "user"
                raise ConfigError(f"the {missing} of context {name!r} is missing in your kubeconfig", hint=_HINT)
            if user is None:
                raise ConfigError(f"context {name!r} of your kubeconfig names no user", hint=_HINT)
            config = SingleConfig(context_name=name, context=chosen, cluster=cluster, user=user, fname=each.fname)
            plain = clusters[chosen.cluster]
            _refuse_unusable(name, str(plain.get("server") or ""), str(chosen.user), users[str(chosen.user)])
            proxy, tls_name = (str(plain.get(key) or "") or None for key in ("proxy-url", "tls-server-name"))
            return Connection(config, proxy, tls_name)
    raise ConfigError(f"your kubeconfig has no context {name!r}", hint=_HINT)


def _first(found: list[Any], kind: str, name: str) -> Any:
    return next((getattr(each, kind)[name] for each in found if name in getattr(each, kind)), None)


def _complete(text: Any) -> Any:
    """Return what a file says, with empty lists for what it leaves out: kubectl takes an empty file, too."""
    found = {} if text is None else text
    return {**found, **{key: found.get(key) or [] for key in ("clusters", "contexts", "users")}}


def _named_in(text: Any, kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the clusters or the users of a file by their names, with the keys that lightkube leaves out."""
    return {each["name"]: each[kind] for each in text[f"{kind}s"]}


def _refuse_unusable(context: str, server: str, name: str, user: Mapping[str, Any]) -> None:
    """Raise ConfigError for a server that cannot be asked, and for a user as whom tpujob does not sign in."""
    if _ADDRESS.match(server) is None:
        raise ConfigError(
            f"the server of context {context!r} of your kubeconfig is {server!r}, which is no address with https://",
            hint="`kubectl config set-cluster CLUSTER --server=https://…` corrects it",
        )
    if acting := [key for key in _IMPERSONATION if user.get(key)]:
        raise ConfigError(
            f"user {name!r} of your kubeconfig acts as another ({', '.join(acting)}), which tpujob does not support",
            hint="name a context whose user signs in as itself: `gke: {context: NAME}`",
        )


def _named(environ: Mapping[str, str]) -> list[Path]:
    listed = [Path(each).expanduser() for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    home = environ.get("HOME") or str(Path.home())
    return listed or [Path(home) / ".kube" / "config"]


def _files(environ: Mapping[str, str]) -> list[Path]:
    """The files that exist: kubectl leaves out the others without a word."""
    return [path for path in _named(environ) if path.is_file()]
