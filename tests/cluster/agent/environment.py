"""What a container has of its pod: volumes as directories of this machine, its environment, and what is lent for its image."""

import base64
import dataclasses
import fnmatch
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.agent.api import Api, Object, Refused
from tests.cluster.agent.sandbox import Mount

UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}


class NotThere(Exception):
    """A volume that cannot be made yet; the kubelet goes on trying."""


async def prepare(api: Api, pod: Object, directory: Path, hidden: set[str]) -> list[Mount]:
    """Return the mounts of the pod's container. Raises NotThere. `hidden`: ConfigMaps that count as not there."""
    spec, places = pod["spec"], dict[str, Mount]()
    for volume in spec.get("volumes") or ():
        place = directory / "volumes" / volume["name"]
        places[volume["name"]] = await _volume(api, pod, volume, place, hidden)
    mounts = []
    for wanted in spec["containers"][0].get("volumeMounts") or ():
        made, target = places[wanted["name"]], wanted["mountPath"]
        source = made.source / wanted["subPath"] if made.source and wanted.get("subPath") else made.source
        mounts.append(Mount(target, source, made.read_only or bool(wanted.get("readOnly")), made.size_bytes))
    return mounts


async def _volume(api: Api, pod: Object, volume: Object, place: Path, hidden: set[str]) -> Mount:
    namespace = pod["metadata"]["namespace"]
    if (empty := volume.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return Mount("", None, size_bytes=size(empty["sizeLimit"]) if "sizeLimit" in empty else None)
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        return Mount("", place)
    if "configMap" in volume:
        files = await _config_map(api, namespace, volume["configMap"], hidden)
    elif "secret" in volume:
        files = await _secret(api, namespace, {**volume["secret"], "name": volume["secret"]["secretName"]})
    elif "projected" in volume:
        files = {}
        for source in volume["projected"]["sources"]:
            files |= await _projected(api, pod, source, hidden)
    elif "downwardAPI" in volume:
        files = _downward(pod, volume["downwardAPI"])
    else:
        kinds = ", ".join(key for key in volume if key != "name")
        raise NotThere(
            f'MountVolume.SetUp failed for volume "{volume["name"]}": the node agent of the tests has no {kinds}'
        )
    _fill(place, files)
    return Mount("", place, read_only=True)


def _fill(place: Path, files: dict[str, bytes]) -> None:
    """Write files as the kubelet does: in a directory that `..data` points to, with a link for each."""
    data = place / "..2026_01_01"
    for name, content in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
    data.mkdir(parents=True, exist_ok=True)
    for link, target in {
        "..data": data.name,
        **{name.split("/")[0]: f"..data/{name.split('/')[0]}" for name in files},
    }.items():
        if not (place / link).is_symlink():
            (place / link).symlink_to(target)


async def _config_map(api: Api, namespace: str, asked: Object, hidden: set[str] = frozenset()) -> dict[str, bytes]:  # type: ignore[assignment]
    found = await _get(api, namespace, "configmaps", asked, hidden)
    plain = {name: text.encode() for name, text in (found.get("data") or {}).items()}
    return _picked(
        plain | {name: base64.b64decode(text) for name, text in (found.get("binaryData") or {}).items()}, asked
    )


async def _secret(api: Api, namespace: str, asked: Object) -> dict[str, bytes]:
    found = await _get(api, namespace, "secrets", asked)
    return _picked({name: base64.b64decode(text) for name, text in (found.get("data") or {}).items()}, asked)


async def _get(api: Api, namespace: str, kind: str, asked: Object, hidden: set[str] = frozenset()) -> Object:  # type: ignore[assignment]
    name = asked["name"]
    try:
        if f"{namespace}/{name}" not in hidden:
            return await api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
    except Refused as refused:
        if refused.status != 404:
            raise
    if asked.get("optional"):
        return {}
    raise NotThere(f'{kind[:-1]} "{name}" not found')


def _picked(files: dict[str, bytes], asked: Object) -> dict[str, bytes]:
    return {item["path"]: files[item["key"]] for item in asked["items"]} if asked.get("items") else files


async def _projected(api: Api, pod: Object, source: Object, hidden: set[str]) -> dict[str, bytes]:
    namespace = pod["metadata"]["namespace"]
    if token := source.get("serviceAccountToken"):
        account = pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec = {
            "audiences": [token["audience"]] if token.get("audience") else [],
            "expirationSeconds": 3600,
            "boundObjectRef": bound,
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return {token["path"]: (await api.create(path, {"spec": spec}))["status"]["token"].encode()}
    if "configMap" in source:
        return await _config_map(api, namespace, source["configMap"], hidden)
    if "secret" in source:
        return await _secret(api, namespace, source["secret"])
    return _downward(pod, source["downwardAPI"])


def _downward(pod: Object, asked: Object) -> dict[str, bytes]:
    return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]).encode() for item in asked["items"]}


def field(pod: Object, path: str) -> str:
    """Return a field of a pod as the downward API gives it: `metadata.labels['a']`, `status.podIP`, …"""
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for step in path.split("."):
        value = (value or {}).get(step)
    return "" if value is None else str(value)


def size(text: str) -> int:
    """Return a quantity in bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * UNITS[unit])


async def values(api: Api, namespace: str, source: Object) -> dict[str, str]:
    """Return the variables of an `envFrom` entry. Raises NotThere."""
    if asked := source.get("secretRef"):
        files = await _secret(api, namespace, asked)
    else:
        files = await _config_map(api, namespace, source["configMapRef"])
    return {source.get("prefix", "") + name: content.decode() for name, content in files.items()}


TORCH = ("*xla*", "*torch*", "*jax*", "python:*", "*/python:*")  # names of images that can be pulled


@dataclass(frozen=True)
class Image:
    """`lent`: directories that the container sees, read-only, at the same place."""

    lent: tuple[Path, ...]
    path: tuple[str, ...]
    env: dict[str, str] = dataclasses.field(default_factory=dict)


class Images:
    """A table of name patterns. Names that match none are missing."""

    def __init__(self) -> None:
        self._lent = {pattern: _of_this_python() for pattern in TORCH}

    def find(self, name: str) -> Image | None:
        return next((image for pattern, image in self._lent.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _of_this_python() -> Image:
    """Return the environment of this interpreter. An emulated TPU: torch_xla computes on the CPU."""
    libraries = [Path(place) for place in sys.path if place and Path(place).name == "site-packages"]
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_paths()["stdlib"]), *libraries}
    outer = sorted(place for place in places if not any(other in place.parents for other in places))
    env = {"PJRT_DEVICE": "CPU", "TPUJOB_EMULATED_CORES": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(tuple(outer), (f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"), env)


def mounts(directory: Path) -> Iterator[Mount]:
    """Yield the files that keep the names of a pod from the resolvers of this machine."""
    (directory / "hosts").touch()
    (directory / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    (directory / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for name in ("hosts", "nsswitch.conf", "resolv.conf"):
        if (there := Path("/etc", name)).is_file() and not there.is_symlink():
            yield Mount(f"/etc/{name}", directory / name)


def line(pod: Object, address: str) -> str:
    meta, domain = pod["metadata"], pod["spec"]["subdomain"]
    short = f"{hostname(pod)}.{domain}"
    inner = f"{short}.{meta['namespace']}"
    return f"{address} {short} {inner} {inner}.svc {inner}.svc.cluster.local\n"


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
