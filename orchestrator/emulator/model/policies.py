"""What administrators of the emulated project forbid or have set up: policies, firewall rules, ways out of the network. Pure.

All are settings; by default nothing is forbidden or missing. The refusals have Google's texts for Compute Engine; how Cloud TPU
wraps them is not known.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.model.records import Settings

INTERNET, RELAY = "0.0.0.0/0", "35.235.240.0/20"  # where connections to tcp:22 come from
TUNNEL, LOGIN, SUDO = "iap.tunnelInstances.accessViaIAP", "compute.instances.osLogin", "compute.instances.osAdminLogin"


def has_external_address(spec: Mapping[str, Any]) -> bool:
    """Return whether the workers of a node with this spec get addresses outside of their network."""
    return bool(spec.get("networkConfig", {}).get("enableExternalIps"))


def has_os_login(spec: Mapping[str, Any]) -> bool:
    """Return whether the node asks for OS Login."""
    return _says(spec) == "TRUE"


def logs_in_by_os_login(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether its workers let in by OS Login, and not by keys of the metadata. The node outranks the project."""
    return has_os_login(spec) or (settings.project_os_login and not _says(spec))


def may_log_in(settings: Settings) -> bool:
    """Return whether the user may log in with OS Login."""
    return not {LOGIN, SUDO} <= {*settings.missing_permissions}


def may_tunnel(settings: Settings) -> bool:
    """Return whether the relay serves the user."""
    return TUNNEL not in settings.missing_permissions and "iap.googleapis.com" not in settings.disabled_apis


def lets_ssh_in(settings: Settings, source: str) -> bool:
    """Return whether the firewall lets this whole range reach tcp:22."""
    sent = ipaddress.IPv4Network(source)
    return any(sent.subnet_of(ipaddress.IPv4Network(each)) for each in settings.ssh_from)


def reaches_google(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the workers of a node reach Google's APIs."""
    return settings.vm_route and (settings.private_google_access or has_external_address(spec))


def has_route_out(spec: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the workers of a node reach addresses that are not Google's."""
    return settings.cloud_nat or has_external_address(spec)


def _says(spec: Mapping[str, Any]) -> str:
    return str(spec.get("metadata", {}).get("enable-oslogin", "")).upper()


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
