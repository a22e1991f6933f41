"""Real credentials go to Google alone, the emulator's token to loopback alone."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clouds.google import credentials
from orchestrator.errors import AuthError, ConfigError
from orchestrator.settings import Target

EMULATED = Target("emulated", "emulated")
GOOGLE = Target("google", "acme-project")
LOOPBACK = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def nobody_asks_for_real_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that gets as far as Google's credentials uses these."""
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr(credentials, "google_credentials", AnonymousCredentials)


@pytest.mark.parametrize(
    ("target", "endpoint", "token"),
    [
        (GOOGLE, "http://127.0.0.1:8080", None),
        (GOOGLE, "https://tpu.googleapis.com.evil.com", None),
        (GOOGLE, "https://evil.com/tpu.googleapis.com", None),
        (GOOGLE, "https://tpu.googleapis.com@evil.com", None),
        (GOOGLE, "http://tpu.googleapis.com", None),
        (GOOGLE, "https://evilgoogleapis.com", None),
        (GOOGLE, None, "emulator-token"),
        (EMULATED, "https://tpu.googleapis.com", "emulator-token"),
        (EMULATED, "http://10.0.0.1:8080", "emulator-token"),
        (EMULATED, "http://127.0.0.1@evil.com:80", "emulator-token"),
        (EMULATED, LOOPBACK, None),
        (EMULATED, None, "emulator-token"),
        (EMULATED, None, None),
    ],
)
def test_no_secret_goes_to_the_other_side(target: Target, endpoint: str | None, token: str | None) -> None:
    with pytest.raises(ConfigError):
        credentials.connect(target, endpoint, token)


def test_each_target_is_connected_to_its_own_cloud() -> None:
    google = credentials.connect(GOOGLE)
    assert (google.endpoint, google.emulated) == ("https://tpu.googleapis.com", False)
    assert google.capabilities.settles_within_s == 2700
    under_way_s = inspect.signature(type(google)).parameters["create_timeout_s"].default
    assert google.capabilities.visible_within_s >= 300 + under_way_s, (
        "A1 counts from its arrival, the proof from its leaving"
    )
    regional = credentials.connect(GOOGLE, "https://us-central1-tpu.googleapis.com")
    assert regional.endpoint == "https://us-central1-tpu.googleapis.com"
    emulated = credentials.connect(EMULATED, LOOPBACK, "emulator-token")
    assert (emulated.endpoint, emulated.emulated) == (LOOPBACK, True)
    assert emulated.capabilities.settles_within_s == 60


def test_the_environment_cannot_move_googles_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "evil.com")
    monkeypatch.setenv("GOOGLE_API_USE_MTLS_ENDPOINT", "always")
    assert credentials.connect(GOOGLE)._client.transport._host == "https://tpu.googleapis.com"


def test_an_emulator_of_the_environment_goes_before_the_one_given(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret-of-the-other\n")
    named = Target("emulated", "emulated", endpoint="http://127.0.0.1:9999", token_file=str(token_file))
    assert credentials.connect(named, LOOPBACK, "x").endpoint == "http://127.0.0.1:9999"


@pytest.mark.parametrize("content", [None, "", "two words", "nö", "a\nb"])
def test_a_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        credentials.read_token(str(path))


def test_an_endpoint_without_a_token_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="TPUJOB_TOKEN_FILE"):
        credentials.connect(Target("emulated", "emulated", endpoint=LOOPBACK))


class TestGoogleCredentials:
    @pytest.fixture(autouse=True)
    def no_login(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    def test_a_missing_login_says_how_to_log_in(self) -> None:
        with pytest.raises(AuthError, match="no usable Google credentials") as caught:
            credentials.google_credentials()
        assert "gcloud auth application-default login" in (caught.value.hint or "")
        assert caught.value.exit_code == 77

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"type": "robot"}', '{"type": "service_account"}'])
    def test_a_credentials_file_of_the_wrong_kind_is_an_auth_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
    ) -> None:
        path = tmp_path / "key.json"
        path.write_text(content)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        with pytest.raises(AuthError) as caught:
            credentials.google_credentials()
        assert caught.value.hint

    def test_an_expired_session_is_noticed_before_anything_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import google.auth
        from google.auth.exceptions import RefreshError

        class Expired:
            def refresh(self, request: Any) -> None:
                raise RefreshError("invalid_grant: reauth related error (invalid_rapt)", {"error": "invalid_grant"})

        monkeypatch.setattr(google.auth, "default", lambda scopes: (Expired(), None))
        with pytest.raises(AuthError, match="sign in again"):
            credentials.google_credentials()
