"""Start the real programs of a control plane on loopback: etcd, Kubernetes, JobSet and Kueue.

Each has a certificate of the cluster's own authority. RBAC is on: JobSet and Kueue act as their service accounts, with the
roles that they come with; `admin` may do everything. The webhooks are called by URL, at ports of 127.0.0.1. Some periods of the
controllers are shorter than their defaults, so that tests need not wait: `CONTROLLERS`, `SERVER`.
"""

import contextlib
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.cluster.kubectl import kubectl, written
from tests.cluster.plane import processes
from tests.cluster.plane.processes import Authority, Children, free_ports
from tests.cluster.versions import cache
from tests.waiting import until

ADMIN = "cluster-admin"
LOST_AFTER_S = 10  # default 50: silence of a node after which it counts as lost
EVICTED_AFTER_S = 3  # default 300: how long pods tolerate a lost node
# Pods have addresses of loopback, which the API allows in no Endpoints: the node agent gives names to pods.
NOT_HERE = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")
CONTROLLERS = (
    f"--controllers=*,{','.join(f'-{name}' for name in NOT_HERE)}",
    f"--node-monitor-grace-period={LOST_AFTER_S}s",
    "--node-monitor-period=1s",
)
SERVER = (
    "--enable-admission-plugins=PodNodeSelector",  # the pods of a namespace go to its nodes alone (its annotation)
    f"--default-unreachable-toleration-seconds={EVICTED_AFTER_S}",
    f"--default-not-ready-toleration-seconds={EVICTED_AFTER_S}",
)
AUDIT = {  # what users ask for, with the bodies that they send; not what controllers do
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:masters"]},
        {"level": "Request", "userGroups": ["tpujob-users"]},
        {"level": "None"},
    ],
}


