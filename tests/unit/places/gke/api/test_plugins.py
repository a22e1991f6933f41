"""The plugin of a kubeconfig: its token signs requests, a broken one is named, and none is waited for without an end."""

import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.errors import AuthError, CloudUnavailable
from orchestrator.places.gke.api import clusters, plugins
from orchestrator.places.gke.api.kube_api import KubeApi
from tests.unit.places.gke.api.test_kubeconfig import written
from tests.waiting import HANG_S, has_ended, until

COUNT = 'echo x >> "$0.runs"; n=$(wc -l < "$0.runs" | tr -d " ")'


def opened(tmp_path: Path, script: str, answer: Callable[[httpx2.Request], httpx2.Response], **changes: Any) -> KubeApi:
    """Return the API of a server that answers so, with a plugin that is this script."""
    plugin = tmp_path / "bin" / "plugin"
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o700)
    asked = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "bin/plugin", **changes}
    path = written(tmp_path / "config", "one", users=[{"name": "one", "user": {"exec": asked}}])
    environ = {"KUBECONFIG": str(path)}
    api = clusters.open_api(clusters.identity(None, None, environ), environ)
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
    assert raised.value.hint == plugins.TRY_IT
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

    monkeypatch.setattr(plugins.subprocess, "Popen", Late)
    with pytest.raises(CloudUnavailable, match="did not end within 30 s"):
        ask(tmp_path, f"sleep 600 & echo $! > {started}.draft; mv {started}.draft {started}; wait")
    pid = int(started.read_text())
    until(lambda: has_ended(pid), "its end")
