"""The few reads of Compute Engine's API, /compute/v1, that tell how workers are reached: project, firewall, subnetworks, NAT.

What they show are settings, and the same settings decide which connections work (`model.policies`). `relay_api` has instances.
"""

from orchestrator import catalog
from orchestrator.emulator import api_errors
from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.wire.node_request import project_number

PROJECT = "/compute/v1/projects/{project}"
INTERNAL = "10.128.0.0/9"
LAST_PRIORITY = 65534


class ComputeApi(Api):
    """The routes. Each needs the permission of its name, which the setting `missing_permissions` takes away."""

    service = "compute.googleapis.com"

    def admit(self, operation: str | None, project: str) -> None:
        super().admit(operation, project)
        if operation in self.state.settings.missing_permissions:
            raise api_errors.compute_denied(operation, f"projects/{project}")

    @route("GET", PROJECT, "compute.projects.get")
    async def get_project(self, call: ApiCall) -> Json:
        """Reply also to `gcloud compute tpus tpu-vm ssh`: the project has no SSH keys."""
        items = [{"key": "enable-oslogin", "value": "TRUE"}] if self.state.settings.project_os_login else []
        metadata = {"kind": "compute#metadata", "fingerprint": "ZW11bGF0ZWQ=", "items": items}
        return {"kind": "compute#project", "name": call.parts["project"], "commonInstanceMetadata": metadata}

    @route("GET", PROJECT + "/global/firewalls", "compute.firewalls.list")
    async def list_firewalls(self, call: ApiCall) -> Json:
        ports = ["0-65535"]
        internal = [{"IPProtocol": name, "ports": ports} for name in ("tcp", "udp")] + [{"IPProtocol": "icmp"}]
        rules = []
        for network in self.state.settings.networks:
            rules.append(self._rule(call, network, "allow-internal", [INTERNAL], internal))
            if sources := self.state.settings.ssh_from:
                allowed: list[Json] = [{"IPProtocol": "tcp", "ports": ["22"]}]
                rules.append(self._rule(call, network, "allow-ssh", sources, allowed))
        return call.page("items", rules, {"kind": "compute#firewallList", "id": self._id(call)})

    @route("GET", PROJECT + "/aggregated/subnetworks", "compute.subnetworks.list")
    async def list_subnetworks(self, call: ApiCall) -> Json:
        items = {
            f"regions/{region}": {"subnetworks": [self._subnetwork(call, region, each) for each in self._networks]}
            for region in catalog.regions()
        }
        return {"kind": "compute#subnetworkAggregatedList", "id": self._id(call), "items": items}

    @route("GET", PROJECT + "/aggregated/routers", "compute.routers.list")
    async def list_routers(self, call: ApiCall) -> Json:
        items: Json = {}
        for region in catalog.regions():
            name = f"regions/{region}"
            if self.state.settings.cloud_nat:
                items[name] = {"routers": [self._router(call, region, each) for each in self._networks]}
            else:
                text = f"There are no results for scope '{name}' on this page."
                items[name] = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": text}}
        return {"kind": "compute#routerAggregatedList", "id": self._id(call), "items": items}

    @property
    def _networks(self) -> list[str]:
        return self.state.settings.networks

    def _id(self, call: ApiCall) -> str:
        return call.request.path.partition("/v1/")[2]

    def _link(self, call: ApiCall, path: str) -> str:
        return f"https://www.googleapis.com/compute/v1/projects/{call.parts['project']}/{path}"

    def _resource(self, call: ApiCall, kind: str, place: str, name: str, network: str) -> Json:
        """Return what all resources of a network have. `place`: global, or a region, which then is named, too."""
        return {
            "kind": f"compute#{kind}",
            "name": name,
            "selfLink": self._link(call, f"{place}/{kind}s/{name}"),
            "network": self._link(call, f"global/networks/{network}"),
        } | ({} if place == "global" else {"region": self._link(call, place)})

    def _rule(self, call: ApiCall, network: str, name: str, sources: list[str], allowed: list[Json]) -> Json:
        return self._resource(call, "firewall", "global", f"{network}-{name}", network) | {
            "priority": LAST_PRIORITY,
            "direction": "INGRESS",
            "sourceRanges": sources,
            "allowed": allowed,
            "disabled": False,
        }

    def _subnetwork(self, call: ApiCall, region: str, network: str) -> Json:
        number = 128 + sorted(catalog.regions()).index(region)
        return self._resource(call, "subnetwork", f"regions/{region}", network, network) | {
            "ipCidrRange": f"10.{number}.0.0/20",
            "gatewayAddress": f"10.{number}.0.1",
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "privateIpGoogleAccess": self.state.settings.private_google_access,
        }

    def _router(self, call: ApiCall, region: str, network: str) -> Json:
        nat = {
            "name": f"{network}-nat",
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
        return self._resource(call, "router", f"regions/{region}", f"{network}-router", network) | {"nats": [nat]}


# What a project has enabled (Service Usage), and what the user may do in it (Resource Manager), as far as clients ask.

PROJECT_OF_SERVICES = "/v1/projects/{project:[^/:]+}"
READ = "serviceusage.services.get"


class ServicesApi(Api):
    """The route of one service."""

    service = "serviceusage.googleapis.com"

    @route("GET", PROJECT_OF_SERVICES + "/services/{name:[a-z0-9.-]+}", "serviceUsage.services.get")
    async def get_service(self, call: ApiCall) -> Json:
        if READ in self.state.settings.missing_permissions:
            raise api_errors.permission_denied(READ, f"projects/{call.parts['project']}")
        name, parent = call.parts["name"], f"projects/{project_number(call.parts['project'])}"
        state = "DISABLED" if name in self.state.settings.disabled_apis else "ENABLED"
        return {"name": f"{parent}/services/{name}", "config": {"name": name}, "state": state, "parent": parent}


class PermissionsApi(Api):
    """The route that tells which of the permissions in question the caller has."""

    service = "cloudresourcemanager.googleapis.com"

    @route("POST", PROJECT_OF_SERVICES + ":testIamPermissions", "projects.testIamPermissions")
    async def test_permissions(self, call: ApiCall) -> Json:
        asked = (await call.fields()).get("permissions", [])
        if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
            raise bad_field("Invalid value at 'permissions'.")
        had = [name for name in asked if name not in self.state.settings.missing_permissions]
        return {"permissions": had} if had else {}