class ControlPlane:
    """The programs of one cluster, which end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "certificates")
        self.children = Children(directory / "logs")
        self._etcd, self._etcd_peer, self.port, *self._ports = free_ports(9)
        self._of_controllers = {"jobset": self._ports[2:4], "kueue": self._ports[4:6]}  # webhook, health
        self.url = f"https://127.0.0.1:{self.port}"
        self._admin = self.authority.issue(ADMIN, ["system:masters"])
        self._serving = self.authority.issue("servers", addresses=["127.0.0.1"])
        self._signing = self.authority.issue("service-accounts")
        self._tls = (f"--tls-cert-file={self._serving.certificate}", f"--tls-private-key-file={self._serving.key}")
        self.admin = self.kubeconfig(directory / "admin.kubeconfig", ADMIN)
        self._http = httpx2.Client(verify=self.admin_tls(), trust_env=False, timeout=60)

    def start(self) -> None:
        """Start everything, and return once the webhooks answer. Raises RuntimeError with the log of what failed."""
        self._start_etcd()
        self._start_server()
        self._wait(self.url, "the API server")
        authority = self.authority.certificate.read_bytes()
        ports = {name: webhook for name, (webhook, _) in self._of_controllers.items()}
        manifests = {name: processes.manifests(name, port, authority) for name, port in ports.items()}
        every = [document for documents in manifests.values() for document in documents]
        self.create([each for each in every if each["kind"] not in processes.LEFT_OUT])
        kubectl(self.admin, "wait", "--for=condition=Established", "crds", "--all", "--timeout=180s")
        accounts = (f"--service-account-private-key-file={self._signing.key}", "--use-service-account-credentials=true")
        root = f"--root-ca-file={self.authority.certificate}"
        # It looks for new CRDs twice a minute only.
        self._start_part("kube-controller-manager", self._ports[0], *accounts, root, *CONTROLLERS)
        self._start_part("kube-scheduler", self._ports[1])
        for name, documents in manifests.items():
            self._start_controller(name, documents)
        for name, (_, health) in self._of_controllers.items():
            self._wait(f"http://127.0.0.1:{health}", name)
        self.create([each for each in every if each["kind"] in processes.WEBHOOKS])

    def create(self, documents: list[dict[str, Any]]) -> None:
        """Create objects as the administrator."""
        kubectl(self.admin, "create", "-f", "-", given=documents)

    def kubeconfig(
        self, path: Path, user: str, groups: Sequence[str] = (), url: str = "", namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig for a user with a certificate of its own."""
        pair = self._admin if user == ADMIN else self.authority.issue(user, groups, folder=f"user-{path.stem}")
        cluster = {"server": url or self.url, "certificate-authority": str(self.authority.certificate)}
        keys = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        context = {"cluster": "test", "user": user, "namespace": namespace}
        config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        config |= {"clusters": [{"name": "test", "cluster": cluster}], "users": [{"name": user, "user": keys}]}
        config |= {"contexts": [{"name": "test", "context": context}]}
        return written(path, config)

    def admin_tls(self) -> ssl.SSLContext:
        """Return a client context of the administrator, which the node agent is."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        return context

    def _start(self, name: str, flags: Sequence[str | Path]) -> None:
        self.children.start(name, [cache() / name, *flags])

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._etcd_peer}"
        self._start(
            "etcd",
            [
                f"--data-dir={self.directory / 'etcd'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync", "--log-level=warn",
            ],
        )  # fmt: skip

    def _start_server(self) -> None:
        policy = self.directory / "audit.yaml"
        policy.write_text(yaml.safe_dump(AUDIT))
        to_nodes = self.authority.issue("kube-apiserver-kubelet-client", ["system:masters"])
        self._start(
            "kube-apiserver",
            [
                f"--etcd-servers=http://127.0.0.1:{self._etcd}", "--bind-address=127.0.0.1", f"--secure-port={self.port}",
                "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", *self._tls,
                f"--client-ca-file={self.authority.certificate}", "--authorization-mode=RBAC", "--allow-privileged=true",
                f"--kubelet-certificate-authority={self.authority.certificate}",
                f"--kubelet-client-certificate={to_nodes.certificate}", f"--kubelet-client-key={to_nodes.key}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-key-file={self._signing.certificate}",
                f"--service-account-signing-key-file={self._signing.key}",
                "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
                f"--audit-policy-file={policy}", f"--audit-log-path={self.children.logs / 'audit.log'}",
                "--profiling=false", *SERVER,
            ],
        )  # fmt: skip

    def _start_part(self, name: str, port: int, *flags: str) -> None:
        """Start another part of Kubernetes, with a user of its own."""
        own = self.kubeconfig(self.directory / f"{name}.kubeconfig", f"system:{name}")
        configs = (f"--{part}kubeconfig={own}" for part in ("", "authentication-", "authorization-"))
        serving = ("--bind-address=127.0.0.1", f"--secure-port={port}", *self._tls)
        self._start(name, [*configs, *serving, "--leader-elect=false", "--profiling=false", *flags])

    def _start_controller(self, name: str, documents: list[Any]) -> None:
        """Start JobSet or Kueue with the configuration that it comes with, moved to loopback and to our certificates."""
        webhook, health = self._of_controllers[name]
        config = self.directory / f"{name}.yaml"
        config.write_text(yaml.safe_dump(processes.config_of(name, documents, self._serving, webhook, health)))
        user = f"system:serviceaccount:{name}-system:{name}-controller-manager"
        own = self.kubeconfig(self.directory / f"{name}.kubeconfig", user)
        words: list[str | Path] = [cache() / name, f"--config={config}"]
        if name == "kueue":  # it wants a certificate for its metrics at a fixed place, even where they are off
            words = processes.with_files_at("/etc/kueue/metrics/certs", self._serving, words)
        self.children.start(name, words, {"KUBECONFIG": str(own)})

    def _wait(self, url: str, what: str) -> None:
        until(lambda: self._is_ready(url), f"{what}, whose log is in {self.children.logs},")

    def _is_ready(self, url: str) -> bool:
        self.children.check()
        with contextlib.suppress(httpx2.TransportError):
            return self._http.get(f"{url}/readyz").status_code == 200
        return False
