"""The rules for `access:`: the proxy command, networks, tags, and what does not go together. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.text.names import shown

MAX_TAGS = 64  # of an instance
_TOKENS = re.compile(r"%(.?)")
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,299}")
_TAG = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def proxy_command(value: Any) -> Any:
    """Return the command, checked: one line, with OpenSSH's tokens %h, %p, %r, %n and %%."""
    if value is None or not isinstance(value, str):
        return value
    if not value.strip() or "\n" in value.strip() or "\0" in value:
        raise ValueError("expected one line, such as `ssh -W %h:%p bastion.example.com`")
    unknown = next((token for token in _TOKENS.findall(value) if token not in tuple("hprn%")), None)
    if unknown is not None:
        raise ValueError(
            f"`%{shown(unknown)}` means nothing here; %h is the host, %p the port, %r the user, %% a percent sign"
        )
    return value.strip()


def resource(value: Any) -> Any:
    """Return the name or the path of a network or a subnetwork, checked."""
    if isinstance(value, str) and not _RESOURCE.fullmatch(value):
        raise ValueError(f"`{shown(value)}` is not a name or a path of Google Cloud, such as `my-network`")
    return value


def tags(value: Any) -> Any:
    """Return network tags, one or a list, checked."""
    if value is None:
        return ()
    each = value if isinstance(value, (list, tuple)) else [value]
    for tag in each:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise ValueError(
                f"`{shown(str(tag))}` is not a network tag: a-z, 0-9 and `-`, at most 63, from a letter on"
            )
    if len(each) > MAX_TAGS:
        raise ValueError(f"has {len(each)} tags; an instance has at most {MAX_TAGS}")
    return tuple(each)


def access_problems(access: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what does not go together."""
    via = access.get("via")
    if access.get("ssh_proxy_command") is not None and via in ("external", "iap"):
        why = f"is for internal addresses, and `via: {via}` uses none; write `via: internal`, or remove one of the two"
        yield ("access", "ssh_proxy_command"), why
