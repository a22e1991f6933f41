"""Which cluster a kubeconfig leads to, with which token, and one clear line for what cannot be used."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.config.kubeconfig import KubeConfig

from orchestrator.errors import AuthError, CloudUnavailable, ConfigError
from orchestrator.places.gke.api import clusters
from orchestrator.places.gke.api.kube_api import KubeApi
from tests.contract.hosts.scripted_relay import certificate
from tests.fakes.api import StubApi, StubReply, stub_api
from tests.waiting import HANG_S, has_ended, until

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


def api_of(path: Path) -> KubeApi:
    environ = {"KUBECONFIG": str(path)}
    return clusters.open_api(clusters.identity(None, None, environ), environ)


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


def test_without_the_variable_it_is_the_file_below_home_and_a_cluster_that_is_named_needs_none(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="there is no kubeconfig") as raised:
        clusters.load(None, environ)
    assert "get-credentials" in str(raised.value.hint)
    assert clusters.identity(None, CLUSTER, environ) == CLUSTER
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube" / "config", "home")
    assert clusters.identity(None, None, environ) == "home@https://127.0.0.1:6443"


def acting(key: str, value: Any) -> dict[str, Any]:
    return {"users": [{"name": "one", "user": {"token": "t", key: value}}]}


def at(**cluster: str) -> dict[str, Any]:
    return {"clusters": [{"name": "one", "cluster": cluster}]}


NO_ADDRESS = r"the server of context 'one' of your kubeconfig is .*, which is no address"


@pytest.mark.parametrize(("changes", "words"), [
    ({"current-context": None}, "no current context"),
    ({"clusters": []}, "the cluster of context 'one' is missing"),
    ({"users": []}, "the user of context 'one' is missing"),
    ({"contexts": [{"name": "one", "context": {"cluster": "one"}}]}, "names no user"),
    ({"contexts": "x"}, "cannot be used as a kubeconfig"), ({"contexts": []}, "no context 'one'"),
    ({"contexts": None}, "no context 'one'"), ({"clusters": None}, "the cluster of context 'one' is missing"),
    ({"users": None}, "the user of context 'one' is missing"),
    (acting("as", "jane"), r"user 'one' of your kubeconfig acts as another \(as\)"),
    (acting("as-uid", "jane"), r"acts as another \(as-uid\)"), (acting("as-groups", ["x"]), r"another \(as-groups\)"),
    (acting("as-user-extra", {"reason": ["x"]}), r"acts as another \(as-user-extra\)"),
    *((at(server=server), NO_ADDRESS) for server in ("127.0.0.1:6443", "api.example", "//api.example")),
    *((at(server=server), NO_ADDRESS) for server in ("ftp://api.example", "https://", "")),
    (at(), NO_ADDRESS), (at(server="https://127.0.0.1:port"), "context 'one' of your kubeconfig cannot be used"),
    (at(server="https://api.example", **{"proxy-url": "socks5://127.0.0.1:1"}), r"the proxy to https://api\.example cannot be"),
])  # fmt: skip
def test_what_a_kubeconfig_lacks_or_cannot_have_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # the package that such a proxy needs
    with pytest.raises(ConfigError, match=words):
        api_of(written(tmp_path / "config", "one", **changes))


@pytest.mark.parametrize(("text", "words"), [
    *((text, "config cannot be used as a kubeconfig") for text in ("- 1", "[]", "no", "{", "\x00")),
    *((text, "no current context") for text in ("", "{clusters: null, contexts: null, users: null}")),
])  # fmt: skip
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match=words):
        api_of(tmp_path / "config")


def test_files_that_have_only_a_part_are_merged_and_the_first_one_counts(tmp_path: Path) -> None:
    for name, text in {
        "empty": "",
        "comment": "# nothing yet\n",
        "nulls": "{clusters: null, contexts: null, users: null, current-context: ''}",
        "current": "current-context: two",
    }.items():
        (tmp_path / name).write_text(text)
    other = {"name": "other", "user": {"token": "t", "as": "jane"}}  # which only its own context minds
    written(tmp_path / "both", "one", users=[{"name": "one", "user": {"token": "t"}}, other])
    written(tmp_path / "rest", "two", "https://127.0.0.2:6443")
    names = ("empty", "missing", "comment", "nulls", "current", "both", "rest")  # the first that says it counts
    environ = {"KUBECONFIG": ":".join(str(tmp_path / each) for each in names)}
    assert clusters.identity(None, None, environ) == "two@https://127.0.0.2:6443"
    assert clusters.identity("one", None, environ) == "one@https://127.0.0.1:6443"


def test_a_context_that_leads_elsewhere_now_is_another_cluster(tmp_path: Path) -> None:
    path = written(tmp_path / "config", "one")
    found = clusters.identity(None, None, {"KUBECONFIG": str(path)})
    written(path, "one", "https://127.0.0.9:6443")
    with pytest.raises(ConfigError, match=r"leads to https://127\.0\.0\.9:6443, and the job was started at"):
        clusters.open_api(found, {"KUBECONFIG": str(path)})


@pytest.mark.parametrize(("identity", "name", "location"), [
    (CLUSTER, "one", "us-central1"), ("kind-kind@https://127.0.0.1:6443", "kind-kind", None),
    ("gke_my-project_us-east5-a_one@https://127.0.0.1:6443", "gke_my-project_us-east5-a_one", "us-east5-a"),
])  # fmt: skip
def test_a_cluster_has_a_short_name_and_its_location_or_none(identity: str, name: str, location: str | None) -> None:
    assert (clusters.short_name(identity), clusters.location(identity)) == (name, location)


@pytest.mark.parametrize("is_proxy", [True, False], ids=["of the kubeconfig", "of a variable"])
def test_the_proxy_of_the_kubeconfig_is_used_and_none_of_a_variable_for_a_cluster_on_this_machine(
    tmp_path: Path, stub: StubApi, monkeypatch: pytest.MonkeyPatch, is_proxy: bool
) -> None:
    stub.answers(StubReply(body={}))
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    changes = at(server="http://api.example", **{"proxy-url": stub.url}) if is_proxy else at(server=stub.url)
    api_of(written(tmp_path / "config", "one", **changes)).get("/api")
    assert [asked.path for asked in stub.asked] == ["http://api.example/api" if is_proxy else "/api"]


def test_a_certificate_is_compared_with_the_name_that_the_kubeconfig_gives(tmp_path: Path) -> None:
    def asked(**changes: str) -> KubeApi:
        made = at(server=stub.url, **{"certificate-authority": "ca.pem", **changes})
        return api_of(written(tmp_path / "config", "one", **made))

    context, _ = certificate(tmp_path, "api.internal")
    with stub_api(context) as stub:
        stub.answers(StubReply(body={}))
        named = asked(**{"tls-server-name": "api.internal"})
        assert named.get("/api") == {}
        assert named.stream("/log", {}).read() == b"{}"
        named.close()
        with pytest.raises(CloudUnavailable, match="cannot be trusted"):
            asked().get("/api")


COUNT = 'echo x >> "$0.runs"; n=$(wc -l < "$0.runs" | tr -d " "); '
GIVE = """printf '{"status": {"token": "t%s"}}' "$n$GIVEN\""""


