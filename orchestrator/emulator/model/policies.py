"""The organization policies of the emulated project: what a node must not have. Pure.

Google's texts for Compute Engine; how Cloud TPU wraps them is not known. Both are settings, off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.model.records import Settings


def has_external_address(spec: Mapping[str, Any]) -> bool:
    """Return whether the workers of a node with this spec get addresses outside of their network."""
    return bool(spec.get("networkConfig", {}).get("enableExternalIps"))


def has_os_login(spec: Mapping[str, Any]) -> bool:
    """Return whether its workers let in by OS Login, and not by keys of the metadata."""
    return str(spec.get("metadata", {}).get("enable-oslogin", "")).upper() == "TRUE"


def check(spec: Mapping[str, Any], project: str, zone: str, node: str, settings: Settings) -> None:
    """Raise ApiError for a node that a policy forbids."""
    if settings.forbid_external_ips and has_external_address(spec):
        name = f"projects/{project}/zones/{zone}/instances/{node}"
        raise api_errors.policy_violated(
            "compute.vmExternalIpAccess", project, f"Add instance {name} to the constraint to use external IP with it."
        )
    if settings.require_os_login and not has_os_login(spec):
        text = "The instance's metadata must have enable-oslogin=TRUE."
        raise api_errors.policy_violated("compute.requireOsLogin", project, text)
