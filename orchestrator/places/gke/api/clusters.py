"""The identity of a cluster, as leases record it, and the connection that it leads to, from a kubeconfig or from Google.

An identity is `projects/P/locations/L/clusters/C`, or `CONTEXT@SERVER` for a context of a kubeconfig: a context that is later
pointed at another server is another cluster, and an absence there proves nothing here.

Files are merged as kubectl merges them. lightkube reads them, and signs in with certificates and tokens. Plugins, such as
gke-gcloud-auth-plugin, are run here: lightkube waits for one without an end, knows no `api.authentication.k8s.io/v1`, and
raises whatever the output of a broken one leads to.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AuthError, CloudUnavailable, ConfigError, UnexpectedReply
from orchestrator.places.gke.api.kube_api import KubeApi, connect
from orchestrator.places.google.credentials import GoogleToken
from orchestrator.places.google.fetch import api_call
from orchestrator.promise.lease.cloud_api import Bearer
from orchestrator.system import commands
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import httpx2
    import yaml
    from lightkube.config import kubeconfig, models
    from lightkube.config.kubeconfig import SingleConfig
    from lightkube.config.models import UserExec
else:
    httpx2, yaml, kubeconfig, models = (
        Later(name, extra="gke")
        for name in ("httpx2", "yaml", "lightkube.config.kubeconfig", "lightkube.config.models")
    )


PLUGIN_S = 30.0  # gcloud takes a few seconds, and more to renew its login
SHOWN_CHARS = 300
TRY_IT = "`kubectl get namespaces` runs the same plugin, and lets it ask you what it needs to know"


class PluginToken:
    """The Bearer for a cluster whose kubeconfig names a plugin. Its token is kept until the server refuses it."""

    renewable = True

    def __init__(self, asked: UserExec, directory: Path) -> None:
        """`directory`: of the kubeconfig, from which a command with a relative path is looked for."""
        self._asked, self._directory = asked, directory
        self._token = ""
        self._lock = threading.Lock()  # many threads follow pods

    def token(self) -> str:
        """Return the token; run the plugin if there is none yet. Raises as `renew`."""
        with self._lock:
            if not self._token:
                self.renew()
            return self._token

    def renew(self) -> None:
        """Run the plugin.

        Raises AuthError; CloudUnavailable for a plugin that does not end, or that fails though it gave a token before.
        """
        name = self._asked.command
        rc, output, complaint = self._run()
        if rc != 0:
            said = " ".join(complaint.decode("utf-8", "replace").split())[-SHOWN_CHARS:]
            why = f"{name}, which signs in to the cluster, ended with code {rc}: {said}"
            if self._token:  # it can sign in: a network that is away for a moment must not end a job
                raise CloudUnavailable(why, hint=TRY_IT)
            raise AuthError(why, hint=TRY_IT)
        try:
            token = json.loads(output)["status"]["token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
            raise AuthError(f"{name}, which signs in to the cluster, gave no token", hint=TRY_IT)
        self._token = token

    def _run(self) -> tuple[int, bytes, bytes]:
        name = self._asked.command
        command = str(self._directory / name) if "/" in name else name
        # It may be asked by the guardian, or by many threads at once.
        about = {"kind": "ExecCredential", "apiVersion": self._asked.apiVersion, "spec": {"interactive": False}}
        environ = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(about)}
        environ |= {each.name: each.value for each in self._asked.env or ()}
        try:
            return commands.run([command, *(self._asked.args or ())], within_s=PLUGIN_S, env=environ)
        except OSError as error:
            why = f"{name}, which signs in to the cluster, cannot be started: {error.strerror or error}"
            raise AuthError(why, hint=self._asked.installHint or TRY_IT) from error
        except subprocess.TimeoutExpired as error:
            why = f"{name}, which signs in to the cluster, did not end within {PLUGIN_S:.0f} s"
            raise CloudUnavailable(why, hint=TRY_IT) from error


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
    listed = [Path(each).expanduser() for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    listed = listed or [Path(environ.get("HOME") or Path.home()) / ".kube" / "config"]
    files = [path for path in listed if path.is_file()]  # kubectl leaves out the others without a word
    if not files:
        looked = " or ".join(map(str, listed))
        raise ConfigError(
            f"there is no kubeconfig: {looked} does not exist",
            hint="gcloud container clusters "
            "get-credentials writes it; or name the cluster itself: `gke: {cluster: projects/P/locations/L/clusters/C}`",
        )
    name = context
    found: dict[str, dict[str, tuple[Any, Path]]] = {kind: {} for kind in ("context", "cluster", "user")}
    for path in files:
        with _usable(path):
            text = yaml.safe_load(path.read_bytes())
            text = {} if text is None else text  # kubectl takes an empty file, too
            for kind, entries in found.items():
                for each in text.get(f"{kind}s") or ():
                    entries.setdefault(each["name"], (each[kind], path))
            name = name or text.get("current-context")
    if not name:
        raise ConfigError("your kubeconfig has no current context", hint="name one: `gke: {context: NAME}`")
    if name not in found["context"]:
        raise ConfigError(f"your kubeconfig has no context {name!r}", hint=_HINT)
    chosen, path = found["context"][name]
    rows = {"contexts": [{"name": name, "context": chosen}]}
    with _usable(path):
        for kind in ("cluster", "user"):
            if kind == "user" and not chosen.get(kind):
                raise ConfigError(f"context {name!r} of your kubeconfig names no user", hint=_HINT)
            if chosen.get(kind) not in found[kind]:
                raise ConfigError(f"the {kind} of context {name!r} is missing in your kubeconfig", hint=_HINT)
            rows[f"{kind}s"] = [{"name": chosen[kind], kind: found[kind][chosen[kind]][0]}]
        cluster, user = rows["clusters"][0]["cluster"], rows["users"][0]["user"]
        _refuse_unusable(name, str(cluster.get("server") or ""), chosen["user"], user)
        with _PARSING:
            config = kubeconfig.KubeConfig.from_dict(rows, fname=path).get(name)
        assert config is not None, "its rows are there"
        return Connection(config, *(str(cluster.get(key) or "") or None for key in ("proxy-url", "tls-server-name")))


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raise ConfigError for a file of which something is not as it is in a kubeconfig."""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be used as a kubeconfig: {error}", hint=_HINT) from error


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


