"""Which cluster a kubeconfig leads to: files merged as kubectl does, and one clear line for what cannot be used."""

import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from lightkube.config.kubeconfig import KubeConfig

from orchestrator.errors import CloudUnavailable, ConfigError
from orchestrator.places.gke.api import clusters, kubeconfig
from orchestrator.places.gke.api.kube_api import KubeApi, read_log

CLUSTER = "projects/p/locations/us-central1/clusters/one"


def written(path: Path, name: str, server: str = "https://127.0.0.1:6443", **changes: Any) -> Path:
    found = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump({**found, **changes}))
    return path


def test_the_current_context_is_that_of_the_first_file_and_others_are_found_in_the_rest(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", "one"), written(tmp_path / "b", "two", "https://127.0.0.2:6443")
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"}
    assert clusters.identity(None, None, environ) == "one@https://127.0.0.1:6443"
    assert clusters.identity("two", None, environ) == "two@https://127.0.0.2:6443"


def test_without_the_variable_it_is_the_file_below_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube" / "config", "home")
    assert clusters.identity(None, None, {"HOME": str(tmp_path)}) == "home@https://127.0.0.1:6443"


def test_one_thread_at_a_time_has_the_file_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lanes of a sweep begin at once, and msgspec crashes where two threads convert to a class for the first time."""
    inside, most, from_dict = [0], [0], KubeConfig.from_dict
    environ = {"KUBECONFIG": str(written(tmp_path / "a", "one"))}

    def watched(*args: Any, **named: Any) -> KubeConfig:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)  # for the others to come in, if they can
        found = from_dict(*args, **named)
        inside[0] -= 1
        return found

    monkeypatch.setattr(KubeConfig, "from_dict", watched)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: clusters.identity(None, None, environ), range(4)))
    assert found == ["one@https://127.0.0.1:6443"] * 4 and most == [1]


def test_a_cluster_that_is_named_needs_no_kubeconfig(tmp_path: Path) -> None:
    assert clusters.identity(None, CLUSTER, {"HOME": str(tmp_path)}) == CLUSTER


@pytest.mark.parametrize(("changes", "words"), [
    ({"current-context": None}, "no current context"),
    ({"clusters": []}, "the cluster of context 'one' is missing"),
    ({"users": []}, "the user of context 'one' is missing"),
    ({"contexts": [{"name": "one", "context": {"cluster": "one"}}]}, "names no user"),
    ({"contexts": "x"}, "cannot be used as a kubeconfig"), ({"contexts": []}, "no context 'one'"),
    ({"contexts": None}, "no context 'one'"), ({"clusters": None}, "the cluster of context 'one' is missing"),
    ({"users": None}, "the user of context 'one' is missing"),
])  # fmt: skip
def test_what_a_kubeconfig_lacks_is_said(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = written(tmp_path / "config", "one", **changes)
    with pytest.raises(ConfigError, match=words):
        kubeconfig.load(None, {"KUBECONFIG": str(path)})


@pytest.mark.parametrize("text", ["- 1", "[]", "no", "{", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match="config cannot be used as a kubeconfig"):
        kubeconfig.load(None, {"KUBECONFIG": str(tmp_path / "config")})


def test_files_that_have_only_a_part_are_merged(tmp_path: Path) -> None:
    for name, text in {
        "empty": "",
        "comment": "# nothing yet\n",
        "nulls": "{clusters: null, contexts: null, users: null, current-context: ''}",
        "current": "current-context: two",
    }.items():
        (tmp_path / name).write_text(text)
    written(tmp_path / "both", "one")
    second = written(tmp_path / "rest", "two", "https://127.0.0.2:6443")
    environ = {
        "KUBECONFIG": ":".join(str(tmp_path / each) for each in ("empty", "comment", "nulls", "current", "both"))
    }
    environ["KUBECONFIG"] += f":{second}"
    assert clusters.identity(None, None, environ) == "two@https://127.0.0.2:6443"
    assert clusters.identity("one", None, environ) == "one@https://127.0.0.1:6443"


@pytest.mark.parametrize("text", ["", "{clusters: null, contexts: null, users: null}"])
def test_an_empty_file_has_no_current_context(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match="no current context"):
        kubeconfig.load(None, {"KUBECONFIG": str(tmp_path / "config")})


@pytest.mark.parametrize("key", ["as", "as-uid", "as-groups", "as-user-extra"])
def test_a_user_who_acts_as_another_is_refused_in_words(tmp_path: Path, key: str) -> None:
    value = {"as-groups": ["admins"], "as-user-extra": {"reason": ["x"]}}.get(key, "jane")
    path = written(tmp_path / "config", "one", users=[{"name": "one", "user": {"token": "t", key: value}}])
    with pytest.raises(ConfigError, match=rf"user 'one' of your kubeconfig acts as another \({key}\)"):
        clusters.identity(None, None, {"KUBECONFIG": str(path)})


def test_a_user_who_acts_as_another_is_in_nobodys_way_in_another_context(tmp_path: Path) -> None:
    users = [{"name": "one", "user": {"token": "t"}}, {"name": "other", "user": {"token": "t", "as": "jane"}}]
    path = written(tmp_path / "config", "one", users=users)
    assert clusters.identity(None, None, {"KUBECONFIG": str(path)}) == "one@https://127.0.0.1:6443"


@pytest.mark.parametrize(
    "server", ["127.0.0.1:6443", "api.example", "//api.example", "ftp://api.example", "https://", ""]
)
def test_a_server_that_is_no_web_address_is_refused_before_it_is_asked(tmp_path: Path, server: str) -> None:
    path = written(tmp_path / "config", "one", server)
    with pytest.raises(ConfigError, match=r"the server of context 'one' of your kubeconfig is .*, which is no address"):
        clusters.identity(None, None, {"KUBECONFIG": str(path)})


def test_a_cluster_without_a_server_is_not_taken_for_one_on_this_machine(tmp_path: Path) -> None:
    path = written(tmp_path / "config", "one", clusters=[{"name": "one", "cluster": {}}])
    with pytest.raises(ConfigError, match="the server of context 'one' of your kubeconfig"):
        clusters.identity(None, None, {"KUBECONFIG": str(path)})


def test_a_server_whose_address_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": str(written(tmp_path / "config", "one", "https://127.0.0.1:port"))}
    with pytest.raises(ConfigError, match="context 'one' of your kubeconfig cannot be used"):
        clusters.open_api(clusters.identity(None, None, environ), environ)


def test_no_kubeconfig_at_all_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no kubeconfig") as raised:
        kubeconfig.load(None, {"HOME": str(tmp_path)})
    assert raised.value.hint is not None and "get-credentials" in raised.value.hint


def test_a_context_that_leads_elsewhere_now_is_another_cluster(tmp_path: Path) -> None:
    path = written(tmp_path / "config", "one")
    found = clusters.identity(None, None, {"KUBECONFIG": str(path)})
    written(path, "one", "https://127.0.0.9:6443")
    with pytest.raises(ConfigError, match=r"leads to https://127\.0\.0\.9:6443, and the job was started at"):
        clusters.open_api(found, {"KUBECONFIG": str(path)})


def test_names_for_display_are_short() -> None:
    assert clusters.short_name(CLUSTER) == "one"
    assert clusters.short_name("kind-kind@https://127.0.0.1:6443") == "kind-kind"


def test_the_location_of_a_cluster_is_that_of_its_name_or_of_the_context_that_gcloud_wrote() -> None:
    assert clusters.location(CLUSTER) == "us-central1"
    assert clusters.location("gke_my-project_us-east5-a_one@https://127.0.0.1:6443") == "us-east5-a"
    assert clusters.location("kind-kind@https://127.0.0.1:6443") is None


class Answer(BaseHTTPRequestHandler):
    """Answers as an API server does."""

    def __init__(self, asked: list[bytes], *request: Any) -> None:
        self.asked = asked
        super().__init__(*request)

    def do_GET(self) -> None:
        self.asked.append(self.requestline.encode())
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def peer() -> Iterator[tuple[str, list[bytes]]]:
    """A server, or a proxy: its URL, and the first line of what it was asked, to which it answers as an API server does."""
    asked: list[bytes] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, asked)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_the_proxy_of_the_kubeconfig_is_used(tmp_path: Path, peer: tuple[str, list[bytes]]) -> None:
    url, asked = peer
    cluster = {"server": "http://api.example", "proxy-url": url}
    path = written(tmp_path / "config", "one", clusters=[{"name": "one", "cluster": cluster}])
    environ = {"KUBECONFIG": str(path)}
    clusters.open_api(clusters.identity(None, None, environ), environ).get("/api")
    assert asked == [b"GET http://api.example/api HTTP/1.1"]


def test_no_variable_names_a_proxy_for_a_cluster_on_this_machine(
    tmp_path: Path, peer: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = peer
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    environ = {"KUBECONFIG": str(written(tmp_path / "config", "one", url))}
    clusters.open_api(clusters.identity(None, None, environ), environ).get("/api")
    assert asked == [b"GET /api HTTP/1.1"]


def test_a_certificate_is_compared_with_the_name_that_the_kubeconfig_gives(tmp_path: Path) -> None:
    def asked(**changes: str) -> KubeApi:
        cluster = {"server": f"https://127.0.0.1:{server.server_port}", "certificate-authority": "ca.pem", **changes}
        path = written(tmp_path / "config", "one", clusters=[{"name": "one", "cluster": cluster}])
        environ = {"KUBECONFIG": str(path)}
        return clusters.open_api(clusters.identity(None, None, environ), environ)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, [])) as server:
        context = certified(tmp_path / "ca.pem", "api.internal")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            named = asked(**{"tls-server-name": "api.internal"})
            assert named.get("/api") == {}
            assert b"".join(read_log(named.stream("/log", {}), named.server)) == b"{}"
            named.close()
            with pytest.raises(CloudUnavailable, match="cannot be trusted"):
                asked().get("/api")
        finally:
            server.shutdown()
            thread.join()


def certified(path: Path, host: str) -> ssl.SSLContext:
    """Return a server's TLS context for a host; write the certificate that vouches for it to the path."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name, day = x509.Name([]), timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(made.public_bytes(pem))
    private = path.with_suffix(".key")
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    return context


def test_a_proxy_for_which_a_package_is_missing_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    cluster = {"server": "https://api.example", "proxy-url": "socks5://127.0.0.1:1"}
    path = written(tmp_path / "config", "one", clusters=[{"name": "one", "cluster": cluster}])
    environ = {"KUBECONFIG": str(path)}
    with pytest.raises(ConfigError, match=r"the proxy to https://api\.example cannot be used"):
        clusters.open_api(clusters.identity(None, None, environ), environ)
