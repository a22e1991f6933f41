"""One call of the API of Kubernetes at a time, as JSON: an object, a whole list, or a log; or one CloudError. Decides nothing.

lightkube makes the connection (`clusters`); its own calls have neither the preconditions of a delete nor the bytes of a log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator import errors
from orchestrator.errors import AuthError, CloudError, CloudUnavailable, ConfigError, UnexpectedReply
from orchestrator.places.google import error_translation
from orchestrator.places.google.fetch import ApiReply
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import httpx2
    from lightkube.config import client_adapter
    from lightkube.config.kubeconfig import SingleConfig
    from lightkube.core import exceptions
else:
    httpx2, client_adapter, exceptions = (
        Later(name, extra="gke") for name in ("httpx2", "lightkube.config.client_adapter", "lightkube.core.exceptions")
    )


NO_JOBSET = "its admin installs JobSet: docs/gke.md"
SIGN_IN = "`kubectl auth whoami` says who you are there; docs/gke.md lists the permissions that a run needs"


class NotFound(errors.CloudError):
    """The API says that this object does not exist: a Status with the reason NotFound, nothing less."""

    reason = "absent"


def of_reply(status: int, body: bytes, *, retry_after: str | None = None, server: str) -> errors.CloudError:
    """Return the error for a reply with a status of 300 or more. `server`: which, for messages."""
    again_s = error_translation.seconds_of(retry_after)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("kind") != "Status":
        return _not_the_api(status, body, server, again_s)
    reason = str(found.get("reason") or "")
    message = error_translation.plain(str(found.get("message") or f"status {status}"))
    if status == 404 and reason == "NotFound":
        return NotFound(message, details=found)
    if status == 401:
        return AuthError(f"{server} does not accept your credentials: {message}", hint=SIGN_IN, details=found)
    if status == 403:
        return of_admission(message, found) or AuthError(message, hint=SIGN_IN, details=found)
    if status == 409:
        kind = errors.AlreadyExists if reason == "AlreadyExists" else errors.WrongState
        return kind(message, details=found)
    if status in (400, 405, 413, 415, 422):
        return errors.BadRequest(f"the cluster refuses it: {message}", details=found)
    if status in (410, 429) or status >= 500:  # 410: the rest of a list has expired, and it begins anew
        return CloudUnavailable(f"{server}: {message}", retry_after_s=again_s, details=found)
    return UnexpectedReply(f"{server} answered {status} {reason}: {message}", details=found)


_OF_RIGHTS = 'is forbidden: User "'  # of RBAC, and of Google's IAM
_ADMISSION = (" is forbidden: ", "admission webhook", "denied the request", "Warden", " is invalid: ")
# A server that starts, a namespace that is new, a webhook that does not know the JobSet yet; and JobSet, which makes the first
# pod of a slice before the others, and asks for its node, which may be gone while that pod is there.
_PASSES = re.compile(
    r'\b(follower|leader) pod\b|not yet ready to|status unknown for quota|serviceaccount "default" not found'
    r'|webhook .*: (Node|JobSet\S*) "[^"]*" not found'
)


def of_admission(message: str, details: Any = None) -> errors.CloudError | None:
    """Return what admission refuses with these words of the API server, CloudUnavailable if that passes by itself.

    None if the words are of no admission rule, such as those about a right that is missing.
    """
    if "exceeded quota" in message:
        hint = "a ResourceQuota of the namespace; its admin can raise it"
        return errors.QuotaError(message, hint=hint, details=details)
    if _OF_RIGHTS in message or not any(each in message for each in _ADMISSION):
        return None
    if _PASSES.search(message) is not None:
        return CloudUnavailable(f"the cluster refuses it for now: {message}", details=details)
    return errors.BadRequest(f"the cluster refuses it: {message}", details=details)


def _not_the_api(status: int, body: bytes, server: str, retry_after_s: float | None) -> errors.CloudError:
    text = error_translation.plain(body.decode("utf-8", "replace"))
    if status == 404 and "page not found" in text:
        return errors.BadRequest(f"{server} does not know JobSets (jobset.x-k8s.io/v1alpha2)", hint=NO_JOBSET)
    if status in (401, 403):
        return AuthError(f"{server} answered {status}: {text}", hint=SIGN_IN)
    if status == 429 or status >= 500:
        return CloudUnavailable(f"{server} answered {status}: {text}", retry_after_s=retry_after_s)
    return UnexpectedReply(f"{server} answered {status}, and not as the API of Kubernetes does: {text}", details=text)


TIMEOUT_S = 15.0
REVIEWS = "authorization.k8s.io/v1"
PAGE_ROWS = 500
MAX_PAGES = 1000
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
KUEUE = ("v1beta2", "v1beta1")  # of its API, the newest first: 0.15 and later serve it, 0.14 only the older
LOG_SILENCE_S = 3600.0  # a job may be silent for long; the end of the connection is noticed by TCP keep-alive

_log = logging.getLogger("tpujob.gke")


@dataclass(frozen=True, slots=True)
class Rows:
    """A whole list. `server_now`: unix seconds, the server's clock when it replied; None: the reply had no Date."""

    items: tuple[dict[str, Any], ...]
    server_now: float | None


