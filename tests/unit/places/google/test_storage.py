"""The location of a bucket: the request, its token, and each kind of reply."""

import pytest

from orchestrator.core.planning.egress import Bucket
from orchestrator.errors import AuthError, BadRequest, CloudUnavailable, UnexpectedReply
from orchestrator.places.google import storage
from orchestrator.places.google.credentials import EmulatorToken
from tests.unit.places.stub_api import StubApi, StubReply

PLACED = {"location": "US-CENTRAL1", "locationType": "region"}
TOKEN = EmulatorToken("the-token")


@pytest.fixture
def google(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> StubApi:
    monkeypatch.setattr(storage, "GOOGLE", stub.url)
    return stub


def test_the_request_for_the_location_carries_the_token(google: StubApi) -> None:
    google.answers(StubReply(200, PLACED))
    assert storage.bucket("my.bucket", bearer=TOKEN) == Bucket("my.bucket", "us-central1")
    (asked,) = google.asked
    assert asked.path == "/storage/v1/b/my.bucket?fields=location%2ClocationType%2CcustomPlacementConfig"
    assert asked.headers["authorization"] == "Bearer the-token"


def test_an_emulator_of_storage_gets_no_token_and_may_have_objects_only(stub: StubApi) -> None:
    stub.answers(StubReply(200, PLACED), StubReply(501, "Unsupported method"), StubReply(200, {}))
    host = stub.url.partition("://")[2]  # Google's own clients take it with and without a scheme
    assert storage.bucket("b", emulator=host) == Bucket("b", "us-central1")
    assert storage.bucket("b", emulator=stub.url) is None
    assert storage.bucket("b", emulator=stub.url) is None
    assert not any("authorization" in asked.headers for asked in stub.asked)


def test_a_bucket_that_does_not_exist_is_a_mistake_of_the_job(google: StubApi) -> None:
    google.answers(StubReply(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}}))
    with pytest.raises(BadRequest, match="there is no bucket gs://b") as refused:
        storage.bucket("b", bearer=TOKEN)
    assert refused.value.hint == "create it, or correct its name in the job"


def test_a_refusal_and_a_reply_of_another_server_differ(google: StubApi) -> None:
    google.answers(StubReply(403, {"error": {"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}}))
    with pytest.raises(AuthError):
        storage.bucket("b", bearer=TOKEN)
    google.answers(StubReply(200, "<html>"))
    with pytest.raises(UnexpectedReply):
        storage.bucket("b", bearer=TOKEN)
    with pytest.raises(CloudUnavailable):
        storage.bucket("b", emulator="127.0.0.1:1")
