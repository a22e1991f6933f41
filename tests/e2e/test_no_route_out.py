"""A slice whose network has no route out: told apart from a setup that fails, by the same job."""

import json
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob

JOB = """
name: offline
tpu: {zone: us-central1-a, accelerator: v5litepod-8}
requirements: [alpha]
env: {PIP_RETRIES: 0, PIP_CONFIG_FILE: /dev/null, UV_HTTP_RETRIES: 0, PIP_INDEX_URL: "https://index.invalid/simple"}
access: {via: iap}
command: echo never
"""


@pytest.fixture
def no_route(tpujob: Tpujob) -> None:
    tpujob.settings(cloud_nat=False)


def test_a_worker_without_a_route_out_says_so_and_how_to_give_it_one(tpujob: Tpujob, no_route: None) -> None:
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 71, done.text
    assert "the setup failed on worker0 with code" in done.stderr
    assert "the worker does not reach index.invalid:443 (the proxy 127.0.0.1:9: connection refused)" in done.stderr
    assert "Cloud NAT gives it a route out (`gcloud compute routers create NETWORK-router" in done.stderr
    assert "--region=us-central1 --project=emulated" in done.stderr and "PIP_INDEX_URL" in done.stderr
    assert tpujob.alive() == []
    (run,) = json.loads(tpujob("list", "--json").stdout)
    assert json.loads(tpujob("show", run["run"], "--json").stdout)["attempts"][-1]["state"] == "error"


def test_a_setup_that_fails_by_itself_is_its_own_failure_there_too(tpujob: Tpujob, no_route: None) -> None:
    job = JOB.replace("requirements: [alpha]", "setup: echo mistake; exit 3")
    done = tpujob("run", tpujob.job(job))
    assert done.returncode == 3, done.text
    assert "the setup failed on worker0 with code 3" in done.stderr and "does not reach" not in done.stderr


def test_an_external_address_is_a_route_out(tpujob: Tpujob, no_route: None, tmp_path: Path) -> None:
    job = JOB.replace("access: {via: iap}", "").replace("requirements: [alpha]", 'setup: test -z "$HTTPS_PROXY"')
    done = tpujob("run", tpujob.job(job), env={"HTTPS_PROXY": ""})
    assert done.returncode == 0, done.text
