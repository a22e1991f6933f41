"""The query parameters that each method of the Cloud TPU API has; any other is refused, as by Google. Pure."""

from collections.abc import Iterable

from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.wire.node_schema import camel

# Of every method, beside all that begin with $.
SYSTEM = frozenset(("access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser",
    "uploadType", "upload_protocol"))  # fmt: skip
_PAGES = {"pageSize", "pageToken"}
QUERY = {
    "locations.list": _PAGES | {"filter", "extraLocationTypes"},
    "acceleratorTypes.list": _PAGES | {"filter", "orderBy"},
    "runtimeVersions.list": _PAGES | {"filter", "orderBy"},
    "nodes.create": {"nodeId"},
    "nodes.list": _PAGES,
    "nodes.patch": {"updateMask"},
    "queuedResources.create": {"queuedResourceId", "requestId"},
    "queuedResources.delete": {"force", "requestId"},
    "queuedResources.list": _PAGES,
    "operations.list": _PAGES | {"filter", "returnPartialSuccess"},
    "reservations.list": _PAGES,
}
ALPHA_QUERY = {"nodes.create": {"nodeId", "requestId"}, "nodes.delete": {"requestId"}}


def known(method: str | None, version: str) -> set[str]:
    """Return the parameters of a method such as `nodes.create`, besides SYSTEM; of TPU Nodes (None), those of all methods."""
    if method is None:
        return set().union(*QUERY.values())
    return ALPHA_QUERY.get(method, QUERY.get(method, set())) if version == "v2alpha1" else QUERY.get(method, set())


def check(method: str | None, version: str, names: Iterable[str]) -> None:
    """Raise ApiError for a parameter that the method does not have."""
    for name in names:
        if not name.startswith("$") and name not in SYSTEM and camel(name) not in known(method, version):
            raise bad_field(
                f'Unknown name "{name}": Cannot bind query parameter. '
                f"Field '{name}' could not be found in request message."
            )
