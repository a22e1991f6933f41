"""Which gRPC methods a generated transport of google-cloud-tpu can call: read from its own source."""

from __future__ import annotations

import inspect
import re
import sys


def methods_of(transport: type) -> list[tuple[str, str]]:
    """(service, method) of each stub."""
    source = inspect.getsource(sys.modules[transport.__module__])
    found = re.findall(r'"/([a-z0-9.A-Z]+)/(\w+)"', source)
    assert len(found) > 20, "the generated transport looks different from what this test knows"
    return found
