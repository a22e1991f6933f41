"""The names of pods: files of /etc that a container sees in place of those of this machine."""

from collections.abc import Iterator
from pathlib import Path

from tests.cluster.agent import environment
from tests.cluster.agent.api import Object
from tests.cluster.agent.sandbox import Mount


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
    short = f"{environment.hostname(pod)}.{domain}"
    inner = f"{short}.{meta['namespace']}"
    return f"{address} {short} {inner} {inner}.svc {inner}.svc.cluster.local\n"
