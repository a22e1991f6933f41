"""The relay behind a company's proxy, which may ask for a login and may intercept TLS: who sees the token, and who does not."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.places.vms.reach import Reach
from orchestrator.remote.iap.dialer import GOOGLE, Relay, dial
from orchestrator.remote.iap.relay_session import RelayTarget
from tests.contract.remote.scripted_relay import Proxy, certificate, echo, scripted
from tests.contract.remote.test_iap import shown
from tests.unit.places.stub_api import FixedToken
from tests.waiting import HANG_S

HOST, TOKEN, LOGIN, SECRET = "tunnel.cloudproxy.app", "ya29.the-token", "bWU6czNjcjN0IQ==", "s3cr3t%21"
TARGET = RelayTarget("p", "us-central1-a", "vm-0")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """A proxy that leads to a relay with a certificate for Google's host, signed by `ca.pem`."""
    context, _ = certificate(tmp_path, HOST)
    with scripted(echo, context) as relay, contextlib.closing(Proxy(relay.port)) as proxy:
        proxy.relay = relay  # type: ignore[attr-defined]
        yield proxy


def of_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Relay:
    """Return the relay that a command dials on Google's cloud, with a token of the test's."""
    monkeypatch.setattr("orchestrator.places.google.credentials.GoogleToken", lambda *_: FixedToken(TOKEN))
    return Reach(lambda: None, lambda _: tmp_path).relay()


@pytest.mark.parametrize("authorities", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_tunnel_goes_through_the_proxy_of_the_environment_which_sees_no_token(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, authorities: str
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@{proxy.address}")
    monkeypatch.setenv(authorities, str(tmp_path / "ca.pem"))
    with dial(of_environment(monkeypatch, tmp_path), TARGET) as tunnel:
        tunnel.settimeout(HANG_S)
        tunnel.sendall(b"through the proxy")
        assert tunnel.recv(64) == b"through the proxy"
    (asked,) = proxy.heard
    assert asked.startswith(f"CONNECT {HOST}:443 HTTP/1.".encode())
    assert f"Proxy-Authorization: Basic {LOGIN}".encode() in asked and b"Bearer" not in asked
    ((path, headers),) = proxy.relay.requests  # type: ignore[attr-defined]
    assert headers["Authorization"] == f"Bearer {TOKEN}" and path.startswith("/v4/connect?project=p&")
    assert "Proxy-Authorization" not in headers
    assert not any(secret in caplog.text for secret in (TOKEN, LOGIN, SECRET, "s3cr3t"))


@pytest.mark.parametrize("answer", ["407 Proxy Authentication Required", "403 Forbidden", "502 Bad Gateway"])
def test_a_proxy_that_refuses_is_named_without_its_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with contextlib.closing(Proxy(0, f"HTTP/1.1 {answer}\r\n\r\n".encode())) as refusing:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@{refusing.address}")
        with pytest.raises(Unreachable) as error:
            dial(of_environment(monkeypatch, tmp_path), TARGET)
    assert f"the proxy {refusing.address} answers {answer[:3]} (HTTPS_PROXY)" in error.value.message
    assert not any(secret in shown(error.value, caplog) for secret in (TOKEN, LOGIN, SECRET, "s3cr3t"))


def test_a_certificate_that_is_not_trusted_ends_before_the_token_leaves(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
    with pytest.raises(Unreachable, match=r"certificate.*REQUESTS_CA_BUNDLE") as error:
        dial(of_environment(monkeypatch, tmp_path), TARGET)
    assert proxy.relay.requests == [] and TOKEN not in shown(error.value, caplog)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url", ["socks5://me:s3cr3t@127.0.0.1:1", "https://me:s3cr3t@127.0.0.1:1", "http://me:s3cr3t@"]
)
def test_a_proxy_of_another_kind_is_refused_without_its_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(Exception, match="of an unsupported kind") as error:
        of_environment(monkeypatch, tmp_path)
    assert "s3cr3t" not in shown(error.value, caplog)


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize("value", [HOST, ".cloudproxy.app", "*"])
def test_no_proxy_leaves_the_relay_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert of_environment(monkeypatch, tmp_path).proxy == "http://proxy.example:3128"
    monkeypatch.setenv(name, value)
    assert of_environment(monkeypatch, tmp_path).proxy is None


def test_without_variables_there_is_no_proxy_and_googles_relay_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = of_environment(monkeypatch, tmp_path)
    assert (found.url, found.proxy) == (GOOGLE, None)


def test_a_proxys_login_is_not_part_of_what_a_relay_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@proxy.example:3128")
    assert "s3cr3t" not in repr(of_environment(monkeypatch, tmp_path))