class KubeApi:
    """The API server of one cluster. Every call is tried once, with a timeout, and raises a CloudError."""

    def __init__(self, http: httpx2.Client, server: str, rights: Rights | None = None) -> None:
        self.server = server  # for messages
        self._http = http
        self._rights = rights or Rights()

    def get(self, path: str) -> dict[str, Any]:
        """Return an object. Raises NotFound."""
        return self._object("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. Raises AlreadyExists."""
        return self._object("POST", path, body)

    def try_post(self, path: str, body: Mapping[str, Any]) -> None:
        """Let all that judges an object judge it, and make nothing. Raises as `post` does."""
        self._ask("POST", path, body, query={"dryRun": "All"})

    def may(self, namespace: str, verb: str, kind: str) -> bool:
        """Return whether this user may do this to objects of a kind, such as `pods/log`, in a namespace."""
        resource, _, part = kind.partition("/")
        group = "".join(path_of(resource, "").split("/")[2:-2])
        about = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": part}
        body = {"kind": "SelfSubjectAccessReview", "apiVersion": REVIEWS, "spec": {"resourceAttributes": about}}
        found = self.post(f"/apis/{REVIEWS}/selfsubjectaccessreviews", body).get("status")
        return isinstance(found, dict) and found.get("allowed") is True

    def delete(self, path: str, uid: str, *, foreground: bool = True) -> None:
        """Delete the object with this uid, and no other of that name. Raises NotFound, WrongState for another uid."""
        policy = "Foreground" if foreground else "Background"
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy, "preconditions": {"uid": uid}}
        self._object("DELETE", path, body)

    def list(self, path: str, *, labels: str = "", fields: str = "", contents: bool = True) -> Rows:
        """Return every object, from all pages of a consistent list. Without `contents` they have nothing but metadata."""
        items: list[dict[str, Any]] = []
        asked = {"limit": str(PAGE_ROWS), "labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in asked.items() if value}
        first: float | None = None
        for page in range(MAX_PAGES):
            response = self._ask("GET", path, query=query, headers={} if contents else {"Accept": METADATA_ONLY})
            found = _parsed(response.content, self.server)
            rows = found.get("items") or []
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise UnexpectedReply(f"{self.server} answered a list without items", details=path)
            items += rows
            if not page:
                first = ApiReply({}, response.headers.get("date")).server_now
            token = (found.get("metadata") or {}).get("continue")
            if not token:
                return Rows(tuple(items), first)
            query["continue"] = str(token)
        raise UnexpectedReply(f"a list of {self.server} has more than {MAX_PAGES} pages", details=path)

    def stream(self, path: str, query: Mapping[str, str]) -> httpx2.Response:
        """Open a log that grows; the caller closes the response."""
        return self._ask("GET", path, query=query, stream=True)

    def close(self) -> None:
        self._http.close()

    def _object(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return _parsed(self._ask(method, path, body).content, self.server)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> httpx2.Response:
        """Send a request; return its reply, a good one. `stream`: before its content has come, which is to be closed."""
        timeout = httpx2.Timeout(TIMEOUT_S, read=LOG_SILENCE_S if stream else TIMEOUT_S)
        content = None if body is None else json.dumps(body).encode()  # in ASCII: text of a job may be no UTF-8
        sent = {"Content-Type": "application/json"} if headers is None else headers
        request = self._http.build_request(method, path, params=query, content=content, headers=sent, timeout=timeout)
        with translated(self.server):
            response = self._http.send(request, stream=stream)
            if response.status_code >= 300:
                with contextlib.closing(response):
                    response.read()
        _log.debug("%s %s %s", method, path, response.status_code)
        if response.status_code >= 300:
            retry = response.headers.get("retry-after")
            error = of_reply(response.status_code, response.content, retry_after=retry, server=self.server)
            raise self._rights.judge(method, path, error)
        self._rights.allowed(method, path)
        return response


@contextlib.contextmanager
def translated(server: str) -> Iterator[None]:
    """Raise CloudErrors in place of the errors of httpx and lightkube."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise CloudUnavailable(f"{server} did not answer in time") from error
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        is_tls = isinstance(error.__context__, ssl.SSLError) or "CERTIFICATE" in str(error)
        if isinstance(error, httpx2.ConnectError) and is_tls:
            hint = "its certificate is not that of your kubeconfig"
            raise CloudUnavailable(f"{server} cannot be trusted: {error}", hint=hint) from error
        raise CloudUnavailable(f"{server} cannot be reached: {error or type(error).__name__}") from error
    except exceptions.ConfigError as error:  # a plugin that signs in
        raise AuthError(f"signing in to {server} failed: {error}", hint=SIGN_IN) from error


def connect(config: SingleConfig, bearer: Any = None, proxy: str | None = None, tls_name: str | None = None) -> KubeApi:
    """Return the API of a configured cluster, by this proxy, else by that of the environment.

    `tls_name`: whose certificate the server has to have; None: that of the host of its address.
    Connects to nothing yet. Raises ConfigError for files that are missing, and for a proxy that cannot be used.
    """
    server = str(config.cluster.server)
    try:
        parameters = client_adapter.ConnectionParams(proxy=proxy).httpx_params(config)
        # As for kubectl: no variable names a proxy for this machine, on which clusters of kind and minikube are.
        direct = {f"all://{host}": None for host in ("127.0.0.1", "[::1]", "localhost")} if proxy is None else {}
        limits = httpx2.Limits(max_connections=None)  # one for the log of each pod
        http = httpx2.Client(**parameters, limits=limits, mounts=direct)
    except ImportError as error:
        raise ConfigError(
            f"the proxy to {server} cannot be used: {error}", hint="for a socks proxy: pip install 'httpx2[socks]'"
        ) from error
    except (exceptions.ConfigError, OSError, ValueError, httpx2.InvalidURL) as error:
        raise ConfigError(f"context {config.context_name!r} of your kubeconfig cannot be used: {error}") from error
    if bearer is not None:
        http.auth = bearer
    if tls_name is not None:
        http.event_hooks = {"request": [lambda request: request.extensions.update(sni_hostname=tls_name)]}
    return KubeApi(http, server.partition("://")[2].rstrip("/"))


def path_of(kind: str, namespace: str, name: str = "", *, kueue: str = KUEUE[0]) -> str:
    """Return the path of an object, or without a name of a collection. `kind`: such as `pods`, `jobsets`.

    `kueue`: the version of its API, for `workloads`.
    """
    group = {
        "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
        "jobs": "/apis/batch/v1",
        "workloads": f"/apis/kueue.x-k8s.io/{kueue}",
        "workloadpriorityclasses": f"/apis/kueue.x-k8s.io/{kueue}",
        "priorityclasses": "/apis/scheduling.k8s.io/v1",
    }.get(kind, "/api/v1")
    place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{group}{place}/{kind}{'/' + quote(name, safe='') if name else ''}"


def _parsed(content: bytes, server: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        if isinstance(found := json.loads(content), dict):
            return found
    raise UnexpectedReply(f"{server} answered something that is no JSON object", details=content[:500])


PATIENCE_S = 300.0  # with a refusal of what was allowed before

Call = tuple[str, ...]


class Rights:
    """Tells a refusal that passes by itself from one that stays. For one user of one server; used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: set[Call] = set()
        self._refused_since: dict[Call, float] = {}

    def allowed(self, method: str, path: str) -> None:
        """Note that the server has answered such a call."""
        call = _call(method, path)
        self._allowed.add(call)
        self._refused_since.pop(call, None)

    def judge(self, method: str, path: str, error: CloudError) -> CloudError:
        """Return CloudUnavailable in place of the refusal of what was allowed before, for PATIENCE_S; else the error."""
        call = _call(method, path)
        if not isinstance(error, AuthError) or call not in self._allowed:
            return error
        since = self._refused_since.setdefault(call, self._clock())
        if self._clock() - since >= PATIENCE_S:
            return error
        return CloudUnavailable(
            f"the API server refuses what it has allowed before: {error.message}", details=error.details
        )


def _call(method: str, path: str) -> Call:
    """What a role would name: the method, the kind of object, and whether it is one object or a list."""
    parts = path.strip("/").split("/")
    if "namespaces" in parts[:-2]:
        parts = parts[parts.index("namespaces") + 2 :]
        return method, parts[0], str(len(parts) > 1), *parts[2:]
    return method, parts[-1]
