"""A grpc.aio server that speaks protobuf on one side and JSON on the other: the outer half of the gRPC door.

Imported only when that door is opened. Its messages are those of google-cloud-tpu, whose classes also tell, in answers,
which fields a version of the API knows: what it does not know is left out, as on the real wire.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.cloud import tpu_v2, tpu_v2alpha1  # noqa: F401  so that protobuf knows their messages
from google.cloud.location import locations_pb2  # noqa: F401
from google.longrunning import operations_pb2  # noqa: F401
from google.protobuf import descriptor_pool, empty_pb2, json_format, message, message_factory  # noqa: F401
from google.rpc import error_details_pb2, status_pb2  # noqa: F401

from orchestrator.emulator.wire import transcoding
from orchestrator.emulator.wire.transcoding import Refusal, Status

log = logging.getLogger(__name__)
Answer = Callable[[str, str, dict[str, Any], dict[str, str]], Awaitable[dict[str, Any]]]
# What the guard looks at. gRPC's server for asyncio keeps :authority to itself; a `host` beside it is passed on.
HEADERS = ("authorization", "origin", "host")
CODES = {code.value[0]: code for code in grpc.StatusCode}
STOP_GRACE_S = 0.2


class PortTaken(RuntimeError):
    """Somebody else listens there."""


class GrpcServer:
    def __init__(self, server: Any, port: int) -> None:
        self._server, self.port = server, port

    @property
    def target(self) -> str:
        """What a gRPC channel is made with."""
        return f"127.0.0.1:{self.port}"

    @classmethod
    async def listening(cls, port: int, answer: Answer) -> GrpcServer:
        # Without the option gRPC would share its port with whoever else asks for it.
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    service, {method: _handled(service, method, answer) for method in rules}
                )
                for service, rules in transcoding.RULES.items()
            )
        )
        try:
            bound = server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise PortTaken(f"Port {port} of 127.0.0.1 cannot be had: {error}") from None
        await server.start()
        log.info("gRPC at 127.0.0.1:%d", bound)
        return cls(server, bound)

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)


def _handled(service: str, method: str, answer: Answer) -> Any:
    asked, given = map(_message, transcoding.type_names(service, method))

    async def call(request: bytes, context: Any) -> Any:
        sent = {key: str(value) for key, value in context.invocation_metadata() if key in HEADERS}
        try:
            said = json_format.MessageToDict(asked.FromString(request))
        except (message.DecodeError, json_format.SerializeToJsonError) as error:
            wrong = Status(transcoding.CANONICAL["INVALID_ARGUMENT"], f"The request cannot be read: {error}")
            return await _abort(context, wrong)
        try:
            found = await answer(service, method, said, sent)
            return json_format.ParseDict(found, given(), ignore_unknown_fields=True)
        except Refusal as refusal:
            await _abort(context, refusal.status)
        except json_format.ParseError as error:
            await _abort(context, Status(transcoding.CANONICAL["INTERNAL"], f"The answer cannot be read: {error}"))

    # Without a deserializer: what that one refuses would be an error of ours.
    return grpc.unary_unary_rpc_method_handler(call, response_serializer=given.SerializeToString)


async def _abort(context: Any, status: Status) -> None:
    trailing: tuple[tuple[str, bytes], ...] = ()
    if status.details:  # what google-api-core reads `reason` and `details` of an exception from
        shape = {"code": status.code, "message": status.message, "details": status.details}
        rich = json_format.ParseDict(shape, status_pb2.Status())
        trailing = (("grpc-status-details-bin", rich.SerializeToString()),)
    await context.abort(CODES[status.code], status.message, trailing)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
