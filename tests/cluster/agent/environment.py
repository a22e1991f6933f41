"""What a container has of its pod: volumes as directories of this machine, its environment, and what is lent for its image."""

import base64
import fnmatch
import functools
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster.agent.api import Api, Object, Refused
from tests.cluster.agent.sandbox import Mount


class NotThere(Exception):
    """A volume that cannot be made yet; the kubelet goes on trying."""


async def prepare(api: Api, pod: Object, directory: Path) -> list[Mount]:
    """Return the mounts of the pod's container, but for the token of its account, which none here uses. Raises NotThere."""
    spec, places = pod["spec"], dict[str, Mount]()
    for volume in (each for each in spec["volumes"] if "projected" not in each):
        places[volume["name"]] = await _volume(api, pod, volume, directory / "volumes" / volume["name"])
    mounts = []
    for wanted in (each for each in spec["containers"][0]["volumeMounts"] if each["name"] in places):
        made = places[wanted["name"]]
        mounts.append(replace(made, target=wanted["mountPath"], read_only=made.read_only or "readOnly" in wanted))
    return mounts


async def _volume(api: Api, pod: Object, volume: Object, place: Path) -> Mount:
    if (empty := volume.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return Mount("", None, size=empty.get("sizeLimit", "").removesuffix("i"))  # 1G of a tmpfs is 1 GiB
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        return Mount("", place)
    _fill(place, await _files(api, pod, volume))
    return Mount("", place, read_only=True)


def _fill(place: Path, files: dict[str, bytes]) -> None:
    """Write files as the kubelet does: in a directory that `..data` points to, with a link for each."""
    data = place / "..2026_01_01"
    data.mkdir(parents=True)
    (place / "..data").symlink_to(data.name)
    for name, content in files.items():
        (data / name).write_bytes(content)
        (place / name).symlink_to(f"..data/{name}")


async def _files(api: Api, pod: Object, source: Object) -> dict[str, bytes]:
    """Return what a volume or an `envFrom` entry has, by name. Raises NotThere."""
    kind = next((kind for kind in ("configMap", "secret") if kind in source or f"{kind}Ref" in source), None)
    if kind is None:
        raise NotThere(f"the node agent of the tests has no {', '.join(key for key in source if key != 'name')}")
    asked = source.get(kind) or source[f"{kind}Ref"]
    name = asked.get("name") or asked["secretName"]
    try:
        found = await api.call("GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind.lower()}s/{name}")
    except Refused as refused:
        if refused.status != 404:
            raise
        raise NotThere(f'{kind.lower()} "{name}" not found') from refused
    data, encoded = found.get("data") or {}, found.get("binaryData") or {}
    plain, encoded = ({}, data) if kind == "secret" else (data, encoded)
    files = {each: text.encode() for each, text in plain.items()}
    return files | {each: base64.b64decode(text) for each, text in encoded.items()}


def field(pod: Object, path: str) -> str:
    """Return a field of a pod as the downward API gives it: `metadata.labels['a']`, `status.podIP`, …"""
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for step in path.split("."):
        value = (value or {}).get(step)
    return "" if value is None else str(value)


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


async def variables(api: Api, pod: Object, image: Image) -> dict[str, str]:
    """Return them all. Raises NotThere where a Secret or a ConfigMap is missing."""
    container = pod["spec"]["containers"][0]
    found = {"HOME": "/root", "HOSTNAME": hostname(pod), **image.env}
    for source in container.get("envFrom") or ():
        found |= {name: content.decode() for name, content in (await _files(api, pod, source)).items()}
    for each in container.get("env") or ():
        said = each.get("value")
        found[each["name"]] = field(pod, each["valueFrom"]["fieldRef"]["fieldPath"]) if said is None else said
    return found


def hostname(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
