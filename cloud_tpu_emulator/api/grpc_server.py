"""A grpc.aio server that converts between protobuf and JSON, for `grpc_api`, which imports it when the server is started.

The messages are those of google-cloud-tpu. Their classes also say which fields a version of the API has: replies omit others,
as on the real wire.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.cloud import tpu_v2, tpu_v2alpha1  # noqa: F401  protobuf registers their messages
from google.cloud.location import locations_pb2  # noqa: F401
from google.longrunning import operations_pb2  # noqa: F401
from google.protobuf import descriptor_pool, empty_pb2, json_format, message, message_factory  # noqa: F401
from google.rpc import error_details_pb2, status_pb2  # noqa: F401

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.wire import transcoding

log = logging.getLogger(__name__)
Answer = Callable[[str, str, dict[str, Any], dict[str, str]], Awaitable[dict[str, Any]]]
# What authentication reads. gRPC's server for asyncio does not pass on :authority, only a `host` beside it.
HEADERS = ("authorization", "origin", "host")
CODES = {code.value[0]: code for code in grpc.StatusCode}


async def started(port: int, answer: Answer) -> tuple[Any, int]:
    """Start a server on loopback that replies with what `answer` returns; return it and its port. Raises ApiError."""
    # Without the option, gRPC shares its port with other processes.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    for service, rules in transcoding.RULES.items():
        handlers = {method: _handled(service, method, answer) for method in rules}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        text = f"Port {port} of 127.0.0.1 is not available: {error}"
        raise ApiError("FAILED_PRECONDITION", text) from None
    await server.start()
    log.info("gRPC at 127.0.0.1:%d", bound)
    return server, bound


def _handled(service: str, method: str, answer: Answer) -> Any:
    request_type, answer_type = map(_message, transcoding.type_names(service, method))

    async def call(request: bytes, context: Any) -> Any:
        sent = {key: str(value) for key, value in context.invocation_metadata() if key in HEADERS}
        try:
            body = json_format.MessageToDict(request_type.FromString(request))
        except (message.DecodeError, json_format.SerializeToJsonError) as error:
            return await _abort(context, ApiError("INVALID_ARGUMENT", f"The request cannot be read: {error}"))
        try:
            found = await answer(service, method, body, sent)
            return json_format.ParseDict(found, answer_type(), ignore_unknown_fields=True)
        except ApiError as refusal:
            await _abort(context, refusal)
        except json_format.ParseError as error:
            await _abort(context, ApiError("INTERNAL", f"The reply cannot be read: {error}"))

    # Without a deserializer: a malformed request is the client's error, not the server's.
    return grpc.unary_unary_rpc_method_handler(call, response_serializer=answer_type.SerializeToString)


async def _abort(context: Any, error: ApiError) -> None:
    trailing: tuple[tuple[str, bytes], ...] = ()
    if error.details:  # what google-api-core reads `reason` and `details` of an exception from
        rich = json_format.ParseDict(error.in_operation(), status_pb2.Status())
        trailing = (("grpc-status-details-bin", rich.SerializeToString()),)
    await context.abort(CODES[error.code], error.message, trailing)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
