"""The parts of a control plane: processes with log files, certificates, and JobSet and Kueue moved to loopback."""

import base64
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.versions import cache
from tests.waiting import held_port, ran

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, however that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(held_port()) for _ in range(count)]


class Children:
    """The programs of a control plane by name. Start them from the main thread: they end with the thread that did it."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir()
        self.logs = logs
        self._running: dict[str, tuple[subprocess.Popen[bytes], list[str], Mapping[str, str]]] = {}

    def start(self, name: str, words: Iterable[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start it; what it prints goes to `<name>.log`."""
        line, env = [str(word) for word in words], env or {}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "HOME": str(self.logs), **env},
                cwd=self.logs,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call
            )
        self._running[name] = (process, line, env)

    def restart(self, name: str) -> None:
        """SIGKILL, and start it again with the same words once it has ended."""
        process, words, env = self._running[name]
        process.kill()
        process.wait()
        self.start(name, words, env)

    def check(self) -> None:
        """Raise RuntimeError with the end of the log of a program that has ended by itself."""
        for name, (process, _, _) in self._running.items():
            if (code := process.poll()) is not None:
                log = self.logs / f"{name}.log"
                said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"{name} ended with {code}: {log}\n{said}")

    def close(self) -> None:
        """End all of them."""
        for process, _, _ in self._running.values():
            process.kill()
        for process, _, _ in self._running.values():
            process.wait()


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs for one cluster, with openssl. Its files lie in a directory of the cluster, and end with it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._own = Pair(directory / "ca.crt", directory / "ca.key")
        self.certificate = self._own.certificate
        (directory / "openssl.cnf").write_text("[req]\ndistinguished_name = none\n[none]\n")  # not this machine's
        self._make(self._own, "/CN=tpujob-test-cluster", "basicConstraints=critical,CA:true,pathlen:0")

    def issue(self, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = (), folder: str = "") -> Pair:
        """Return files of a certificate for a user (its groups) or a server (its addresses), valid as both."""
        place = self.directory / (folder or name.replace(":", "-"))
        place.mkdir()
        pair = Pair(place / "tls.crt", place / "tls.key")
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={name}"
        usage = ["extendedKeyUsage=serverAuth,clientAuth", *(f"subjectAltName=IP:{each}" for each in addresses)]
        self._make(pair, subject, *usage, signer=("-CA", self._own.certificate, "-CAkey", self._own.key))
        return pair

    def _make(self, pair: Pair, subject: str, *extensions: str, signer: Sequence[str | Path] = ()) -> None:
        words = ["openssl", "req", "-x509", "-config", "openssl.cnf", "-days", "2", "-newkey", "ec"]
        words += ["-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject, *map(str, signer)]
        words += [word for each in extensions for word in ("-addext", each)]
        ran([*words, "-keyout", pair.key, "-out", pair.certificate], check=True, cwd=self.directory)


WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
LEFT_OUT = ("Deployment", "Service", "APIService", "Secret", "ConfigMap", *WEBHOOKS)  # of the controllers' manifests


def manifests(name: str, port: int, ca: bytes) -> list[dict[str, Any]]:
    """Return what a controller comes with. Its webhooks, which also convert its objects, are at a port of 127.0.0.1."""
    documents = [each for each in yaml.load_all((cache() / f"{name}.yaml").read_bytes(), yaml.CSafeLoader) if each]
    for document in documents:
        convert = document.get("spec", {}).get("conversion", {}).get("webhook")
        for hook in (*document.get("webhooks", ()), *([convert] if convert else ())):
            path, bundle = hook["clientConfig"]["service"]["path"], base64.b64encode(ca).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return documents


def config_of(name: str, documents: list[Any], serving: Pair, webhook: int, health: int) -> dict[str, Any]:
    (shipped,) = (each for each in documents if each["kind"] == "ConfigMap")
    config: dict[str, Any] = yaml.safe_load(shipped["data"]["controller_manager_config.yaml"])
    config["internalCertManagement"] = {"enable": False}
    config["leaderElection"] = {"leaderElect": False}
    config["webhook"] = {"host": "127.0.0.1", "port": webhook, "certDir": str(serving.certificate.parent)}
    config["health"] = {"healthProbeBindAddress": f"127.0.0.1:{health}"}
    config["metrics"] = {"bindAddress": "0"}
    if name == "kueue":
        config["featureGates"] = {"VisibilityOnDemand": False}  # a server of its own, on all addresses
    return config


def with_files_at(place: str, pair: Pair, words: Sequence[str | Path]) -> list[str | Path]:
    """Return words that run a program which sees the pair below a directory of /etc that this machine does not have."""
    copies = f"cp {shlex.quote(str(pair.certificate))} {shlex.quote(str(pair.key))} {place}"
    script = f'mount -t tmpfs none /etc && mkdir -p {place} && {copies} && exec "$@"'
    rootless = [] if os.geteuid() == 0 else ["-Ur"]
    return ["unshare", *rootless, "-m", "setpriv", "--pdeathsig", "KILL", "sh", "-c", script, "sh", *words]
