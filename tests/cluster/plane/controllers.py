"""JobSet and Kueue as they are released, moved to loopback: their manifests, configurations and webhooks."""

import base64
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.plane.certificates import Pair
from tests.cluster.versions import cache

NAMES = ("jobset", "kueue")
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
LEFT_OUT = ("Deployment", "Service", "APIService", "Secret", "ConfigMap", *WEBHOOKS)  # of the controllers' manifests


def manifests(name: str) -> list[dict[str, Any]]:
    documents = [each for each in yaml.load_all((cache() / f"{name}.yaml").read_bytes(), yaml.CSafeLoader) if each]
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":
            document["spec"].pop("conversion", None)  # each has one version
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


def by_url(document: dict[str, Any], port: int, ca: bytes) -> dict[str, Any]:
    for webhook in document["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": base64.b64encode(ca).decode()}
    return document
