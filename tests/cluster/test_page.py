"""What docs/gke.md tells the admin of a cluster to create, on the real control plane: it is enough for the page's first run."""

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.cluster.gke_fixture import Gke

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "gke.md").read_text(encoding="utf-8")


def block(word: str) -> list[Any]:
    """Return the documents of the only YAML block of the page that has this word."""
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = [each for each in blocks if word in each]
    return list(yaml.safe_load_all(textwrap.dedent(found)))


@pytest.fixture
def own(gke: Gke) -> Iterator[str]:
    """A name for what is in no namespace. It is deleted after the test."""
    name = f"page-{gke.space}"
    yield name
    for kind in ("clusterqueue", "resourceflavor"):
        gke.cluster.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")


def test_a_user_with_the_rights_and_the_queue_of_the_page_has_a_first_run(gke: Gke, own: str) -> None:
    namespace, *documents = block("kind: ClusterQueue")
    (job,) = block("name: mnist-gke")
    text = yaml.safe_dump_all(documents).replace(
        f"namespace: {namespace['metadata']['name']}", f"namespace: {gke.space}"
    )
    documents = list(yaml.safe_load_all(text))
    by_kind = {each["kind"]: each for each in documents}
    for each in documents:
        if each["kind"] in ("ResourceFlavor", "ClusterQueue"):
            each["metadata"]["name"] = own
    by_kind["ClusterQueue"]["spec"]["resourceGroups"][0]["flavors"][0]["name"] = own
    by_kind["LocalQueue"]["metadata"]["name"], by_kind["LocalQueue"]["spec"]["clusterQueue"] = own, own
    by_kind["RoleBinding"]["subjects"] = [{"kind": "ServiceAccount", "name": "user", "namespace": gke.space}]
    gke.cluster.kubectl("create", "serviceaccount", "user", "-n", gke.space)
    gke.cluster.kubectl("create", "-f", "-", given=documents)
    token = gke.cluster.kubectl("create", "token", "user", "-n", gke.space).stdout.strip()
    config = yaml.safe_load(gke.way.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    kubeconfig = gke.directory / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    kubeconfig.chmod(0o600)
    done = gke.run(
        'echo "$TPUJOB_WORKER $GREETING" >"$TPUJOB_ARTIFACTS/me"',
        *("--env", "GREETING"),  # in a Secret
        env={"KUBECONFIG": str(kubeconfig), "GREETING": "hello"},
        queue=own,
        tpu=job["tpu"],
    )
    assert done.returncode == 0, done.text
    results = [gke.directory_of_run() / f"worker{each}/artifacts/me" for each in range(4)]
    assert [each.read_text() for each in results] == [f"{each} hello\n" for each in range(4)]
    assert "absent (checked" in done.text and gke.left() == []
    assert "you may not read nodes" in done.text