CONTAINER_API = "https://container.googleapis.com/v1/"
_CLUSTER = re.compile(r"projects/[a-z0-9.:-]+/locations/[a-z0-9-]+/clusters/[a-z0-9-]+")
# Of `gcloud container clusters get-credentials`.
_CONTEXT_OF_GCLOUD = re.compile(r"gke_[a-z0-9.:-]+_([a-z0-9-]+)_[a-z0-9-]+@")


def identity(context: str | None, cluster: str | None, environ: Mapping[str, str]) -> str:
    """Return the identity of the cluster that a job or the settings name; None twice: that of the current context.

    Raises ConfigError.
    """
    if cluster is not None:
        return cluster
    found = load(context, environ)
    return f"{found.config.context_name}@{found.server}"


def short_name(found: str) -> str:
    """Return an identity for display: the name of the cluster or of the context."""
    return found.rpartition("/")[2] if _CLUSTER.fullmatch(found) else found.rpartition("@")[0] or found


def location(found: str) -> str | None:
    """Return the zone or the region of a cluster of GKE, by its identity or by the context that gcloud named; None: unknown."""
    if _CLUSTER.fullmatch(found):
        return found.split("/")[3]
    named = _CONTEXT_OF_GCLOUD.match(found)
    return named[1] if named else None


def open_api(found: str, environ: Mapping[str, str]) -> KubeApi:
    """Return the API of the cluster with this identity. Raises ConfigError if the context now leads elsewhere, CloudError."""
    if _CLUSTER.fullmatch(found):
        return _of_google(found, GoogleToken())
    context, _, server = found.rpartition("@")
    leads_to = load(context, environ)
    if leads_to.server != server:
        raise ConfigError(
            f"context {context!r} of your kubeconfig leads to {leads_to.server}, and the job was started at {server}",
            hint="what runs there is not changed; name the old server in a context of the same name to reach it",
        )
    config, bearer = leads_to.config, None
    if config.user is not None and config.user.exec is not None:
        assert config.fname is not None, "it was read"
        bearer = _signed(PluginToken(config.user.exec, config.fname.parent))
    return connect(config, bearer, leads_to.proxy, leads_to.tls_name)


def _of_google(name: str, bearer: Bearer) -> KubeApi:
    """Ask GKE for the endpoint and the certificate of the cluster: the token is sent to no other server."""
    found = api_call("GET", CONTAINER_API + name, None, bearer, emulated=False).data
    endpoint, authority = found.get("endpoint"), (found.get("masterAuth") or {}).get("clusterCaCertificate")
    if not (isinstance(endpoint, str) and endpoint and isinstance(authority, str) and authority):
        raise UnexpectedReply(f"GKE names no endpoint of {name}", details=found)
    cluster = models.Cluster(server=f"https://{endpoint}", certificate_auth_data=authority)
    config = kubeconfig.SingleConfig(name, models.Context(cluster=name, user=name), cluster, models.User())
    return connect(config, _signed(bearer))


def _signed(bearer: Bearer) -> httpx2.Auth:
    """Return what signs requests with a token, and once more with a new one after a 401.

    Many threads follow pods, and their tokens expire at once: the first one renews for all.
    """
    lock = threading.Lock()

    class Signed(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
            token = bearer.token()
            request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code == 401 and bearer.renewable:
                with lock:
                    if bearer.token() == token:
                        bearer.renew()
                    request.headers["Authorization"] = f"Bearer {bearer.token()}"
                yield request

    return Signed()
