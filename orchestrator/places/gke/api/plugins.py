"""Tokens from the plugin that a user of a kubeconfig names, such as gke-gcloud-auth-plugin.

lightkube runs plugins, too: it waits for one without an end, knows no `client.authentication.k8s.io/v1`, and raises whatever
the output of a broken one leads to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AuthError, CloudUnavailable

if TYPE_CHECKING:
    from lightkube.config.models import UserExec

PLUGIN_S = 30.0  # gcloud takes a few seconds, and more to renew its login
SHOWN_CHARS = 300
TRY_IT = "`kubectl get namespaces` runs the same plugin, and lets it ask you what it needs to know"


class PluginToken:
    """The Bearer for a cluster whose kubeconfig names a plugin. Its token is kept until the server refuses it."""

    renewable = True

    def __init__(self, asked: UserExec, directory: Path | None) -> None:
        """`directory`: of the kubeconfig, from which a command with a relative path is looked for."""
        self._asked, self._directory = asked, directory
        self._token: str | None = None
        self._lock = threading.Lock()  # many threads follow pods

    def token(self) -> str:
        """Return the token; run the plugin if there is none yet.

        Raises AuthError; CloudUnavailable for a plugin that does not end, or that fails though it gave a token before.
        """
        with self._lock:
            if self._token is None:
                self._token = self._given()
            return self._token

    def renew(self) -> None:
        """Run the plugin. Raises as `token`."""
        with self._lock:
            self._token = self._given()

    def _given(self) -> str:
        name = self._asked.command
        rc, output, complaint = self._run()
        if rc != 0:
            said = " ".join(complaint.decode("utf-8", "replace").split())[-SHOWN_CHARS:]
            why = f"{name}, which signs in to the cluster, ended with code {rc}: {said}"
            if self._token is not None:  # it can sign in: a network that is away for a moment must not end a job
                raise CloudUnavailable(why, hint=TRY_IT)
            raise AuthError(why, hint=TRY_IT)
        try:
            token = json.loads(output)["status"]["token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
            raise AuthError(f"{name}, which signs in to the cluster, gave no token", hint=TRY_IT)
        return token

    def _run(self) -> tuple[int, bytes, bytes]:
        name = self._asked.command
        command = str(self._directory / name) if "/" in name and self._directory is not None else name
        about = {"kind": "ExecCredential", "apiVersion": self._asked.apiVersion, "spec": {"interactive": False}}
        environ = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(about)}
        environ |= {each.name: each.value for each in self._asked.env or ()}
        try:
            process = subprocess.Popen(
                [command, *(self._asked.args or ())],
                env=environ,
                stdin=subprocess.DEVNULL,  # it may be asked by the guardian, or by many threads at once
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # what it starts itself is ended with it
            )
        except OSError as error:
            why = f"{name}, which signs in to the cluster, cannot be started: {error.strerror or error}"
            raise AuthError(why, hint=self._asked.installHint or TRY_IT) from error
        try:
            output, complaint = process.communicate(timeout=PLUGIN_S)
        except subprocess.TimeoutExpired as error:
            raise CloudUnavailable(
                f"{name}, which signs in to the cluster, did not end within {PLUGIN_S:.0f} s", hint=TRY_IT
            ) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with process:  # reaps it, and closes its pipes
                pass
        return process.returncode, output, complaint
