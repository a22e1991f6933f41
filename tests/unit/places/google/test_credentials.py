"""Google's credentials: a login that is missing or broken is named, and real ones are sent only to Google."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AuthError, ConfigError
from orchestrator.places.google import credentials
from orchestrator.places.tpu.api import connect
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.settings import Target


@pytest.fixture(autouse=True)
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


def test_a_missing_login_says_how_to_log_in() -> None:
    with pytest.raises(AuthError, match="no usable Google credentials") as caught:
        credentials.google_credentials()
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


@pytest.fixture(autouse=True)
def without_real_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous credentials in place of the machine's login."""
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr(connect, "google_credentials", AnonymousCredentials)


@pytest.mark.parametrize("connects", [connect.connect, connect.connect_light])
@pytest.mark.parametrize(("target", "endpoint", "token"), [
    (GOOGLE, "http://127.0.0.1:8080", None), (GOOGLE, "https://tpu.googleapis.com.evil.com", None),
    (GOOGLE, "https://evil.com/tpu.googleapis.com", None), (GOOGLE, "https://tpu.googleapis.com@evil.com", None),
    (GOOGLE, "http://tpu.googleapis.com", None), (GOOGLE, "https://evilgoogleapis.com", None),
    (GOOGLE, None, "emulator-token"), (EMULATED, "https://tpu.googleapis.com", "emulator-token"),
    (EMULATED, "http://10.0.0.1:8080", "emulator-token"),
    (EMULATED, "http://127.0.0.1@evil.com:80", "emulator-token"), (EMULATED, LOOPBACK, None),
    (EMULATED, None, "emulator-token"), (EMULATED, None, None),
])  # fmt: skip
def test_no_secret_is_sent_to_the_wrong_endpoint(
    connects: Callable[..., ApiCalls], target: Target, endpoint: str | None, token: str | None
) -> None:
    with pytest.raises(ConfigError):
        connects(target, endpoint, token)


def test_each_target_is_connected_to_its_own_cloud() -> None:
    google = connect.connect(GOOGLE)
    assert (google.endpoint, google.emulated) == ("https://tpu.googleapis.com", False)
    assert google.capabilities.settles_within_s == 2700
    under_way_s = inspect.signature(type(google)).parameters["create_timeout_s"].default
    assert google.capabilities.visible_within_s >= 300 + under_way_s, (
        "assumption A1 counts from the arrival of the create, the proof from its departure"
    )
    regional = connect.connect(GOOGLE, "https://us-central1-tpu.googleapis.com")
    assert regional.endpoint == "https://us-central1-tpu.googleapis.com"
    emulated = connect.connect(EMULATED, LOOPBACK, "emulator-token")
    assert (emulated.endpoint, emulated.emulated) == (LOOPBACK, True)
    assert emulated.capabilities.settles_within_s == 60


def test_the_environment_cannot_move_googles_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "evil.com")
    monkeypatch.setenv("GOOGLE_API_USE_MTLS_ENDPOINT", "always")
    assert connect.connect(GOOGLE)._client.transport._host == "https://tpu.googleapis.com"


def test_an_emulator_of_the_environment_has_precedence(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret-of-the-other\n")
    named = Target("emulated", "emulated", endpoint="http://127.0.0.1:9999", token_file=str(token_file))
    assert connect.connect(named, LOOPBACK, "x").endpoint == "http://127.0.0.1:9999"


@pytest.mark.parametrize("content", [None, "", "two words", "nö", "a\nb"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        credentials.read_token(str(path))


def test_an_endpoint_without_a_token_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        connect.connect(Target("emulated", "emulated", endpoint=LOOPBACK))
