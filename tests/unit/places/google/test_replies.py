"""Google's replies and logins: errors beside the table of literal replies, OS Login, buckets, and whom a token is sent to."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.capacity.egress import Bucket
from orchestrator.errors import (
    AuthError,
    BadRequest,
    CloudError,
    CloudUnavailable,
    ConfigError,
    QuotaError,
    UnexpectedReply,
)
from orchestrator.places.google import credentials, error_translation, fetch, objects
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.fetch import Reply
from orchestrator.places.google.os_login import Login, OsLogin, account_of
from orchestrator.places.google.project_setup import Apis
from orchestrator.places.tpu.api.client import TpuApi, connect
from orchestrator.settings import Target
from tests.fakes.api import FixedToken, StubApi, StubReply

HOST = "tpu.googleapis.com"


def test_a_used_up_quota_is_named_even_where_the_message_does_not() -> None:
    violated = "Quota 'TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in zone europe-west4-a"
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"description": violated}]}
    body = {"error": {"code": 429, "message": "Exhausted.", "status": "RESOURCE_EXHAUSTED", "details": [detail]}}
    error = error_translation.http_error(429, json.dumps(body), host=HOST)
    assert type(error) is QuotaError
    assert error.message == violated


def test_a_delay_that_the_api_asks_for_is_kept() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    body = json.dumps({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE", "details": [detail]}})
    typed = error_translation.http_error(503, body, host=HOST, retry_after="9")
    header = error_translation.http_error(503, "<html>", host=HOST, retry_after="9")
    date = error_translation.http_error(503, "<html>", host=HOST, retry_after="Wed, 21 Oct 2026 07:28:00 GMT")
    delays = [error.retry_after_s for error in (typed, header, date) if isinstance(error, CloudUnavailable)]
    assert delays == [3.5, 9.0, None]


NOT_THE_API = [
    (404, "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>", UnexpectedReply),
    (404, '{"error":{"code":404,"message":"no status"}}', UnexpectedReply),
    (404, '{"error":{"code":404,"message":"Not Found","status":"NOT_FO', UnexpectedReply),
    *((404, '{"error":"invalid_grant"}', UnexpectedReply), (404, "", UnexpectedReply), (404, "[]", UnexpectedReply)),
    (403, '{"error":{"code":403,"message":"gone?","status":"NOT_FOUND"}}', UnexpectedReply),
    *((403, "<html><title>Access denied by proxy</title></html>", UnexpectedReply), (302, "", UnexpectedReply)),
    *((418, "teapot", UnexpectedReply), (401, "<html>", AuthError)),
    (429, "<html><title>Too many</title></html>", CloudUnavailable),
    (502, "<html><title>502 Bad Gateway</title></html>", CloudUnavailable),
    (500, '{"error":{"code":500,"mess', CloudUnavailable),
]


@pytest.mark.parametrize(("http", "body", "kind"), NOT_THE_API)
def test_a_reply_of_another_server_never_means_absence(http: int, body: str, kind: type[CloudError]) -> None:
    error = error_translation.http_error(http, body, host=HOST)
    assert type(error) is kind
    assert HOST in error.message
    assert str(http) in error.message


@pytest.mark.parametrize(("http", "reason", "kind"), [
    (404, "notFound", error_translation.NotFound), (404, "invalid", UnexpectedReply), (410, "notFound", UnexpectedReply),
])  # fmt: skip
def test_an_api_without_statuses_says_by_the_reason_that_a_resource_is_absent(
    http: int, reason: str, kind: type[CloudError]
) -> None:
    said = {
        "domain": "global",
        "reason": reason,
        "message": "The resource 'projects/p/zones/z/instances/n' was not found",
    }
    body = json.dumps({"error": {"code": http, "message": said["message"], "errors": [said]}})
    assert type(error_translation.http_error(http, body, host="compute.googleapis.com")) is kind


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    error = error_translation.operation_error({"code": 13, "message": "bad\x1b]0;title\x07\nsecond line"})
    assert error.message == "bad?]0;title? second line"


def test_an_error_without_a_message_gets_one() -> None:
    assert (
        error_translation.operation_error({"code": 14}).message
        == "the API answered an error UNAVAILABLE without a message"
    )
    assert error_translation.operation_error({}).message.startswith("the API answered an error")
    assert error_translation.operation_error({"code": "8", "message": 7, "details": "x"}).message


def test_a_login_that_fails_for_want_of_a_network_may_work_later() -> None:
    """What else a login says: literal replies of `oauth2`, and the tests of credentials below."""
    from google.auth import exceptions

    offline = error_translation.auth_error(exceptions.TransportError("Failed to resolve 'oauth2.googleapis.com'"))
    busy = error_translation.auth_error(exceptions.RefreshError("internal_failure", retryable=True))
    assert (type(offline), type(busy)) == (CloudUnavailable, CloudUnavailable)


LINE = "ssh-ed25519 AAAAC3Nza tpujob"
KEY_ID = "ab" * 32
PROFILE = {
    "name": "1",
    "posixAccounts": [{"username": "other"}, {"username": "ada_example_com", "primary": True}],
    "sshPublicKeys": {KEY_ID: {"key": LINE, "fingerprint": KEY_ID, "expirationTimeUsec": "1700000000000000"}},
}
Sent = list[tuple[str, str, dict[str, Any] | None, str]]
Answering = Callable[..., Sent]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """The API answers with these (status, JSON), one after the other, the last one for ever; what was sent is returned."""

    def answer(*replies: tuple[int, Any]) -> Sent:
        sent: Sent = []

        def fetched(method: str, url: str, body: bytes | None, headers: Any, **_: Any) -> Reply:
            sent.append((method, url, json.loads(body) if body else None, headers["Authorization"]))
            status, value = replies[min(len(sent), len(replies)) - 1]
            return Reply(status, {}, json.dumps(value).encode())

        monkeypatch.setattr(fetch, "fetch", fetched)
        return sent

    return answer


def profile_of(account: str = "ada@example.com", token: FixedToken | None = None) -> OsLogin:
    return OsLogin(account, Apis(token or FixedToken("token0")))


def import_one(login: OsLogin) -> Login:
    return login.import_key(LINE, project="my-project", region="us-central1", expires_at=1.7e9)


def test_an_import_names_project_region_and_expiry_and_takes_id_and_user_from_the_reply(answering: Answering) -> None:
    sent = answering((200, {"loginProfile": PROFILE}))
    assert import_one(profile_of()) == Login("ada_example_com", KEY_ID)
    url = (
        "https://oslogin.googleapis.com/v1/users/ada@example.com:importSshPublicKey"
        "?projectId=my-project&regions=us-central1"
    )
    assert sent == [("POST", url, {"key": LINE, "expirationTimeUsec": "1700000000000000"}, "Bearer token0")]


@pytest.mark.parametrize("profile", [
    *({}, {**PROFILE, "sshPublicKeys": {}}),
    {**PROFILE, "sshPublicKeys": {KEY_ID: {"key": "ssh-ed25519 OTHER tpujob"}}},
    *({**PROFILE, "sshPublicKeys": {KEY_ID: {}}}, {**PROFILE, "sshPublicKeys": []}),
    *({**PROFILE, "posixAccounts": []}, {**PROFILE, "posixAccounts": [{"username": "-oProxyCommand=x"}]}),
    *({**PROFILE, "posixAccounts": [{"username": 5}]}, {**PROFILE, "posixAccounts": "many"}),
])  # fmt: skip
def test_a_profile_without_the_key_or_without_a_login_name_is_refused(answering: Answering, profile: Any) -> None:
    answering((200, {"loginProfile": profile}))
    with pytest.raises(UnexpectedReply):
        import_one(profile_of())


def test_a_delete_that_says_yes_and_removes_nothing_is_noticed(answering: Answering) -> None:
    answering((200, {}), (200, PROFILE))
    with pytest.raises(UnexpectedReply, match="still has it"):
        profile_of().remove_key(KEY_ID, project="my-project")


def test_a_key_that_is_not_there_is_removed(answering: Answering) -> None:
    sent = answering((404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "no such key"}}))
    profile_of().remove_key(KEY_ID, project="my-project")
    assert [method for method, *_ in sent] == ["DELETE"]


def test_the_id_of_a_key_cannot_name_another_resource(answering: Answering) -> None:
    sent = answering((200, {}))
    with pytest.raises(UnexpectedReply):
        profile_of().remove_key("../../x", project="my-project")
    assert sent == []


def test_an_address_cannot_change_the_path(answering: Answering) -> None:
    sent = answering((200, PROFILE))
    profile_of("a/b?c:d@example.com").keys("my-project")
    assert sent[0][1].startswith("https://oslogin.googleapis.com/v1/users/a%2Fb%3Fc%3Ad@example.com/loginProfile?")


def test_an_expired_token_is_renewed_once(answering: Answering) -> None:
    token = FixedToken("token0", "token1")
    sent = answering((401, {"error": {"code": 401, "status": "UNAUTHENTICATED", "message": "expired"}}), (200, PROFILE))
    profile_of(token=token).keys("my-project")
    assert [authorization for *_, authorization in sent] == ["Bearer token0", "Bearer token1"]


def test_an_api_that_is_off_is_named_with_the_command_that_enables_it(answering: Answering) -> None:
    metadata = {"service": "oslogin.googleapis.com", "consumer": "projects/my-project"}
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED", "metadata": metadata}
    message = "Cloud OS Login API has not been used in project my-project before or it is disabled."
    body = {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": message, "details": [info]}}
    answering((403, body))
    with pytest.raises(AuthError) as refused:
        import_one(profile_of())
    assert "gcloud services enable oslogin.googleapis.com --project=my-project" in str(refused.value.hint)


def test_the_account_is_what_googles_userinfo_says(answering: Answering) -> None:
    sent = answering((200, {"sub": "1", "email": "ada@example.com"}))
    assert account_of(Apis(FixedToken("token0"))) == "ada@example.com"
    assert sent[0][1] == "https://openidconnect.googleapis.com/v1/userinfo"


@pytest.mark.parametrize(
    "reply", [(200, {}), (200, {"email": 5}), (200, {"email": "a@b@c"}), (200, {"email": "x"}), (403, {"error": {}})]
)
def test_an_account_that_google_does_not_tell_says_how_to_log_in(answering: Answering, reply: tuple[int, Any]) -> None:
    answering(reply)
    with pytest.raises(AuthError, match="does not tell") as error:
        account_of(Apis(FixedToken("token0")))
    assert "gcloud auth application-default login" in str(error.value.hint)


@pytest.mark.parametrize(("fields", "account"), [
    ({"service_account_email": "bot@p.iam.gserviceaccount.com"}, "bot@p.iam.gserviceaccount.com"),
    *(({"account": "ada@example.com"}, "ada@example.com"), ({"account": ""}, None)),
    *(({"service_account_email": "default"}, None), ({}, None)),
])  # fmt: skip
def test_a_login_that_names_its_account_needs_no_question(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], account: str | None
) -> None:
    import google.auth

    asked: list[list[str]] = []

    class Known:
        token, valid = "t", True

        def refresh(self, request: Any) -> None:
            vars(self).update(fields)

    def default(scopes: list[str]) -> tuple[Known, None]:
        asked.append(scopes)
        return Known(), None

    monkeypatch.setattr(google.auth, "default", default)
    assert credentials.GoogleToken(credentials.SCOPE, credentials.EMAIL_SCOPE).account == account
    assert asked == [[credentials.SCOPE, credentials.EMAIL_SCOPE]]


PLACED = {"location": "US-CENTRAL1", "locationType": "region"}
TOKEN = EmulatorToken("the-token")


@pytest.fixture
def google(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> StubApi:
    monkeypatch.setattr(objects, "STORAGE", stub.url)
    return stub


def test_the_request_for_the_location_carries_the_token(google: StubApi) -> None:
    google.answers(StubReply(200, PLACED))
    assert objects.bucket("my.bucket", bearer=TOKEN) == Bucket("my.bucket", "us-central1")
    (asked,) = google.asked
    assert asked.path == "/storage/v1/b/my.bucket?fields=location%2ClocationType%2CcustomPlacementConfig"
    assert asked.headers["authorization"] == "Bearer the-token"


def test_an_emulator_of_storage_gets_no_token_and_may_have_objects_only(stub: StubApi) -> None:
    stub.answers(StubReply(200, PLACED), StubReply(501, "Unsupported method"), StubReply(200, {}))
    host = stub.url.partition("://")[2]  # Google's own clients take it with and without a scheme
    assert objects.bucket("b", emulator=host) == Bucket("b", "us-central1")
    assert objects.bucket("b", emulator=stub.url) is None
    assert objects.bucket("b", emulator=stub.url) is None
    assert not any("authorization" in asked.headers for asked in stub.asked)


def test_a_bucket_that_does_not_exist_is_a_mistake_of_the_job(google: StubApi) -> None:
    google.answers(StubReply(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}}))
    with pytest.raises(BadRequest, match="there is no bucket gs://b") as refused:
        objects.bucket("b", bearer=TOKEN)
    assert refused.value.hint == "create it, or correct its name in the job"


def test_a_refusal_and_a_reply_of_another_server_differ(google: StubApi) -> None:
    google.answers(StubReply(403, {"error": {"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}}))
    with pytest.raises(AuthError):
        objects.bucket("b", bearer=TOKEN)
    google.answers(StubReply(200, "<html>"))
    with pytest.raises(UnexpectedReply):
        objects.bucket("b", bearer=TOKEN)
    with pytest.raises(CloudUnavailable):
        objects.bucket("b", emulator="127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


def test_a_missing_login_says_how_to_log_in() -> None:
    with pytest.raises(AuthError, match="no usable Google credentials") as caught:
        connect(GOOGLE)
    assert "gcloud auth application-default login" in (caught.value.hint or "")
    assert caught.value.exit_code == 77


@pytest.mark.parametrize("content", [
    *("", "{", "[]", "not json", '{"type": "robot"}', '{"type": "service_account"}'),
    '{"type": "authorized_user", "refresh_token": "x"}',
])  # fmt: skip
def test_a_credentials_file_of_the_wrong_kind_is_an_auth_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path = tmp_path / "key.json"
    path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(AuthError) as caught:
        credentials.google_credentials()
    assert caught.value.hint


def test_an_expired_session_is_noticed_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.exceptions import RefreshError

    class Expired:
        def refresh(self, request: Any) -> None:
            raise RefreshError("invalid_grant: reauth related error (invalid_rapt)", {"error": "invalid_grant"})

    monkeypatch.setattr(google.auth, "default", lambda scopes: (Expired(), None))
    with pytest.raises(AuthError, match="sign in again"):
        credentials.google_credentials()


EMULATED = Target("emulated", "emulated")
GOOGLE = Target("google", "acme-project")
LOOPBACK = "http://127.0.0.1:8080"


@pytest.mark.parametrize(("target", "endpoint", "token"), [
    (GOOGLE, "http://127.0.0.1:8080", None), (GOOGLE, "https://tpu.googleapis.com.evil.com", None),
    (GOOGLE, "https://evil.com/tpu.googleapis.com", None), (GOOGLE, "https://tpu.googleapis.com@evil.com", None),
    (GOOGLE, "http://tpu.googleapis.com", None), (GOOGLE, "https://evilgoogleapis.com", None),
    (GOOGLE, None, "emulator-token"), (EMULATED, "https://tpu.googleapis.com", "emulator-token"),
    (EMULATED, "http://10.0.0.1:8080", "emulator-token"),
    (EMULATED, "http://127.0.0.1@evil.com:80", "emulator-token"), (EMULATED, LOOPBACK, None),
    (EMULATED, None, "emulator-token"), (EMULATED, None, None),
])  # fmt: skip
def test_no_secret_is_sent_to_the_wrong_endpoint(target: Target, endpoint: str | None, token: str | None) -> None:
    with pytest.raises(ConfigError):
        connect(target, endpoint, token, now=False)


def test_each_target_is_connected_to_its_own_cloud() -> None:
    google = connect(GOOGLE, now=False)
    assert (google.endpoint, google.emulated) == ("https://tpu.googleapis.com", False)
    assert google.capabilities.settles_within_s == 2700
    under_way_s = inspect.signature(TpuApi).parameters["create_timeout_s"].default
    assert google.capabilities.visible_within_s >= 300 + under_way_s, (
        "assumption A1 counts from the arrival of the create, the proof from its departure"
    )
    regional = connect(GOOGLE, "https://us-central1-tpu.googleapis.com", now=False)
    assert regional.endpoint == "https://us-central1-tpu.googleapis.com"
    emulated = connect(EMULATED, LOOPBACK, "emulator-token")
    assert (emulated.endpoint, emulated.emulated) == (LOOPBACK, True)
    assert emulated.capabilities.settles_within_s == 60


def test_an_emulator_of_the_environment_has_precedence(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret-of-the-other\n")
    named = Target("emulated", "emulated", endpoint="http://127.0.0.1:9999", token_file=str(token_file))
    assert connect(named, LOOPBACK, "x").endpoint == "http://127.0.0.1:9999"


@pytest.mark.parametrize("content", [None, "", "two words", "nö", "a\nb"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        credentials.read_token(str(path))


def test_an_endpoint_without_a_token_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        connect(Target("emulated", "emulated", endpoint=LOOPBACK))
