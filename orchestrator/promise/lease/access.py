"""How this machine reaches the workers of a slice: wish and route. Pure.

A wish comes from the job file, from options and from the settings, key by key. A route is fixed when its slice is created,
since the create request depends on it, and is part of the lease: every later connection takes it, too. The network between is
in `network.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

LOGIN_USER = "tpujob"  # without OS Login, whose profiles have login names of their own
KEY_OUTLIVES_S = 3600.0  # a key in an OS Login profile, after the deadline: results may be collected until then


class Via(StrEnum):
    """How the SSH port of a worker is reached."""

    EXTERNAL = "external"  # its external address
    INTERNAL = "internal"  # its address in the slice's network, directly or through `ssh_proxy_command`
    IAP = "iap"  # the relay of Identity-Aware Proxy


@dataclass(frozen=True)
class AccessWish:
    """What is wished. None leaves the choice to the next wish, at last to tpujob: as `auto` does, which outranks that wish."""

    via: str | None = None  # `auto`, or a value of Via
    ssh_proxy_command: str | None = None
    os_login: str | None = None  # auto, on, off
    network: str | None = None
    subnetwork: str | None = None
    tags: tuple[str, ...] | None = None
    secure_boot: bool | None = None

    def over(self, other: AccessWish) -> AccessWish:
        """Return this wish, and `other` where it says nothing."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(other, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True)
class Route:
    """How the workers of a slice are reached, as it was decided before its create call."""

    via: Via = Via.EXTERNAL
    ssh_proxy_command: str | None = None
    os_login: bool = False
    user: str = LOGIN_USER  # empty until OS Login has told it


NO_WISH, DIRECT = AccessWish(), Route()


@dataclass(frozen=True)
class ProjectRules:
    """What the policies of a project are known to demand."""

    no_external_addresses: bool = False
    os_login: bool = False


NO_RULES = ProjectRules()


def route(wish: AccessWish, rules: ProjectRules = NO_RULES) -> Route:
    """Return the route to take. What the user says outranks the rules."""
    asked = wish.via or "auto"
    command = wish.ssh_proxy_command if asked in ("auto", "internal") else None
    if asked != "auto":
        via = Via(asked)
    elif command is not None:
        via = Via.INTERNAL
    else:
        via = Via.IAP if rules.no_external_addresses else Via.EXTERNAL
    os_login = rules.os_login if wish.os_login in (None, "auto") else wish.os_login == "on"
    return Route(via, command, os_login, "" if os_login else LOGIN_USER)


def reason(wish: AccessWish, rules: ProjectRules = NO_RULES) -> str:
    """Return why `route` decides as it does, in words."""
    asked = wish.via or "auto"
    if asked != "auto":
        why = f"`via: {asked}` in `access:`"
    elif wish.ssh_proxy_command is not None:
        why = "`ssh_proxy_command` in `access:`"
    elif rules.no_external_addresses:
        why = "a policy forbids external addresses"
    else:
        why = "no policy is known to forbid external addresses"
    if wish.os_login in ("on", "off"):
        return f"{why}; `os_login: {wish.os_login}`"
    return f"{why}; a policy requires OS Login" if rules.os_login else why


def contradiction(taken: Route, made_with: AccessWish, wish: AccessWish) -> str | None:
    """Return what a slice has that the wish says otherwise, in words; None if nothing. `auto` takes what there is.

    `taken`: the route of the slice. `made_with`: where its network, subnetwork, tags and secure boot come from.
    """
    if wish.via not in (None, "auto", taken.via):
        return f"its workers are reached {describe(taken)}, and `access:` says `via: {wish.via}`"
    if wish.os_login not in (None, "auto", "on" if taken.os_login else "off"):
        has = "with" if taken.os_login else "without"
        return f"it was created {has} OS Login, and `access:` says `os_login: {wish.os_login}`"
    for key in ("network", "subnetwork", "tags", "secure_boot"):
        if (asked := getattr(wish, key)) is not None and (asked or None) != (getattr(made_with, key) or None):
            return f"it was created with another `{key}` than `access:` says"
    return None


def describe(route: Route, workers: int = 2) -> str:
    """Return how the workers are reached, in words; of one worker, `by its external address`."""
    if route.via is Via.EXTERNAL:
        way = f"by {_addresses('external', workers)}"
    elif route.via is Via.IAP:
        way = "through Identity-Aware Proxy"
    else:
        through = "" if route.ssh_proxy_command is None else f", through `{route.ssh_proxy_command}`"
        way = f"by {_addresses('internal', workers)}{through}"
    return way + (", with OS Login" if route.os_login else "")


def _addresses(kind: str, workers: int) -> str:
    return f"its {kind} address" if workers == 1 else f"their {kind} addresses"
