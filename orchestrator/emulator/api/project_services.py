"""What a project has enabled (Service Usage), and what the user may do in it (Resource Manager), as far as clients ask."""

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.wire.node_request import project_number

PROJECT = "/v1/projects/{project:[^/:]+}"
READ = "serviceusage.services.get"


class ServicesApi(Api):
    """The route of one service."""

    service = "serviceusage.googleapis.com"

    @route("GET", PROJECT + "/services/{name:[a-z0-9.-]+}", "serviceUsage.services.get")
    async def get_service(self, call: ApiCall) -> Json:
        if READ in self.state.settings.missing_permissions:
            raise api_errors.permission_denied(READ, f"projects/{call.parts['project']}")
        name, parent = call.parts["name"], f"projects/{project_number(call.parts['project'])}"
        state = "DISABLED" if name in self.state.settings.disabled_apis else "ENABLED"
        return {"name": f"{parent}/services/{name}", "config": {"name": name}, "state": state, "parent": parent}


class PermissionsApi(Api):
    """The route that tells which of the permissions in question the caller has."""

    service = "cloudresourcemanager.googleapis.com"

    @route("POST", PROJECT + ":testIamPermissions", "projects.testIamPermissions")
    async def test_permissions(self, call: ApiCall) -> Json:
        asked = (await call.fields()).get("permissions", [])
        if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
            raise bad_field("Invalid value at 'permissions'.")
        had = [name for name in asked if name not in self.state.settings.missing_permissions]
        return {"permissions": had} if had else {}
