"""The parts of a control plane: processes with log files, certificates, and JobSet and Kueue moved to loopback."""

import base64
import contextlib
import ctypes
import datetime
import ipaddress
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster.versions import cache

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, however that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


class Children:
    """The programs of a control plane by name. Start them from the main thread: they end with the thread that did it."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir()
        self.logs = logs
        self._down: set[str] = set()
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

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for its end."""
        self._down.add(name)
        process = self._running[name][0]
        process.kill()
        process.wait()

    def again(self, name: str) -> None:
        """Start it with the same words as before."""
        _, words, env = self._running[name]
        self.start(name, words, env)
        self._down.discard(name)

    def check(self) -> None:
        """Raise RuntimeError with the end of the log of a program that has ended by itself."""
        for name, (process, _, _) in self._running.items():
            if name not in self._down and (code := process.poll()) is not None:
                raise RuntimeError(f"{name} ended with {code}: {self.logs / f'{name}.log'}\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        return "\n".join((self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-15:])

    def close(self) -> None:
        """End all of them."""
        for process, _, _ in self._running.values():
            process.kill()
        for process, _, _ in self._running.values():
            process.wait()


LIFE = datetime.timedelta(days=2)
EARLY = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs for one cluster. Its files lie in a directory of the cluster, and end with it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tpujob-test-cluster")
        own = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(True, 0), critical=True
        )
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = (), folder: str = "") -> Pair:
        """Return files of a certificate for a user (its groups) or a server (its addresses), valid as both."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name, groups), key.public_key())
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA256())
        place = self.directory / (folder or name.replace(":", "-"))
        place.mkdir()
        pair = Pair(place / "tls.crt", place / "tls.key")
        pair.certificate.write_bytes(_pem(signed))
        _write_key(pair.key, key)
        return pair

    def service_account_key(self) -> Path:
        """Return the file of a key that signs the tokens of service accounts."""
        path = self.directory / "service-accounts.key"
        _write_key(path, rsa.generate_private_key(65537, 2048))
        return path

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLY)
            .not_valid_after(now + LIFE)
        )


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


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
