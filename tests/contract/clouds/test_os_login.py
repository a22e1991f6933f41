"""OS Login and what is set up for access, as the emulator shows it: read by tpujob, and judged by gcloud."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import paramiko
import pytest

from cloud_tpu_emulator.daemon import control
from orchestrator import catalog
from orchestrator.errors import AuthError, QuotaError, Vanished
from orchestrator.places.desk import Emulator as EmulatorPlace
from orchestrator.places.google import project_setup
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.os_login import OsLogin, account_of
from orchestrator.places.google.project_setup import Apis, ProjectSetup
from orchestrator.places.vms.reach import Reach
from orchestrator.promise.lease.access import Route
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.network import ANYWHERE, RELAY_RANGE, entrance
from orchestrator.promise.obtain.login_key import KeyPair, create_key, ssh_keys_metadata
from tests.emulator.fixture import Emulator
from tests.fakes.leases import lease_and_request
from tests.waiting import HANG_S, ran, until

NODES = "/v2/projects/emulated/locations/us-central1-a/nodes"
PLACE = {"project": "emulated", "region": "us-central1"}
HOUR_S = 3600.0
numbers = count(1)


@pytest.fixture
def account(shared_emulator: Emulator) -> str:
    return account_of(Apis(EmulatorToken(shared_emulator.token), shared_emulator.url))


@pytest.fixture
def os_login(shared_emulator: Emulator, account: str) -> Iterator[OsLogin]:
    made = OsLogin(account, Apis(EmulatorToken(shared_emulator.token), shared_emulator.url))
    yield made
    for key in made.keys("emulated"):
        made.remove_key(key.key_id, project="emulated")


@pytest.fixture
def key(tmp_path: Path) -> KeyPair:
    return create_key(tmp_path / "key")


@pytest.fixture
def node(shared_emulator: Emulator, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A node with OS Login, and a key in its metadata, which does not count."""
    name = f"oslogin{next(numbers)}"
    listed = ssh_keys_metadata("tester", create_key(tmp_path / "listed").public_line)
    body = {
        "acceleratorType": "v5litepod-4",
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "metadata": {"enable-oslogin": "TRUE", "ssh-keys": listed},
    }
    shared_emulator.request("POST", f"{NODES}?nodeId={name}", body)
    until(lambda: shared_emulator.request("GET", f"{NODES}/{name}")["state"] == "READY")
    (found,) = [row for row in shared_emulator.status()["nodes"] if row["name"].endswith(f"/{name}")]
    yield found
    shared_emulator.request("DELETE", f"{NODES}/{name}")


def can_log_in(node: dict[str, Any], user: str, key: KeyPair) -> bool:
    with paramiko.Transport(("127.0.0.1", node["ssh_ports"][0])) as transport:
        transport.start_client(timeout=HANG_S)
        try:
            transport.auth_publickey(user, paramiko.Ed25519Key.from_private_key_file(str(key.private_path)))
        except paramiko.AuthenticationException:
            return False
        return True


def test_the_account_is_that_of_the_token(account: str) -> None:
    assert account == "developer@emulated.example"


def test_an_imported_key_opens_the_workers_for_the_profiles_user(
    os_login: OsLogin, node: dict[str, Any], key: KeyPair
) -> None:
    login = os_login.import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    assert login.user == "developer_emulated_example"
    assert can_log_in(node, login.user, key)
    assert not can_log_in(node, "tester", key)


def test_keys_of_the_metadata_do_not_count_with_os_login(node: dict[str, Any], tmp_path: Path) -> None:
    assert not can_log_in(node, "tester", create_key(tmp_path / "listed"))


def test_a_key_that_is_removed_opens_nothing(os_login: OsLogin, node: dict[str, Any], key: KeyPair) -> None:
    login = os_login.import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    os_login.remove_key(login.key_id, project="emulated")
    assert os_login.keys("emulated") == ()
    assert not can_log_in(node, login.user, key)
    os_login.remove_key(login.key_id, project="emulated")  # it is gone, which is what was asked for


def test_a_key_expires_by_itself(os_login: OsLogin, node: dict[str, Any], key: KeyPair) -> None:
    login = os_login.import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    assert os_login.keys("emulated")
    os_login.extend_key(login.key_id, key.public_line, expires_at=time.time() + 0.5)
    until(lambda: not os_login.keys("emulated"), "the end of the key")
    assert not can_log_in(node, login.user, key)


