"""The identity of a cluster, as leases record it, and the connection that it leads to.

An identity is `projects/P/locations/L/clusters/C`, or `CONTEXT@SERVER` for a context of a kubeconfig: a context that is later
pointed at another server is another cluster, and an absence there proves nothing here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core.lease.cloud_api import Bearer
from orchestrator.errors import ConfigError, UnexpectedReply
from orchestrator.places.gke.api import kubeconfig
from orchestrator.places.gke.api.kube_api import KubeApi, connect
from orchestrator.places.gke.api.plugins import PluginToken
from orchestrator.places.google.credentials import GoogleToken
from orchestrator.places.google.json_call import json_call

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

CONTAINER_API = "https://container.googleapis.com/v1/"
_CLUSTER = re.compile(r"projects/[a-z0-9.:-]+/locations/[a-z0-9-]+/clusters/[a-z0-9-]+")
_CONTEXT_OF_GCLOUD = re.compile(
    r"gke_[a-z0-9.:-]+_([a-z0-9-]+)_[a-z0-9-]+@"
)  # `gcloud container clusters get-credentials`


def identity(context: str | None, cluster: str | None, environ: Mapping[str, str]) -> str:
    """Return the identity of the cluster that a job or the settings name; None twice: that of the current context.

    Raises ConfigError.
    """
    if cluster is not None:
        return cluster
    found = kubeconfig.load(context, environ)
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
    leads_to = kubeconfig.load(context, environ)
    if leads_to.server != server:
        raise ConfigError(
            f"context {context!r} of your kubeconfig leads to {leads_to.server}, and the job was started at {server}",
            hint="what runs there is not changed; name the old server in a context of the same name to reach it",
        )
    config, bearer = leads_to.config, None
    if config.user is not None and config.user.exec is not None:
        bearer = _signed(PluginToken(config.user.exec, config.fname and config.fname.parent))
    return connect(config, bearer, leads_to.proxy, leads_to.tls_name)


def _of_google(name: str, bearer: Bearer, ask: Callable[..., dict[str, Any]] = json_call) -> KubeApi:
    """Ask GKE for the endpoint and the certificate of the cluster: the token is sent to no other server."""
    found = ask("GET", CONTAINER_API + name, None, bearer, emulated=False)
    endpoint, authority = found.get("endpoint"), (found.get("masterAuth") or {}).get("clusterCaCertificate")
    if not (isinstance(endpoint, str) and endpoint and isinstance(authority, str) and authority):
        raise UnexpectedReply(f"GKE names no endpoint of {name}", details=found)
    return connect(_config(name, endpoint, authority), _signed(bearer))


def _config(name: str, endpoint: str, authority: str) -> SingleConfig:
    try:
        from lightkube.config.kubeconfig import SingleConfig
        from lightkube.config.models import Cluster, Context, User
    except ModuleNotFoundError as error:
        raise ConfigError(f"`on: gke` needs the Python package {error.name}", hint=kubeconfig.INSTALL) from error
    cluster = Cluster(server=f"https://{endpoint}", certificate_auth_data=authority)
    return SingleConfig(name, Context(cluster=name, user=name), cluster, User())


def _signed(bearer: Bearer) -> httpx2.Auth:
    """Return what signs requests with a token that is renewed in time, and once more after a 401.

    Many threads follow pods, and their tokens expire at once: the first one renews for all.
    """
    import httpx2

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
