"""The routes besides TPU VMs and queued resources: the service identity, and the TPU Nodes of v1. Stateless.

Google has turned off TPU Nodes: v1 still lists catalogs, lists no node, and refuses to create one.
"""

from __future__ import annotations

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.rest_calls import ZONE, parent_of
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.wire import node_request

V1 = "/{version:v1|v1alpha1}/projects/{project}/locations/{zone}"
V1_NODE = V1 + "/nodes/{node:[^/:]+}"


def routes() -> list[web.RouteDef]:
    """Return the routes."""
    return [
        web.post(ZONE + ":generateServiceIdentity", generate_service_identity),
        web.get(V1 + "/nodes", list_tpu_nodes),
        web.post(V1 + "/nodes", create_tpu_node),
        web.get(V1_NODE, no_tpu_node),
        web.delete(V1_NODE, no_tpu_node),
        web.post(V1_NODE + ":{verb:stop|start|reimage}", no_tpu_node),
    ]


async def generate_service_identity(request: web.Request) -> web.Response:
    parent_of(request)
    number = node_request.project_number(request.match_info["project"])
    return web.json_response({"identity": {"email": f"service-{number}@cloud-tpu.iam.gserviceaccount.com"}})


async def list_tpu_nodes(request: web.Request) -> web.Response:
    if request.match_info["zone"] != "-":
        parent_of(request)
    return web.json_response({})


async def create_tpu_node(request: web.Request) -> web.Response:
    parent_of(request)
    raise ApiError(
        "FAILED_PRECONDITION",
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture.",
    )


async def no_tpu_node(request: web.Request) -> web.Response:
    raise api_errors.not_found(f"{parent_of(request)}/nodes/{request.match_info['node']}")
