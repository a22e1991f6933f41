"""What a program on a worker learns from its metadata server, asked as google-auth and scripts ask it."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from tests.contract.emulator.conftest import ZONE, Machine, client_for, finish, machines
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S


@dataclass(frozen=True)
class Metadata:
    root: str

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
        sent = headers or {"Metadata-Flavor": "Google"}
        url = f"http://{self.root}/computeMetadata/v1/{path}"
        request = urllib.request.Request(url, None if body is None else body.encode(), sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as reply:
                assert reply.headers["Metadata-Flavor"] == "Google"
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def says(self, path: str) -> str:
        status, text = self.get(path)
        assert status == 200, (path, status)
        return text


@pytest.fixture(scope="module")
def third(shared_emulator: Emulator, login_key: Path, ssh_keys: str) -> Iterator[Machine]:
    """The third worker of four."""
    api = client_for(shared_emulator)
    body = tpu_v2.Node(
        accelerator_type="v5litepod-16",
        runtime_version="v2-alpha-tpuv5-lite",
        metadata={"ssh-keys": ssh_keys, "mine": "my own"},
        scheduling_config={"preemptible": True},
    )
    node = finish(api.create_node(parent=ZONE, node_id="meta", node=body))
    yield machines(api, node.name, login_key)[2]
    finish(api.delete_node(name=node.name))


@pytest.fixture(scope="module")
def metadata(third: Machine) -> Metadata:
    return Metadata(third.says("echo $GCE_METADATA_HOST"))


def test_it_knows_project_zone_and_its_place_in_the_slice(metadata: Metadata) -> None:
    number = metadata.says("project/numeric-project-id")
    assert metadata.says("project/project-id") == "emulated"
    assert metadata.says("instance/zone") == f"projects/{number}/zones/us-central1-a"
    assert metadata.says("instance/attributes/agent-worker-number") == "2"
    assert metadata.says("instance/attributes/instance-id") == "meta"
    assert metadata.says("instance/attributes/accelerator-type") == "v5litepod-16"
    assert metadata.says("instance/attributes/mine") == "my own"
    assert metadata.says("instance/preempted") == "FALSE"
    assert metadata.says("instance/maintenance-event") == "NONE"
    endpoints = metadata.says("instance/attributes/worker-network-endpoints").split(",")
    assert [endpoint.split(":")[2] for endpoint in endpoints] == ["127.0.0.1"] * 4


def test_tpu_env_is_lines_of_quoted_values(metadata: Metadata) -> None:
    lines = metadata.says("instance/attributes/tpu-env").splitlines()
    values = dict(line.split(": ", 1) for line in lines)
    assert (values["NODE_ID"], values["WORKER_ID"], values["PREEMPTIBLE"]) == ("'meta'", "'2'", "'true'")


def test_without_the_flavor_header_it_refuses(metadata: Metadata) -> None:
    assert metadata.get("project/project-id", Accept="*/*")[0] == 403
    forwarded = {"Metadata-Flavor": "Google", "X-Forwarded-For": "1.2.3.4"}
    assert metadata.get("project/project-id", **forwarded)[0] == 403


@pytest.mark.parametrize(
    "extra", [{"Host": "rebound.example"}, {"Host": "[::1].rebound.example"}, {"Origin": "http://127.0.0.1"}]
)
def test_web_pages_learn_nothing(metadata: Metadata, extra: dict[str, str]) -> None:
    assert metadata.get("project/project-id", **{"Metadata-Flavor": "Google"} | extra)[0] == 403


def test_unknown_paths_are_absent_and_directories_are_listed(metadata: Metadata) -> None:
    assert metadata.get("instance/attributes/none")[0] == 404
    assert "agent-worker-number" in metadata.says("instance/attributes/").splitlines()
    assert "attributes/" in metadata.says("instance/").splitlines()
    assert json.loads(metadata.says("instance/attributes/?recursive=true"))["mine"] == "my own"


def test_google_auth_on_a_worker_finds_project_and_token(third: Machine) -> None:
    script = (
        "import google.auth, google.auth.transport.requests as transport;"
        "found, project = google.auth.default(); found.refresh(transport.Request());"
        "print(project, found.token, found.service_account_email)"
    )
    project, token, email = third.says(f"{sys.executable} -W ignore -c '{script}'").split()
    assert project == "emulated"
    assert token.startswith("emulated-")
    assert email.endswith("-compute@developer.gserviceaccount.com")


def test_a_worker_publishes_guest_attributes_that_the_api_shows(
    metadata: Metadata, third: Machine, api: tpu_v2.TpuClient
) -> None:
    assert metadata.get("instance/guest-attributes/job/state", "PUT", "running")[0] == 200
    assert metadata.says("instance/guest-attributes/job/state") == "running"
    reply = api.get_guest_attributes(request={"name": third.node, "query_path": "job/"})
    seen = [[(item.key, item.value) for item in worker.query_value.items] for worker in reply.guest_attributes]
    assert seen == [[], [], [("state", "running")], []]
    assert metadata.get("instance/guest-attributes/no-key", "PUT", "x")[0] == 404
    assert metadata.get("instance/zone", "PUT", "x")[0] == 404


ATTRIBUTES = "instance/guest-attributes"


def test_what_is_written_more_often_than_google_allows_is_accepted_and_lost(
    metadata: Metadata, shared_emulator: Emulator
) -> None:
    with shared_emulator.settings(attribute_limits=0.01):
        for number in range(4):
            assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", str(number))[0] == 200
        assert metadata.get(f"{ATTRIBUTES}/often/key")[0] == 404
    assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", "4")[0] == 200
    assert metadata.says(f"{ATTRIBUTES}/often/key") == "4"


def test_what_a_worker_publishes_is_as_small_as_with_google(metadata: Metadata) -> None:
    longest, largest = "k" * 127, "x" * (256 << 10)
    for path, value, status in (
        (f"caps/{longest}", "", 200),
        (f"caps/{longest}k", "", 400),
        ("caps/bytes", "\u00e4" * (128 << 10), 200),
        ("caps/bytes", "\u00e4" * (128 << 10) + "x", 400),
        ("caps/more", largest, 400),  # 512 KB in all
        ("caps/bytes", "x", 200),  # in place of the large one
        ("caps/more", largest, 200),
        ("caps/more", "", 200),
        ("caps/a%20b", "x", 400),
        ("caps%2Fa/b", "x", 404),
    ):
        assert metadata.get(f"{ATTRIBUTES}/{path}", "PUT", value)[0] == status, path
    for number in range(3):
        metadata.get(f"{ATTRIBUTES}/caps/fill{number}", "PUT", largest)
    published = json.loads(metadata.says(f"{ATTRIBUTES}/?recursive=true"))
    assert (
        sum(len(f"{name}/{key}{value}") for name, keys in published.items() for key, value in keys.items()) < 512 << 10
    )


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\xff", {}),
        (b"\xff", {"Content-Type": "text/plain; charset=nonsense"}),
        (b"garbage", {"Content-Encoding": "gzip"}),
    ],
)
def test_what_is_no_text_is_refused(metadata: Metadata, body: bytes, headers: dict[str, str]) -> None:
    sent = {"Metadata-Flavor": "Google", **headers}
    url = f"http://{metadata.root}/computeMetadata/v1/{ATTRIBUTES}/job/bytes"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(url, body, sent, method="PUT"), timeout=HANG_S)


def test_a_time_to_wait_that_is_no_number_is_none(metadata: Metadata) -> None:
    """And a change is there already."""
    for limit in ("9" * 18, "9" * 5000, "-1", "soon"):
        assert metadata.says(f"instance/zone?wait_for_change=true&last_etag=older&timeout_sec={limit}")
