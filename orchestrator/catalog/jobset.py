"""The schema of a JobSet and of its pods: which fields there are, of which types, and what tells the items of a list apart.

`jobset_schema.json.gz` is that of JobSet 0.12's resource (v1alpha2), as JSON Schema without descriptions. No decisions.
"""

import gzip
import json
import pkgutil
from functools import cache
from typing import Any


@cache
def schema() -> dict[str, Any]:
    """Return the schema of a JobSet. What it lacks is refused by the API server, too."""
    data = pkgutil.get_data(__package__, "jobset_schema.json.gz")
    assert data is not None, "the package was built without jobset_schema.json.gz"
    return dict(json.loads(gzip.decompress(data)))


@cache
def pod_schema() -> dict[str, Any]:
    """Return the schema of the fields of a pod's `spec`, and of its `metadata` as one more field of these."""
    found: dict[str, Any] = schema()
    for part in ("spec", "replicatedJobs", "template", "spec", "template"):
        found = found["properties"][part]
        found = found.get("items", found)
    strings = {"type": "object", "additionalProperties": {"type": "string"}}
    known = {"annotations": strings, "labels": strings}
    metadata = {"type": "object", "additionalProperties": False, "properties": known}
    spec: dict[str, Any] = found["properties"]["spec"]
    return spec | {"properties": {"metadata": metadata, **spec["properties"]}}
