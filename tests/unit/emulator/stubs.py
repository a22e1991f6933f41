"""The gRPC methods that a generated transport of google-cloud-tpu can call, from its source."""

import inspect
import re
import sys


def methods_of(transport: type) -> list[tuple[str, str]]:
    """Return (service, method) of each stub."""
    source = inspect.getsource(sys.modules[transport.__module__])
    found = re.findall(r'"/([a-z0-9.A-Z]+)/(\w+)"', source)
    assert len(found) > 20, "the generated transport has another form than this test expects"
    return found
