"""The few reads of other APIs of Google that tell how workers are reached: Compute Engine, permissions, services, OS Login.

What they show are settings, and the same settings decide which connections work (`model.reach`). `relay_api` has instances.
OS Login, /v1/users/…, is there as far as a client needs it to log in, with who is signed in (OpenID's userinfo). There is one
account, ACCOUNT: like Google's, the API gives no other profile.
"""

from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError, ReasonedError, bad_field
from cloud_tpu_emulator.model.reach import ACCOUNT, NUMBER, USERNAME, LoginKey
from cloud_tpu_emulator.wire.requests import project_number
from orchestrator import catalog

PROJECT = "/compute/v1/projects/{project}"
INTERNAL = "10.128.0.0/9"
LAST_PRIORITY = 65534


class ComputeApi(Api):
    """The routes. Each needs the permission of its name, which the setting `missing_permissions` takes away."""

    service = "compute.googleapis.com"

    def admit(self, operation: str | None, project: str) -> None:
        super().admit(operation, project)
        if operation in self.state.settings.missing_permissions:
            text = f"Required '{operation}' permission for 'projects/{project}'"  # in the words of Compute Engine
            raise ReasonedError(403, text, "forbidden")

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


USER = "/v1/users/{user:[^/:]+}"
ONE_KEY = USER + "/sshPublicKeys/{key:[0-9a-f]+}"


class OpenIdApi(Api):
    """Who is signed in."""

    @route("GET", "/v1/userinfo")
    async def userinfo(self, call: ApiCall) -> Json:
        """Reply as openidconnect.googleapis.com does to a token with the scope userinfo.email."""
        return {"sub": str(NUMBER), "email": ACCOUNT, "email_verified": True}


class OsLoginApi(Api):
    """The routes of login profiles and their keys."""

    service = "oslogin.googleapis.com"

    @route("GET", USER + "/loginProfile", "osLogin.getLoginProfile")
    async def get_profile(self, call: ApiCall) -> Json:
        _check_account(call)
        return self._profile(call.query.get("projectId"))

    @route("POST", USER + ":importSshPublicKey", "osLogin.importSshPublicKey")
    async def import_key(self, call: ApiCall) -> Json:
        body, project = await call.fields(), call.query.get("projectId", "")
        line = body.get("key")
        if not isinstance(line, str):
            raise bad_field("Invalid value at 'ssh_public_key.key'.")
        _check_account(call)
        self.state.logins.import_key(project, line, _expiry(body), self.driver.clock())
        self.driver.changed()
        return {"loginProfile": self._profile(project)}

    @route("GET", ONE_KEY, "osLogin.getSshPublicKey")
    async def get_key(self, call: ApiCall) -> Json:
        return _key_json(call.parts["key"], self._key(call))

    @route("PATCH", ONE_KEY, "osLogin.updateSshPublicKey")
    async def update_key(self, call: ApiCall) -> Json:
        if call.query.get("updateMask") != "expirationTimeUsec":
            raise bad_field("The update mask may name expirationTimeUsec only.")
        expires_usec = _expiry(await call.fields())
        found = self._key(call)
        found.expires_usec = expires_usec
        self.driver.changed()
        return _key_json(call.parts["key"], found)

    @route("DELETE", ONE_KEY, "osLogin.deleteSshPublicKey")
    async def delete_key(self, call: ApiCall) -> Json:
        _check_account(call)
        self.state.logins.remove_key(call.parts["key"], self.driver.clock())
        self.driver.changed()
        return {}

    def _key(self, call: ApiCall) -> LoginKey:
        _check_account(call)
        return self.state.logins.key(call.parts["key"], self.driver.clock())

    def _profile(self, project: str | None) -> Json:
        accounts = [
            {
                "primary": True,
                "username": USERNAME,
                "uid": str(NUMBER % 2**31),
                "gid": str(NUMBER % 2**31),
                "homeDirectory": f"/home/{USERNAME}",
                "operatingSystemType": "LINUX",
                "accountId": each,
                "name": f"users/{ACCOUNT}/projects/{each}",
            }
            for each in self.state.logins.projects
            if project in (None, "", each)
        ]
        keys = {name: _key_json(name, key) for name, key in self.state.logins.keys(self.driver.clock()).items()}
        found: Json = {"name": str(NUMBER)}
        return found | ({"posixAccounts": accounts} if accounts else {}) | ({"sshPublicKeys": keys} if keys else {})


def _check_account(call: ApiCall) -> None:
    """Raise ApiError unless the path names the account, by its address or its number."""
    if call.parts["user"] not in (ACCOUNT, str(NUMBER)):
        raise ApiError("PERMISSION_DENIED", "The caller does not have permission")


def _expiry(body: Json) -> int | None:
    given = body.get("expirationTimeUsec")
    if given is None:
        return None
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise bad_field("Invalid value at 'ssh_public_key.expiration_time_usec'.")
    return int(text)


def _key_json(fingerprint: str, key: LoginKey) -> Json:
    found: Json = {"key": key.line, "fingerprint": fingerprint}
    found["name"] = f"users/{ACCOUNT}/sshPublicKeys/{fingerprint}"
    return found if key.expires_usec is None else found | {"expirationTimeUsec": str(key.expires_usec)}