def test_the_key_of_a_lease_is_granted_extended_and_revoked_and_does_not_come_back(
    shared_emulator: Emulator, os_login: OsLogin, tmp_path: Path
) -> None:
    reach, lease = reach_of(shared_emulator, tmp_path), lease_with_key()
    soon, later = time.time() + HOUR_S, int(time.time() + 2 * HOUR_S)
    granted = replace(lease, route=replace(lease.route, user=reach.grant_login(lease, soon)))
    assert granted.route.user == os_login.user("emulated")
    reach.extend_login(granted, later)
    (found,) = os_login.keys("emulated")
    assert found.expires_at == later and found.line.endswith(f"-{lease.id}")
    reach.revoke_login(granted)
    reach.revoke_login(granted)
    with pytest.raises(Vanished):
        reach.extend_login(granted, later)
    assert os_login.keys("emulated") == ()


def test_a_key_in_the_profile_of_another_account_is_not_called_removed(
    shared_emulator: Emulator, os_login: OsLogin, tmp_path: Path
) -> None:
    """The user has signed in as another one since."""
    reach, lease = reach_of(shared_emulator, tmp_path), lease_with_key()
    reach.grant_login(lease, time.time() + HOUR_S)
    elsewhere = replace(lease_with_key("0000000009"), route=Route(os_login=True, user="ada_example_com"))
    with pytest.raises(
        AuthError, match=r"profile of ada_example_com, and developer@emulated.example is signed in here"
    ):
        reach.revoke_login(elsewhere)


def reach_of(emulator: Emulator, directory: Path) -> Reach:
    token = directory / "token"
    token.write_text(emulator.token)
    token.chmod(0o600)
    return Reach(lambda: EmulatorPlace(emulator.url, token), lambda lease_id: directory / lease_id)


def lease_with_key(lease_id: str = "0000000000") -> Lease:
    lease, _ = lease_and_request()
    name = replace(lease.name, project="emulated", zone="us-central1-a")
    return replace(lease, id=lease_id, name=name, route=Route(os_login=True, user=""))


def test_an_import_that_is_sent_again_moves_the_expiry_of_the_one_key(os_login: OsLogin, key: KeyPair) -> None:
    first = os_login.import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    later = float(int(time.time())) + 2 * HOUR_S
    assert os_login.import_key(key.public_line, **PLACE, expires_at=later) == first
    (found,) = os_login.keys("emulated")
    assert (found.key_id, found.line, found.expires_at) == (first.key_id, key.public_line, later)


def test_a_full_profile_says_what_to_remove(os_login: OsLogin, key: KeyPair) -> None:
    with pytest.raises(QuotaError, match="32 KiB") as full:
        for number in range(1000):
            line = f"{key.public_line} {'x' * 900} {number}"
            os_login.import_key(line, **PLACE, expires_at=time.time() + HOUR_S)
    assert "gcloud compute os-login ssh-keys" in str(full.value.hint)


def test_another_accounts_profile_is_refused(shared_emulator: Emulator) -> None:
    other = OsLogin("root@emulated.example", Apis(EmulatorToken(shared_emulator.token), shared_emulator.url))
    with pytest.raises(AuthError):
        other.keys("emulated")


def test_profiles_survive_the_daemon(emulator: Emulator, key: KeyPair) -> None:
    def profile(running: Emulator) -> OsLogin:
        return OsLogin("developer@emulated.example", Apis(EmulatorToken(running.token), running.url))

    login = profile(emulator).import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    control.stop(emulator.state_dir)
    assert [found.key_id for found in profile(emulator.restarted()).keys("emulated")] == [login.key_id]


# -- as gcloud sees it ------------------------------------------------------------------------------------------------

