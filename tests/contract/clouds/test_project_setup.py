"""What is set up for access, as the emulator shows it: read by tpujob, and by the real gcloud, which judges the replies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import catalog
from orchestrator.core.lease.networks import ANYWHERE, RELAY_RANGE, entrance
from orchestrator.emulator.daemon import control
from orchestrator.errors import AuthError
from orchestrator.places.google import project_setup
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.project_setup import ProjectSetup
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S

SETTINGS = ("networks", "ssh_from", "private_google_access", "cloud_nat", "disabled_apis", "missing_permissions")
CHANGED = {"networks": ["lab"], "ssh_from": [RELAY_RANGE], "private_google_access": False}


@pytest.fixture
def emulator(shared_emulator: Emulator) -> Iterator[Emulator]:
    before = shared_emulator.request("GET", "/_emulator/settings")
    yield shared_emulator
    shared_emulator.patch_settings(**{name: before[name] for name in (*SETTINGS, "project_os_login")})


@pytest.fixture
def setup(emulator: Emulator) -> ProjectSetup:
    return ProjectSetup("acme", EmulatorToken(emulator.token), emulator.url)


def test_firewall_rules_are_those_that_decide(emulator: Emulator, setup: ProjectSetup) -> None:
    assert entrance(setup.firewall_rules(), "default", None).rules == ("default-allow-ssh",)
    emulator.patch_settings(**CHANGED)
    assert entrance(setup.firewall_rules(), "lab", RELAY_RANGE).is_open is True
    assert entrance(setup.firewall_rules(), "lab", ANYWHERE).is_open is False
    assert entrance(setup.firewall_rules(), "default", RELAY_RANGE).is_open is False


def test_subnetworks_and_nat_are_those_of_each_region(emulator: Emulator, setup: ProjectSetup) -> None:
    rows = setup.subnetworks()
    assert {each.region for each in rows} == {*catalog.regions()}
    assert all(each.network == "default" and each.private_google_access for each in rows)
    assert setup.regions_with_nat("default") == {*catalog.regions()} and setup.regions_with_nat("lab") == set()
    emulator.patch_settings(private_google_access=False, cloud_nat=False)
    assert not any(each.private_google_access for each in setup.subnetworks())
    assert setup.regions_with_nat("default") == set()


def test_apis_permissions_and_os_login_of_the_project(emulator: Emulator, setup: ProjectSetup) -> None:
    asked = ("compute.instances.osLogin", "compute.instances.osAdminLogin")
    assert setup.is_enabled("iap.googleapis.com") and not setup.uses_os_login()
    assert setup.permissions(asked) == {*asked}
    emulator.patch_settings(disabled_apis=["iap.googleapis.com"], project_os_login=True, missing_permissions=[*asked])
    assert not setup.is_enabled("iap.googleapis.com") and setup.uses_os_login()
    assert setup.permissions(asked) == set()


@pytest.mark.parametrize(("service", "ask"), [
    ("compute.googleapis.com", ProjectSetup.firewall_rules),
    ("serviceusage.googleapis.com", lambda setup: setup.is_enabled("x.googleapis.com")),
    ("cloudresourcemanager.googleapis.com", lambda setup: setup.permissions(("a.b.c",))),
])  # fmt: skip
def test_an_api_that_is_not_enabled_is_named(
    emulator: Emulator, setup: ProjectSetup, service: str, ask: Callable[[ProjectSetup], object]
) -> None:
    emulator.patch_settings(disabled_apis=[service])
    with pytest.raises(AuthError) as caught:
        ask(setup)
    assert project_setup.disabled_api(caught.value) == service


def test_a_permission_that_is_missing_is_not_an_api_that_is_not_enabled(
    emulator: Emulator, setup: ProjectSetup
) -> None:
    emulator.patch_settings(missing_permissions=["compute.subnetworks.list"])
    with pytest.raises(AuthError) as caught:
        setup.subnetworks()
    assert project_setup.disabled_api(caught.value) is None


@pytest.mark.ci
@pytest.mark.gcloud
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_reads_the_same(emulator: Emulator, tmp_path: Path) -> None:
    emulator.patch_settings(**CHANGED)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}
    environment |= control.gcloud_environment(emulator.endpoint, emulator.state_dir)

    def listed(*words: str) -> list[dict[str, object]]:
        argv = ["gcloud", "compute", *words, "--format=json"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, object]] = json.loads(done.stdout)
        return found

    rules = {str(each["name"]): each for each in listed("firewall-rules", "list")}
    assert rules["lab-allow-ssh"]["sourceRanges"] == [RELAY_RANGE]
    subnets = listed("networks", "subnets", "list")
    assert {(each["name"], each["privateIpGoogleAccess"]) for each in subnets} == {("lab", False)}
    routers = listed("routers", "list")
    assert len(subnets) == len(routers) == len(catalog.regions())
    assert all(each["name"] == "lab-router" and each["nats"] for each in routers)
