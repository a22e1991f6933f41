"""The metadata server of a worker, for google-auth and scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from tests.contract.emulator.conftest import ZONE, Machine, client_for, fetch, finish, machines, node_body
from tests.emulator_fixture import Emulator


@dataclass(frozen=True)
class Metadata:
    root: str

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
        url = f"http://{self.root}/computeMetadata/v1/{path}"
        status, text, found = fetch(url, method, body if body is None else body.encode(), **headers)
        assert found["Metadata-Flavor"] == "Google"
        return status, text

    def text(self, path: str) -> str:
        status, text = self.get(path)
        assert status == 200, (path, status)
        return text


@pytest.fixture(scope="module")
def third(shared_emulator: Emulator, login_key: Path, ssh_keys: str) -> Iterator[Machine]:
    """The third worker of four."""
    api = client_for(shared_emulator)
    attributes, tier = {"ssh-keys": ssh_keys, "mine": "my own"}, {"preemptible": True}
    body = node_body(accelerator_type="v5litepod-16", metadata=attributes, scheduling_config=tier)
    node = finish(api.create_node(parent=ZONE, node_id="meta", node=body))
    yield machines(api, node.name, login_key)[2]
    finish(api.delete_node(name=node.name))


@pytest.fixture(scope="module")
def metadata(third: Machine) -> Metadata:
    return Metadata(third.output("echo $GCE_METADATA_HOST"))


def test_it_has_project_zone_and_worker_number(metadata: Metadata) -> None:
    number = metadata.text("project/numeric-project-id")
    assert metadata.text("project/project-id") == "emulated"
    assert metadata.text("instance/zone") == f"projects/{number}/zones/us-central1-a"
    assert metadata.text("instance/attributes/agent-worker-number") == "2"
    assert metadata.text("instance/attributes/instance-id") == "meta"
    assert metadata.text("instance/attributes/accelerator-type") == "v5litepod-16"
    assert metadata.text("instance/attributes/mine") == "my own"
    assert metadata.text("instance/preempted") == "FALSE"
    assert metadata.text("instance/maintenance-event") == "NONE"
    endpoints = metadata.text("instance/attributes/worker-network-endpoints").split(",")
    assert [endpoint.split(":")[2] for endpoint in endpoints] == ["127.0.0.1"] * 4


def test_tpu_env_is_lines_of_quoted_values(metadata: Metadata) -> None:
    lines = metadata.text("instance/attributes/tpu-env").splitlines()
    values = dict(line.split(": ", 1) for line in lines)
    assert (values["NODE_ID"], values["WORKER_ID"], values["PREEMPTIBLE"]) == ("'meta'", "'2'", "'true'")


def test_without_the_flavor_header_it_refuses(metadata: Metadata) -> None:
    assert metadata.get("project/project-id", Accept="*/*")[0] == 403
    forwarded = {"Metadata-Flavor": "Google", "X-Forwarded-For": "1.2.3.4"}
    assert metadata.get("project/project-id", **forwarded)[0] == 403


@pytest.mark.parametrize(
    "host", ["metadata.google.internal", "Metadata.google.internal:80", "metadata", "169.254.169.254"]
)
def test_the_names_by_which_programs_on_a_tpu_vm_call_it_are_admitted(metadata: Metadata, host: str) -> None:
    assert metadata.get("project/project-id", **{"Metadata-Flavor": "Google", "Host": host}) == (200, "emulated")


@pytest.mark.parametrize("path", ["", "instance/", "instance/service-accounts/", "instance/service-accounts/default/"])
@pytest.mark.parametrize(
    "query", ["recursive=true", "recursive=TRUE&alt=text", "alt=json&timeout_sec=0&wait_for_change=true"]
)
def test_a_recursive_read_has_neither_token_nor_identity(metadata: Metadata, path: str, query: str) -> None:
    status, text = metadata.get(f"{path}?{query}")
    assert status == 200 and "devstorage" not in text and "@developer.gserviceaccount.com" in text
    assert not [word for word in ("access_token", '"token"', "identity") if word in text]


def test_the_token_is_read_by_its_name_only(metadata: Metadata) -> None:
    account = "instance/service-accounts/default"
    assert "token" in metadata.text(f"{account}/").splitlines()
    for query in ("", "?alt=json", "?recursive=true"):
        assert json.loads(metadata.text(f"{account}/token{query}"))["access_token"].startswith("emulated-")


@pytest.mark.parametrize("extra", [
    {"Host": "rebound.example"}, {"Host": "metadata.example"},
    {"Host": "metadata.google.internal.example"},
    {"Host": "[::1].rebound.example"}, {"Origin": "http://127.0.0.1"},
])  # fmt: skip
def test_web_pages_are_refused(metadata: Metadata, extra: dict[str, str]) -> None:
    assert metadata.get("project/project-id", **{"Metadata-Flavor": "Google"} | extra)[0] == 403


def test_unknown_paths_are_absent_and_directories_are_listed(metadata: Metadata) -> None:
    assert metadata.get("instance/attributes/none")[0] == 404
    assert "agent-worker-number" in metadata.text("instance/attributes/").splitlines()
    assert "attributes/" in metadata.text("instance/").splitlines()
    assert json.loads(metadata.text("instance/attributes/?recursive=true"))["mine"] == "my own"


def test_google_auth_on_a_worker_finds_project_and_token(third: Machine) -> None:
    script = (
        "import google.auth, google.auth.transport.requests as transport;"
        "found, project = google.auth.default(); found.refresh(transport.Request());"
        "print(project, found.token, found.service_account_email)"
    )
    project, token, email = third.output(f"{sys.executable} -W ignore -c '{script}'").split()
    assert project == "emulated"
    assert token.startswith("emulated-")
    assert email.endswith("-compute@developer.gserviceaccount.com")


def test_a_worker_publishes_guest_attributes_that_the_api_shows(
    metadata: Metadata, third: Machine, api: tpu_v2.TpuClient
) -> None:
    assert metadata.get("instance/guest-attributes/job/state", "PUT", "running")[0] == 200
    assert metadata.text("instance/guest-attributes/job/state") == "running"
    reply = api.get_guest_attributes(request={"name": third.node, "query_path": "job/"})
    seen = [[(item.key, item.value) for item in worker.query_value.items] for worker in reply.guest_attributes]
    assert seen == [[], [], [("state", "running")], []]
    assert metadata.get("instance/guest-attributes/no-key", "PUT", "x")[0] == 404
    assert metadata.get("instance/zone", "PUT", "x")[0] == 404


ATTRIBUTES = "instance/guest-attributes"


def test_writes_beyond_googles_rate_are_accepted_and_dropped(metadata: Metadata, shared_emulator: Emulator) -> None:
    with shared_emulator.settings(attribute_limits=0.01):
        for number in range(4):
            assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", str(number))[0] == 200
        assert metadata.get(f"{ATTRIBUTES}/often/key")[0] == 404
    assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", "4")[0] == 200
    assert metadata.text(f"{ATTRIBUTES}/often/key") == "4"


def test_guest_attributes_have_googles_size_limits(metadata: Metadata) -> None:
    longest, largest = "k" * 127, "x" * (256 << 10)
    for path, value, status in (
        (f"caps/{longest}", "", 200),
        (f"caps/{longest}k", "", 400),
        ("caps/bytes", "\u00e4" * (128 << 10), 200),
        ("caps/bytes", "\u00e4" * (128 << 10) + "x", 400),
        ("caps/more", largest, 400),  # 512 KB in all
        ("caps/bytes", "x", 200),  # replaces the large one
        ("caps/more", largest, 200),
        ("caps/more", "", 200),
        ("caps/a%20b", "x", 400),
        ("caps%2Fa/b", "x", 404),
    ):
        assert metadata.get(f"{ATTRIBUTES}/{path}", "PUT", value)[0] == status, path
    for number in range(3):
        metadata.get(f"{ATTRIBUTES}/caps/fill{number}", "PUT", largest)
    published = json.loads(metadata.text(f"{ATTRIBUTES}/?recursive=true"))
    assert (
        sum(len(f"{name}/{key}{value}") for name, keys in published.items() for key, value in keys.items()) < 512 << 10
    )


@pytest.mark.parametrize(("body", "headers"), [
    (b"\xff", {}),
    (b"\xff", {"Content-Type": "text/plain; charset=nonsense"}),
    (b"garbage", {"Content-Encoding": "gzip"}),
])  # fmt: skip
def test_a_value_that_is_not_text_is_refused(metadata: Metadata, body: bytes, headers: dict[str, str]) -> None:
    sent = {"Metadata-Flavor": "Google", **headers}
    assert fetch(f"http://{metadata.root}/computeMetadata/v1/{ATTRIBUTES}/job/bytes", "PUT", body, **sent)[0] == 400


def test_an_invalid_timeout_is_ignored(metadata: Metadata) -> None:
    """The value differs from `last_etag` already."""
    for limit in ("9" * 18, "9" * 5000, "-1", "soon"):
        assert metadata.text(f"instance/zone?wait_for_change=true&last_etag=older&timeout_sec={limit}")
