"""Operations of the API, as tpujob's own clients follow them."""

from orchestrator.promise.lease.cloud_api import Cloud, Operation
from tests.waiting import until


def finish(api: Cloud, operation: Operation | None) -> Operation:
    """Return the operation, once it is done."""
    assert operation is not None
    done = until(lambda: api.operation(operation.name), wanted=lambda now: now is not None and now.done)
    assert done is not None
    return done
