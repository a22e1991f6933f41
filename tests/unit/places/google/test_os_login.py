"""OS Login: replies that lie are noticed, and real tokens go to Google only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import AuthError, UnexpectedReply
from orchestrator.places.google import credentials, json_call
from orchestrator.places.google.fetch import Reply
from orchestrator.places.google.os_login import Login, OsLogin, account_of
from tests.unit.places.stub_api import FixedToken

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

        def fetch(method: str, url: str, body: bytes | None, headers: Any, **_: Any) -> Reply:
            sent.append((method, url, json.loads(body) if body else None, headers["Authorization"]))
            status, value = replies[min(len(sent), len(replies)) - 1]
            return Reply(status, {}, json.dumps(value).encode())

        monkeypatch.setattr(json_call, "fetch", fetch)
        return sent

    return answer


def profile_of(account: str = "ada@example.com", token: FixedToken | None = None) -> OsLogin:
    return OsLogin(account, token or FixedToken("token0"))


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
    assert account_of(FixedToken("token0")) == "ada@example.com"
    assert sent[0][1] == "https://openidconnect.googleapis.com/v1/userinfo"


@pytest.mark.parametrize(
    "reply", [(200, {}), (200, {"email": 5}), (200, {"email": "a@b@c"}), (200, {"email": "x"}), (403, {"error": {}})]
)
def test_an_account_that_google_does_not_tell_says_how_to_log_in(answering: Answering, reply: tuple[int, Any]) -> None:
    answering(reply)
    with pytest.raises(AuthError, match="does not tell") as error:
        account_of(FixedToken("token0"))
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
