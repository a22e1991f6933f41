"""Real credentials are sent only to Google, the emulator's token only to loopback."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.places.google import credentials
from orchestrator.places.tpu.api import connect
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.settings import Target

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