def opened(tmp_path: Path, script: str, answer: Callable[[httpx2.Request], httpx2.Response], **changes: Any) -> KubeApi:
    """Return the API of a server that answers so, with a plugin that is this script."""
    plugin = tmp_path / "bin" / "plugin"
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o700)
    asked = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "bin/plugin", **changes}
    api = api_of(written(tmp_path / "config", "one", users=[{"name": "one", "user": {"exec": asked}}]))
    api._http._transport = httpx2.MockTransport(answer)
    return api


def ask(tmp_path: Path, script: str, **changes: Any) -> list[str]:
    """Ask a server twice, which refuses the first token, with a plugin that is this script; return what signed the requests."""
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["Authorization"])
        return httpx2.Response(401 if len(seen) == 1 else 200, json={"kind": "Status"})

    api = opened(tmp_path, script, answer, **changes)
    api.get("/api")
    api.get("/api")
    return seen


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_token_is_kept_until_it_is_refused_and_a_plugin_can_ask_for_nothing(tmp_path: Path, version: str) -> None:
    changes = {"apiVersion": f"client.authentication.k8s.io/{version}", "env": [{"name": "GIVEN", "value": "-by-env"}]}
    script = 'printf "%s" "$KUBERNETES_EXEC_INFO" > "$0.info"; cat > "$0.stdin"; ' + COUNT + GIVE
    assert ask(tmp_path, script, **changes) == ["Bearer t1-by-env", "Bearer t2-by-env", "Bearer t2-by-env"]
    said = json.loads((tmp_path / "bin" / "plugin.info").read_text())
    assert said["spec"] == {"interactive": False} and (tmp_path / "bin" / "plugin.stdin").read_text() == ""


def test_a_token_that_many_threads_used_is_replaced_once(tmp_path: Path) -> None:
    threads = 8
    together = threading.Barrier(threads)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.headers["Authorization"] != "Bearer t1":
            return httpx2.Response(200, json={})
        together.wait(HANG_S)  # all have signed with the token that is refused
        return httpx2.Response(401, json={})

    api = opened(tmp_path, COUNT + GIVE, answer)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(api.get, ["/api"] * threads)) == [{}] * threads
    assert (tmp_path / "bin" / "plugin.runs").read_text().count("x") == 2


def test_a_plugin_that_gave_a_token_before_and_fails_is_asked_again(tmp_path: Path) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401 if request.headers["Authorization"] == "Bearer t1" else 200, json={})

    api = opened(tmp_path, COUNT + '[ "$n" = 2 ] && { echo no route >&2; exit 3; }; ' + GIVE, answer)
    with pytest.raises(CloudUnavailable, match="ended with code 3: no route") as raised:
        api.get("/api")
    assert raised.value.hint == clusters.TRY_IT
    assert api.get("/api") == {}


@pytest.mark.parametrize(("script", "changes", "words"), [
    ("echo no login >&2; exit 3", {}, "plugin, which signs in .* ended with code 3: no login"),
    ("echo '{\"status\": {}}'", {}, "gave no token"),
    ('echo \'{"status": {"token": "a\\nb"}}\'', {}, "gave no token"), ("echo hello", {}, "gave no token"),
    ("", {"command": "no-such-plugin"}, "no-such-plugin, .* cannot be started: No such file"),
])  # fmt: skip
def test_a_broken_plugin_is_named(tmp_path: Path, script: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AuthError, match=words):
        ask(tmp_path, script, **changes)


def test_a_plugin_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"

    class Late(subprocess.Popen[bytes]):
        """Its time is over as soon as the script has started another process."""

        def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
            until(started.exists, "the process of the script")
            return super().communicate(input, timeout=0)

    monkeypatch.setattr(clusters.subprocess, "Popen", Late)
    with pytest.raises(CloudUnavailable, match="did not end within 30 s"):
        ask(tmp_path, f"sleep 600 & echo $! > {started}.draft; mv {started}.draft {started}; wait")
    pid = int(started.read_text())
    until(lambda: has_ended(pid), "its end")
