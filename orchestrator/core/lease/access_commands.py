"""The gcloud commands that add what a way to the workers lacks, for a person to run, with all names filled in. Pure."""

import shlex

from orchestrator.core.lease.networks import RELAY_RANGE, NetworkPlace, Subnetwork

NETWORK = "NETWORK"  # the name that is to be filled in
MY_ADDRESS = "ADDRESS/32"  # what the network sees of this machine is not known here


def add_role(project: str, role: str, account: str | None) -> str:
    """Return the command that grants a role to the account; None: not known."""
    kind = "serviceAccount" if account and account.endswith(".gserviceaccount.com") else "user"
    member = f"--member={kind}:{account or 'YOU'}"
    return _code("gcloud", "projects", "add-iam-policy-binding", project, member, f"--role={role}")


def enable(project: str, *services: str) -> str:
    return _code("gcloud", "services", "enable", *services, f"--project={project}")


def admit_ssh(place: NetworkPlace, *, through_relay: bool) -> str:
    """Return the command that adds the firewall rule for the relay, or for an address that is to be filled in."""
    network = place.network or NETWORK
    name, source = ("iap", RELAY_RANGE) if through_relay else ("ssh", MY_ADDRESS)
    return _code(
        *("gcloud", "compute", "firewall-rules", "create", f"{network}-allow-{name}", f"--network={network}"),
        *("--direction=INGRESS", "--allow=tcp:22", f"--source-ranges={source}", f"--project={place.project}"),
    )


def reach_google(place: NetworkPlace, subnetwork: Subnetwork) -> str:
    """Return the command that turns Private Google Access on."""
    words = ("gcloud", "compute", "networks", "subnets", "update", subnetwork.name, f"--region={subnetwork.region}")
    return _code(*words, "--enable-private-ip-google-access", f"--project={place.project}")


def route_out(project: str, network: str, region: str) -> str:
    """Return the two commands that add Cloud NAT."""
    common = (f"--region={region}", f"--project={project}")
    router = ("gcloud", "compute", "routers", "create", f"{network}-router", f"--network={network}", *common)
    nat = ("gcloud", "compute", "routers", "nats", "create", f"{network}-nat", f"--router={network}-router", *common)
    return f"{_code(*router)} and {_code(*nat, '--auto-allocate-nat-external-ips', '--nat-all-subnet-ip-ranges')}"


def _code(*words: str) -> str:
    return f"`{shlex.join(words)}`"
