"""The environment of a container: the image's, the pod's, and what GKE's webhook adds for TPUs."""

import base64
import re
from collections.abc import Mapping

from tests.cluster.agent.api import Api, Object
from tests.cluster.agent.images import Image
from tests.cluster.agent.volumes import NotThere, field, values

INDEX = "batch.kubernetes.io/job-completion-index"


async def variables(api: Api, pod: Object, image: Image) -> dict[str, str]:
    """Return them all. Raises NotThere where a Secret or a ConfigMap is missing."""
    namespace, container = pod["metadata"]["namespace"], pod["spec"]["containers"][0]
    found = {
        "PATH": ":".join(image.path),
        "HOME": "/root",
        "HOSTNAME": hostname(pod),
        **image.env,
        **await _of_gke(api, pod),
    }
    for source in container.get("envFrom") or ():
        found |= await values(api, namespace, source)
    for each in container.get("env") or ():
        found[each["name"]] = await _value(api, pod, each, found)
    return found


def hostname(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: an unknown name stays, `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z0-9_.-]+)\)", value, text)


async def _value(api: Api, pod: Object, asked: Object, env: Mapping[str, str]) -> str:
    source = asked.get("valueFrom")
    if source is None:
        return expand(asked.get("value", ""), env)
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    kind, key = ("secrets", "secretKeyRef") if "secretKeyRef" in source else ("configmaps", "configMapKeyRef")
    if key not in source:
        raise NotThere(f"the node agent of the tests has no {', '.join(source)}")
    said = source[key]
    found = (await api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{said['name']}")).get(
        "data"
    ) or {}
    text = found.get(said["key"], "")
    return base64.b64decode(text).decode() if kind == "secrets" else str(text)


async def _of_gke(api: Api, pod: Object) -> dict[str, str]:
    """Return what GKE injects into pods of an indexed Job with a subdomain, more than one pod, and TPUs."""
    meta, spec = pod["metadata"], pod["spec"]
    index, job = (
        (meta.get("annotations") or {}).get(INDEX),
        (meta.get("labels") or {}).get("batch.kubernetes.io/job-name"),
    )
    has_tpu = "google.com/tpu" in (spec["containers"][0].get("resources", {}).get("limits") or {})
    if index is None or job is None or not spec.get("subdomain") or not has_tpu:
        return {}
    found = await api.get(f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{job}")
    parallelism = found["spec"]["parallelism"]
    if parallelism < 2:
        return {}
    names = ",".join(f"{job}-{number}.{spec['subdomain']}" for number in range(parallelism))
    return {"TPU_WORKER_ID": index, "TPU_WORKER_HOSTNAMES": names}
