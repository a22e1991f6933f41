"""What the pods of a job run: the request, the agent and the code, as files that a ConfigMap holds. Pure.

`vm.pod` reads them, and lists the keys of the request.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.text.sizes import format_size
from orchestrator.errors import UserError

MAX_BYTES = 1 << 20  # of a ConfigMap, and of a Secret: the API server refuses more
REQUEST, AGENT, CODE = "request.json", "agent.zip", "code.tar.gz"


@dataclass(frozen=True, slots=True)
class PodProgram:
    """`code` is None where the job has none, or where `code_object` (gs://BUCKET/NAME) in the request names it."""

    request: Mapping[str, Any]
    agent: bytes
    code: bytes | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables of the job, for a Secret

    @property
    def request_text(self) -> str:
        """The request as the pods read it."""
        return json.dumps(self.request, indent=1, ensure_ascii=False) + "\n"

    @property
    def size_bytes(self) -> int:
        """How much of a ConfigMap it takes."""
        return len(self.request_text.encode()) + len(self.agent) + len(self.code or b"")

    def config_map_data(self) -> dict[str, Any]:
        """Return the fields of the ConfigMap. Raises UserError if they are larger than one may be."""
        if self.size_bytes > MAX_BYTES:
            raise UserError(
                f"the scripts and the code take {format_size(self.size_bytes)}, and a ConfigMap holds {format_size(MAX_BYTES)}",
                hint=TOO_LARGE,
            )
        files = {AGENT: self.agent} | ({} if self.code is None else {CODE: self.code})
        encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
        return {"data": {REQUEST: self.request_text}, "binaryData": encoded}


def room_for_code(request: Mapping[str, Any], agent: bytes) -> int:
    """Return how many bytes of code fit into the ConfigMap beside the rest; negative if the rest alone does not fit."""
    return MAX_BYTES - PodProgram(request, agent).size_bytes


TOO_LARGE = (
    "leave out files that the job does not need (.tpujobignore), put them into the image, or name a `bucket:`, "
    "which takes code of any size"
)
