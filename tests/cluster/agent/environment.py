"""What a container has of its pod: volumes as directories of this machine, its environment, and what is lent for its image."""

import base64
import fnmatch
import functools
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster.agent.api import Api, Object, Refused
from tests.cluster.agent.sandbox import Mount

UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}


class NotThere(Exception):
    """A volume that cannot be made yet; the kubelet goes on trying."""


async def prepare(api: Api, pod: Object, directory: Path) -> list[Mount]:
    """Return the mounts of the pod's container. Raises NotThere."""
    spec, places = pod["spec"], dict[str, Mount]()
    for volume in spec.get("volumes") or ():
        places[volume["name"]] = await _volume(api, pod, volume, directory / "volumes" / volume["name"])
    mounts = []
    for wanted in spec["containers"][0].get("volumeMounts") or ():
        made = places[wanted["name"]]
        mounts.append(replace(made, target=wanted["mountPath"], read_only=made.read_only or "readOnly" in wanted))
    return mounts


async def _volume(api: Api, pod: Object, volume: Object, place: Path) -> Mount:
    if (empty := volume.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return Mount("", None, size_bytes=size(empty["sizeLimit"]) if "sizeLimit" in empty else None)
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        return Mount("", place)
    files: dict[str, bytes] = {}
    for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
        files |= await _files(api, pod, source)
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


async def _files(api: Api, pod: Object, source: Object) -> dict[str, bytes]:
    """Return what a volume, a part of one or an `envFrom` entry has, by name. Raises NotThere."""
    if token := source.get("serviceAccountToken"):
        meta, account = pod["metadata"], pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        made = await api.create(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}})
        return {token["path"]: made["status"]["token"].encode()}
    if asked := source.get("downwardAPI"):
        return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]).encode() for item in asked["items"]}
    kind = next((kind for kind in ("configMap", "secret") if kind in source or f"{kind}Ref" in source), None)
    if kind is None:
        raise NotThere(f"the node agent of the tests has no {', '.join(key for key in source if key != 'name')}")
    asked = source.get(kind) or source[f"{kind}Ref"]
    name = asked.get("name") or asked["secretName"]
    try:
        found = await api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind.lower()}s/{name}")
    except Refused as refused:
        if refused.status != 404:
            raise
        raise NotThere(f'{kind.lower()} "{name}" not found') from refused
    data, encoded = found.get("data") or {}, found.get("binaryData") or {}
    plain, encoded = ({}, data) if kind == "secret" else (data, encoded)
    files = {each: text.encode() for each, text in plain.items()}
    files |= {each: base64.b64decode(text) for each, text in encoded.items()}
    return {item["path"]: files[item["key"]] for item in asked["items"]} if asked.get("items") else files


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


TORCH = ("*xla*", "*torch*", "*jax*", "python:*", "*/python:*")  # names of images that can be pulled


@dataclass(frozen=True)
class Image:
    """`lent`: directories that the container sees, read-only, at the same place."""

    lent: tuple[Path, ...]
    env: dict[str, str]


@functools.cache
def image(name: str) -> Image | None:
    """Return the environment of this interpreter; torch_xla computes on the CPU. None: no image has such a name."""
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in TORCH):
        return None
    libraries = [Path(place) for place in sys.path if place and Path(place).name == "site-packages"]
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_paths()["stdlib"]), *libraries}
    outer = sorted(place for place in places if not any(other in place.parents for other in places))
    env = {"PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(tuple(outer), {**env, "PJRT_DEVICE": "CPU", "TPUJOB_EMULATED_CORES": "1"})


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


INDEX, JOB = "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name"


async def variables(api: Api, pod: Object, image: Image) -> dict[str, str]:
    """Return them all. Raises NotThere where a Secret or a ConfigMap is missing."""
    container = pod["spec"]["containers"][0]
    found = {"HOME": "/root", "HOSTNAME": hostname(pod), **image.env, **await _of_gke(api, pod)}
    for source in container.get("envFrom") or ():
        files = await _files(api, pod, source)
        found |= {source.get("prefix", "") + name: content.decode() for name, content in files.items()}
    for each in container.get("env") or ():
        found[each["name"]] = _value(pod, each, found)
    return found


def hostname(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: an unknown name stays, `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z0-9_.-]+)\)", value, text)


def _value(pod: Object, asked: Object, env: Mapping[str, str]) -> str:
    source = asked.get("valueFrom")
    if source is None:
        return expand(asked.get("value", ""), env)
    if "fieldRef" not in source:
        raise NotThere(f"the node agent of the tests has no {', '.join(source)}")
    return field(pod, source["fieldRef"]["fieldPath"])


async def _of_gke(api: Api, pod: Object) -> dict[str, str]:
    """Return what GKE injects into pods of an indexed Job with a subdomain, more than one pod, and TPUs."""
    meta, spec = pod["metadata"], pod["spec"]
    index, job = ((meta.get(part) or {}).get(key) for part, key in (("annotations", INDEX), ("labels", JOB)))
    has_tpu = "google.com/tpu" in (spec["containers"][0].get("resources", {}).get("limits") or {})
    if index is None or job is None or not spec.get("subdomain") or not has_tpu:
        return {}
    found = await api.get(f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{job}")
    parallelism = found["spec"]["parallelism"]
    if parallelism < 2:
        return {}
    names = ",".join(f"{job}-{number}.{spec['subdomain']}" for number in range(parallelism))
    return {"TPU_WORKER_ID": index, "TPU_WORKER_HOSTNAMES": names}
