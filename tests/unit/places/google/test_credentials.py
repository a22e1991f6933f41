"""Google's credentials: what is raised for a missing, malformed or expired login."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AuthError
from orchestrator.places.google import credentials


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
