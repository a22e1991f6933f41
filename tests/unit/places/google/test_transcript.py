"""The transcript of calls: what is left out, and what stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.places.google import transcript
from orchestrator.places.google.transcript import Cleaner, record

NODE = "projects/acme-lab/locations/us-central1-a/nodes/tpujob-abc123-k3zgazhmv1"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPdk alice@laptop"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            f"{NODE}:getGuestAttributes",
            NODE.replace("acme-lab", "PROJECT").replace("abc123", "OWNER") + ":getGuestAttributes",
        ),
        ("projects/acme-lab: a quota", "projects/PROJECT: a quota"),
        ("projects/-/locations", "projects/PROJECT/locations"),
        ("organizations/1234 and folders/5678", "organizations/ID and folders/ID"),
        (
            "regions/us-east1/subnetworks/secret-sub in networks/lab",
            "regions/us-east1/subnetworks/NAME in networks/NAME",
        ),
        ("?project=other-host&pageToken=Cg0", "?project=PROJECT&pageToken=SECRET"),
        ("projects/corp.com:lab/x", "projects/PROJECT/x"),
        ("permission to use project other-quota-1 or network 'lab'", "permission to use project NAME or network NAME"),
        ("Subnetwork secret-sub of network secret-net is full", "Subnetwork NAME of network NAME is full"),
        ("your project because the network was not found", "your project because the network was not found"),
        (
            "https://console.developers.google.com/project/lab/x",
            "https://console.developers.google.com/project/PROJECT/x",
        ),
        ("project_number:12345678", "project_number:ID"),
        ("projects/_/buckets/secret/x", "projects/PROJECT/buckets/NAME/x"),
        ("https://storage.googleapis.com/secret/y", "https://storage.googleapis.com/BUCKET/y"),
        ("projects/p/locations/z/nodes/tpujob-secret-llm", "projects/PROJECT/locations/z/nodes/OTHER"),
        ("used in project 1032299714650 before", "used in project ID before"),
        ("/v1/users/alice%40corp.com:importSshPublicKey", "/v1/users/PERSON:importSshPublicKey"),
        ("granted to user:alice@corp, group:lab@corp.com.", "granted to user:PERSON, group:PERSON"),
        ("principal:agent", "principal:PERSON"),
        ("service-123@cloud-tpu.iam.gserviceaccount.com has no", "PERSON has no"),
        ("alice@laptop", "PERSON"),
        ("at 10.128.0.7 and 2001:db8:0:0:0:0:0:1 or 2600:1900::/28", "at ADDRESS and ADDRESS or ADDRESS/28"),
        ("until 08:15:22, nodeId=tpujob-alice-1234567890", "until 08:15:22, nodeId=tpujob-OWNER-1234567890"),
        ("nodes/tpujob-anna-example-1234567890/x", "nodes/tpujob-OWNER-1234567890/x"),
        (f"alice:{KEY}", "alice:KEY"),
        ("gs://alice-results/run/x", "gs://BUCKET/run/x"),
        ("projects/p/locations/z/nodes/alices-node", "projects/PROJECT/locations/z/nodes/OTHER"),
        ("ya29.a0AfH6SMBx-secret", "[redacted]"),
        ("EID: 0xba393c906974e61", "EID: 0xba393c906974e61"),
        ("2026-11-28T07:05:22.607207Z", "2026-11-28T07:05:22.607207Z"),
    ],
)
def test_text_without_names_and_secrets(said: str, kept: str) -> None:
    assert Cleaner().text(said) == kept


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"labels": {"tpujob-deadline": "1795851022"}}, {"labels": {"tpujob-deadline": "1795851022"}}),
        ({"labels": {"who": "alice@corp"}}, {"labels": {"who": "NAME"}}),
        ({"labels": {"tpujob-owner": "alice"}}, {"labels": {"tpujob-owner": "OWNER"}}),
        ({"labels": {"tpujob-name": "secret-llm", "tpujob": "1"}}, {"labels": {"tpujob-name": "NAME", "tpujob": "1"}}),
        ({"labels": {"tpujob-name": "smoke-abc012-job"}}, {"labels": {"tpujob-name": "smoke-abc012-job"}}),
        ({"labels": {"tpujob-name": "smoke-detector"}}, {"labels": {"tpujob-name": "NAME"}}),
        (
            {"metadata": {"ssh-keys": KEY, "script": "#!"}},
            {"metadata": {"ssh-keys": f"{len(KEY)} characters", "script": "2 characters"}},
        ),
        ({"@type": "tpu.v2.Node", "metadata": {"a": "b"}}, {"@type": "tpu.v2.Node", "metadata": {"a": "1 characters"}}),
        (
            {"metadata": {"@type": "x.Operation", "verb": "create"}},
            {"metadata": {"@type": "x.Operation", "verb": "create"}},
        ),
        (
            {"@type": "google.rpc.ErrorInfo", "metadata": {"consumer": "projects/12", "quota_limit": "TPUS"}},
            {"@type": "google.rpc.ErrorInfo", "metadata": {"consumer": "projects/PROJECT", "quota_limit": "TPUS"}},
        ),
        (
            {"commonInstanceMetadata": {"fingerprint": "x", "items": [{"key": "ssh-keys", "value": "abc"}]}},
            {"commonInstanceMetadata": {"fingerprint": "ID", "items": [{"key": "ssh-keys", "value": "3 characters"}]}},
        ),
        ({"posixAccounts": [{"username": "alice"}]}, {"posixAccounts": "PERSON"}),
        (
            {"networkEndpoints": [{"ipAddress": "a", "port": 1}]},
            {"networkEndpoints": [{"ipAddress": "ADDRESS", "port": 1}]},
        ),
        (
            {
                "nodes": [
                    {"name": "projects/p/locations/z/nodes/secret-llm", "state": "READY", "labels": {"who": "bob"}}
                ]
            },
            {"nodes": [{"name": "projects/PROJECT/locations/z/nodes/OTHER", "state": "READY"}]},
        ),
        ({"done": True, "tags": ["bob"], "network": None}, {"done": True, "tags": "NAME", "network": None}),
    ],
)
def test_data_keeps_its_shape_states_and_labels(said: Any, kept: Any) -> None:
    assert Cleaner().data(said) == kept


@pytest.fixture
def written(tmp_path: Path) -> Path:
    transcript._cleaner.cache_clear()
    return tmp_path / "transcript.jsonl"


OF_TPUS = "/v2/projects/acme-lab/locations/-/nodes"


def test_a_call_is_a_line_and_the_project_is_known_from_its_path_on(written: Path) -> None:
    record(
        str(written),
        "GET",
        OF_TPUS,
        {"email": "a@b.c"},
        200,
        '{"done": true, "name": "acme-lab", "verb": "create"}',
        0.25,
    )
    record(str(written), "GET", "/v2/x", None, None, "tpu.googleapis.com did not answer in time", 15.0)
    first, second = map(json.loads, written.read_text().splitlines())
    assert first.pop("at") <= second.pop("at")
    assert first == {
        **{"method": "GET", "path": "/v2/projects/PROJECT/locations/-/nodes", "sent": {"email": "PERSON"}},
        **{"status": 200, "took_s": 0.25, "reply": {"done": True, "name": "PROJECT", "verb": "create"}},
    }
    assert second["status"] is None and second["reply"] == "tpu.googleapis.com did not answer in time"
    assert written.stat().st_mode & 0o777 == 0o600


def test_of_other_apis_only_what_tells_nothing_is_kept_and_every_refusal(written: Path) -> None:
    person = '{"sub": "1", "name": "Alice B", "picture": "https://x", "hd": "corp.com"}'
    project = '{"kind": "compute#project", "name": "acme-lab", "usageExportLocation": {"bucketName": "b"}}'
    for reply, status in ((person, 200), (project, 200), ('{"permissions": ["tpu.nodes.create"]}', 200), ("no", 403)):
        record(str(written), "GET", "/compute/v1/projects/acme-lab", None, status, reply, 0.1)
    replies = [json.loads(line)["reply"] for line in written.read_text().splitlines()]
    assert replies == [
        {"size": f"{len(person)} characters"},
        {"kind": "compute#project", "size": f"{len(project)} characters"},
        {"permissions": ["tpu.nodes.create"], "size": "37 characters"},
        "2 characters, not JSON",
    ]


@pytest.mark.parametrize("reply", ["[" * 100_000, "x" * 600_000, "\ud800", '{"labels": {"a": 1}}', '{"labels": [1]}'])
def test_what_cannot_be_written_ends_no_call(written: Path, reply: str) -> None:
    record(str(written), "POST", f"{OF_TPUS}?nodeId=tpujob-abc123-k3zgazhmv1", None, 200, reply, 0.1)
    assert json.loads(written.read_text())["path"].endswith("nodeId=tpujob-OWNER-k3zgazhmv1")
    written.unlink()
    written.mkdir()  # nor a file that cannot be opened
    record(str(written), "GET", "/v2/x", None, 200, "{}", 0.1)
