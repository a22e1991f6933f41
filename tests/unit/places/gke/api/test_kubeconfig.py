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
    (at(), NO_ADDRESS),
])  # fmt: skip
def test_what_a_kubeconfig_lacks_or_cannot_have_is_said(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = written(tmp_path / "config", "one", **changes)
    with pytest.raises(ConfigError, match=words):
        clusters.identity(None, None, {"KUBECONFIG": str(path)})


@pytest.mark.parametrize(("text", "words"), [
    *((text, "config cannot be used as a kubeconfig") for text in ("- 1", "[]", "no", "{", "\x00")),
    *((text, "no current context") for text in ("", "{clusters: null, contexts: null, users: null}")),
])  # fmt: skip
def test_a_file_that_is_no_kubeconfig_is_named_and_an_empty_one_lacks_a_context(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match=words):
        clusters.load(None, {"KUBECONFIG": str(tmp_path / "config")})


def test_files_that_have_only_a_part_are_merged_and_the_first_one_counts(tmp_path: Path) -> None:
    for name, text in {
        "empty": "",
        "comment": "# nothing yet\n",
        "nulls": "{clusters: null, contexts: null, users: null, current-context: ''}",
        "current": "current-context: two",
    }.items():
        (tmp_path / name).write_text(text)
    written(tmp_path / "both", "one")
    written(tmp_path / "rest", "two", "https://127.0.0.2:6443")
    names = ("empty", "missing", "comment", "nulls", "current", "both", "rest")  # the first that says it counts
    environ = {"KUBECONFIG": ":".join(str(tmp_path / each) for each in names)}
    assert clusters.identity(None, None, environ) == "two@https://127.0.0.2:6443"
    assert clusters.identity("one", None, environ) == "one@https://127.0.0.1:6443"


def test_a_user_who_acts_as_another_is_in_nobodys_way_in_another_context(tmp_path: Path) -> None:
    users = [{"name": "one", "user": {"token": "t"}}, {"name": "other", "user": {"token": "t", "as": "jane"}}]
    path = written(tmp_path / "config", "one", users=users)
    assert clusters.identity(None, None, {"KUBECONFIG": str(path)}) == "one@https://127.0.0.1:6443"


def test_a_server_whose_address_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    path = written(tmp_path / "config", "one", "https://127.0.0.1:port")
    with pytest.raises(ConfigError, match="context 'one' of your kubeconfig cannot be used"):
        api_of(path)


def test_no_kubeconfig_at_all_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no kubeconfig") as raised:
        clusters.load(None, {"HOME": str(tmp_path)})
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


def lines(stub: StubApi) -> list[str]:
    """Return what a server, or a proxy, was asked."""
    return [f"{asked.method} {asked.path}" for asked in stub.asked]


def test_the_proxy_of_the_kubeconfig_is_used(tmp_path: Path, stub: StubApi) -> None:
    stub.answers(StubReply(body={}))
    changes = at(server="http://api.example", **{"proxy-url": stub.url})
    api_of(written(tmp_path / "config", "one", **changes)).get("/api")
    assert lines(stub) == ["GET http://api.example/api"]


def test_no_variable_names_a_proxy_for_a_cluster_on_this_machine(
    tmp_path: Path, stub: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers(StubReply(body={}))
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    api_of(written(tmp_path / "config", "one", stub.url)).get("/api")
    assert lines(stub) == ["GET /api"]


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


def test_a_proxy_for_which_a_package_is_missing_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    path = written(tmp_path / "c", "one", **at(server="https://api.example", **{"proxy-url": "socks5://127.0.0.1:1"}))
    with pytest.raises(ConfigError, match=r"the proxy to https://api\.example cannot be used"):
        api_of(path)


COUNT = 'echo x >> "$0.runs"; n=$(wc -l < "$0.runs" | tr -d " ")'


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
def test_a_token_is_kept_until_it_is_refused(tmp_path: Path, version: str) -> None:
    script = f'{COUNT}; printf \'{{"status": {{"token": "t%s-%s"}}}}\' "$n" "$GIVEN"'
    changes = {"apiVersion": f"client.authentication.k8s.io/{version}", "env": [{"name": "GIVEN", "value": "by-env"}]}
    assert ask(tmp_path, script, **changes) == ["Bearer t1-by-env", "Bearer t2-by-env", "Bearer t2-by-env"]


def test_a_token_that_many_threads_used_is_replaced_once(tmp_path: Path) -> None:
    threads = 8
    together = threading.Barrier(threads)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.headers["Authorization"] != "Bearer t1":
            return httpx2.Response(200, json={})
        together.wait(HANG_S)  # all have signed with the token that is refused
        return httpx2.Response(401, json={})

    api = opened(tmp_path, f'{COUNT}; printf \'{{"status": {{"token": "t%s"}}}}\' "$n"', answer)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(api.get, ["/api"] * threads)) == [{}] * threads
    assert (tmp_path / "bin" / "plugin.runs").read_text().count("x") == 2


def test_a_plugin_that_gave_a_token_before_and_fails_is_asked_again(tmp_path: Path) -> None:
    script = (
        f'''{COUNT}; [ "$n" = 2 ] && {{ echo no route >&2; exit 3; }}; printf '{{"status": {{"token": "t%s"}}}}' "$n"'''
    )
    refused = {"Bearer t1"}
    api = opened(
        tmp_path,
        script,
        lambda sent: httpx2.Response(401 if sent.headers["Authorization"] in refused else 200, json={}),
    )
    with pytest.raises(CloudUnavailable, match="ended with code 3: no route") as raised:
        api.get("/api")
    assert raised.value.hint == clusters.TRY_IT
    assert api.get("/api") == {}


def test_a_plugin_knows_that_it_can_ask_for_nothing(tmp_path: Path) -> None:
    script = 'printf "%s" "$KUBERNETES_EXEC_INFO" > "$0.info"; cat > "$0.stdin"; echo \'{"status": {"token": "t"}}\''
    ask(tmp_path, script)
    said = json.loads((tmp_path / "bin" / "plugin.info").read_text())
    assert said["spec"] == {"interactive": False} and (tmp_path / "bin" / "plugin.stdin").read_text() == ""


@pytest.mark.parametrize(("script", "changes", "words"), [
    ("echo no login >&2; exit 3", {}, "plugin, which signs in .* ended with code 3: no login"),
    ("echo '{\"status\": {}}'", {}, "gave no token"),
    ('echo \'{"status": {"token": "a\\nb"}}\'', {}, "gave no token"), ("echo hello", {}, "gave no token"),
    ("", {"command": "no-such-plugin"}, "no-such-plugin, .* cannot be started: No such file"),
])  # fmt: skip
def test_a_broken_plugin_is_named(tmp_path: Path, script: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AuthError, match=words):
        ask(tmp_path, script, **changes)


def test_a_plugin_that_does_not_end_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