with_gcloud = [
    pytest.mark.gcloud,
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


@pytest.fixture
def gcloud(shared_emulator: Emulator, tmp_path: Path) -> Callable[..., str]:
    environment = shared_emulator.for_gcloud(tmp_path)

    def run(*words: str) -> str:
        argv = ["gcloud", "compute", *words]
        done = ran(argv, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("_", [pytest.param(0, marks=with_gcloud, id="gcloud")])
def test_gcloud_lists_and_removes_what_tpujob_imported_and_the_other_way_round(
    gcloud: Callable[..., str], os_login: OsLogin, key: KeyPair, tmp_path: Path, _: int
) -> None:
    login = os_login.import_key(key.public_line, **PLACE, expires_at=time.time() + HOUR_S)
    assert login.key_id in gcloud("os-login", "ssh-keys", "list")
    profile = json.loads(gcloud("os-login", "describe-profile", "--format=json"))
    assert [row["username"] for row in profile["posixAccounts"]] == [login.user]
    gcloud("os-login", "ssh-keys", "remove", f"--key={login.key_id}")
    assert os_login.keys("emulated") == ()
    mine = create_key(tmp_path / "mine")
    gcloud("os-login", "ssh-keys", "add", f"--key={mine.public_line}", "--ttl=1h")
    (found,) = os_login.keys("emulated")
    assert found.line == mine.public_line
    assert found.expires_at is not None and abs(found.expires_at - time.time() - HOUR_S) < HANG_S


@pytest.mark.parametrize("_", [pytest.param(0, marks=with_gcloud, id="gcloud")])
def test_gcloud_logs_in_to_a_node_with_os_login(
    gcloud: Callable[..., str], os_login: OsLogin, node: dict[str, Any], _: int
) -> None:
    name = node["name"].rpartition("/")[2]
    said = gcloud("tpus", "tpu-vm", "ssh", name, "--zone=us-central1-a", "--command=id -un; echo $USER")
    assert "developer_emulated_example" in said
    assert len(os_login.keys("emulated")) == 1  # gcloud's own


SETTINGS = ("networks", "ssh_from", "private_google_access", "cloud_nat", "disabled_apis", "missing_permissions")
CHANGED = {"networks": ["lab"], "ssh_from": [RELAY_RANGE], "private_google_access": False}


@pytest.fixture
def patched(shared_emulator: Emulator) -> Iterator[Emulator]:
    before = shared_emulator.request("GET", "/_emulator/settings")
    yield shared_emulator
    shared_emulator.patch_settings(**{name: before[name] for name in (*SETTINGS, "project_os_login")})


@pytest.fixture
def setup(patched: Emulator) -> ProjectSetup:
    return ProjectSetup("acme", Apis(EmulatorToken(patched.token), patched.url))


def test_firewall_rules_are_those_that_decide(patched: Emulator, setup: ProjectSetup) -> None:
    assert entrance(setup.firewall_rules(), "default", None).rules == ("default-allow-ssh",)
    patched.patch_settings(**CHANGED)
    assert entrance(setup.firewall_rules(), "lab", RELAY_RANGE).is_open is True
    assert entrance(setup.firewall_rules(), "lab", ANYWHERE).is_open is False
    assert entrance(setup.firewall_rules(), "default", RELAY_RANGE).is_open is False


def test_subnetworks_and_nat_are_those_of_each_region(patched: Emulator, setup: ProjectSetup) -> None:
    rows = setup.subnetworks()
    assert {each.region for each in rows} == {*catalog.regions()}
    assert all(each.network == "default" and each.private_google_access for each in rows)
    assert setup.regions_with_nat("default") == {*catalog.regions()} and setup.regions_with_nat("lab") == set()
    patched.patch_settings(private_google_access=False, cloud_nat=False)
    assert not any(each.private_google_access for each in setup.subnetworks())
    assert setup.regions_with_nat("default") == set()


def test_apis_permissions_and_os_login_of_the_project(patched: Emulator, setup: ProjectSetup) -> None:
    asked = ("compute.instances.osLogin", "compute.instances.osAdminLogin")
    assert setup.is_enabled("iap.googleapis.com") and not setup.uses_os_login()
    assert setup.permissions(asked) == {*asked}
    patched.patch_settings(disabled_apis=["iap.googleapis.com"], project_os_login=True, missing_permissions=[*asked])
    assert not setup.is_enabled("iap.googleapis.com") and setup.uses_os_login()
    assert setup.permissions(asked) == set()


@pytest.mark.parametrize(("service", "ask"), [
    ("compute.googleapis.com", ProjectSetup.firewall_rules),
    ("serviceusage.googleapis.com", lambda setup: setup.is_enabled("x.googleapis.com")),
    ("cloudresourcemanager.googleapis.com", lambda setup: setup.permissions(("a.b.c",))),
])  # fmt: skip
def test_an_api_that_is_not_enabled_is_named(
    patched: Emulator, setup: ProjectSetup, service: str, ask: Callable[[ProjectSetup], object]
) -> None:
    patched.patch_settings(disabled_apis=[service])
    with pytest.raises(AuthError) as caught:
        ask(setup)
    assert project_setup.disabled_api(caught.value) == service


def test_a_permission_that_is_missing_is_not_an_api_that_is_not_enabled(patched: Emulator, setup: ProjectSetup) -> None:
    patched.patch_settings(missing_permissions=["compute.subnetworks.list"])
    with pytest.raises(AuthError) as caught:
        setup.subnetworks()
    assert project_setup.disabled_api(caught.value) is None


@pytest.mark.ci
@pytest.mark.gcloud
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_reads_the_same(patched: Emulator, tmp_path: Path) -> None:
    patched.patch_settings(**CHANGED)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}
    environment |= control.gcloud_environment(patched.endpoint, patched.state_dir)

    def listed(*words: str) -> list[dict[str, object]]:
        argv = ["gcloud", "compute", *words, "--format=json"]
        done = ran(argv, env=environment)
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
