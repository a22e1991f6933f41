"""`tpujob doctor` on how workers are reached: what is missing is named, with the command that adds it."""

from typing import Any

import pytest

from orchestrator.places.vms import reach
from tests.cli_fixture import Tpujob
from tests.contract.commands.test_doctor import check, examined

ZONE, ACCOUNT = "us-central1-a", "user:developer@emulated.example"
IAP = "{via: iap}"
GRANT = f"`gcloud projects add-iam-policy-binding emulated --member={ACCOUNT} --role="


def configure(cli: Tpujob, access: str) -> None:
    place = cli.directory / "home" / ".config" / "tpujob"
    place.mkdir(parents=True, exist_ok=True)
    (place / "settings.yaml").write_text(f"zone: {ZONE}\naccess: {access}\n")


def names(said: dict[str, Any]) -> set[str]:
    return {each["name"] for each in said["checks"]}


def test_without_anything_set_it_says_the_way_and_asks_for_the_rule_that_lets_ssh_in(tpujob: Tpujob) -> None:
    said, done = examined(tpujob)
    assert done.returncode == 0
    assert "by their external addresses: no policy is known to forbid" in check(said, "access")["text"]
    assert check(said, "ssh")["live"] is None and "no open slice is READY" in check(said, "ssh")["text"]
    assert check(said, "firewall")["live"] is True
    assert not names(said) & {"iap", "os-login", "private-google-access", "cloud-nat"}, "nothing of other ways"


def test_a_project_with_everything_for_iap_and_os_login_has_nothing_to_fix(tpujob: Tpujob) -> None:
    configure(tpujob, "{via: iap, os_login: on}")
    said, done = examined(tpujob)
    assert done.returncode == 0
    assert "through Identity-Aware Proxy, with OS Login: `via: iap` in `access:`" in check(said, "access")["text"]
    for name in ("iap", "os-login", "firewall", "private-google-access", "cloud-nat"):
        assert check(said, name)["live"] is True and check(said, name)["fix"] is None


def test_a_zone_or_a_region_that_is_not_in_the_table_is_asked_about_all_the_same(tpujob: Tpujob) -> None:
    for place in ("us-central9-z", "us-central9"):
        said, _ = examined(tpujob, "--via", "iap", TPUJOB_ZONE=place)
        assert "the relay" in check(said, "iap")["text"]


MISSING = {
    "role of IAP": (
        *(IAP, {"missing_permissions": ["iap.tunnelInstances.accessViaIAP"]}, "iap", False, 77),
        f"{GRANT}roles/iap.tunnelResourceAccessor`",
    ),
    "API of IAP": (
        *(IAP, {"disabled_apis": ["iap.googleapis.com"]}, "iap", False, 77),
        "`gcloud services enable iap.googleapis.com --project=emulated`",
    ),
    "firewall rule for IAP": (
        *(IAP, {"ssh_from": ["203.0.113.0/24"]}, "firewall", False, 0),
        "`gcloud compute firewall-rules create default-allow-iap --network=default --direction=INGRESS --allow=tcp:22 "
        "--source-ranges=35.235.240.0/20 --project=emulated`",
    ),
    "firewall rule": (
        *("{}", {"ssh_from": []}, "firewall", False, 0),
        "`gcloud compute firewall-rules create default-allow-ssh --network=default --direction=INGRESS --allow=tcp:22 "
        "--source-ranges=ADDRESS/32 --project=emulated`, where ADDRESS/32 is this machine's address as the network sees it",
    ),
    "API of OS Login": (
        *("{os_login: on}", {"disabled_apis": ["oslogin.googleapis.com"]}, "os-login", False, 77),
        "`gcloud services enable oslogin.googleapis.com --project=emulated`",
    ),
    "role of OS Login": (*("{os_login: on}", {}, "os-login", False, 77), f"{GRANT}roles/compute.osAdminLogin`"),
    "sudo with OS Login": (
        *("{os_login: on}", {"missing_permissions": ["compute.instances.osAdminLogin"]}, "os-login", True, 0),
        f"{GRANT}roles/compute.osAdminLogin`",
    ),
    "OS Login of the project": (
        *("{}", {"project_os_login": True}, "os-login", False, 0),
        "`os_login: on` in `access:` of the settings or the job",
    ),
    "Private Google Access": (
        *(IAP, {"private_google_access": False}, "private-google-access", False, 0),
        "`gcloud compute networks subnets update default --region=us-central1 --enable-private-ip-google-access "
        "--project=emulated`",
    ),
    "Cloud NAT": (
        *(IAP, {"cloud_nat": False}, "cloud-nat", None, 0),
        "`gcloud compute routers create default-router --network=default --region=us-central1 --project=emulated` and "
        "`gcloud compute routers nats create default-nat --router=default-router --region=us-central1 --project=emulated "
        "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges`",
    ),
    "API of Compute Engine": (
        *(IAP, {"disabled_apis": ["compute.googleapis.com"]}, "firewall", None, 0),
        "`gcloud services enable compute.googleapis.com --project=emulated`",
    ),
}
MISSING["role of OS Login"][1]["missing_permissions"] = [  # type: ignore[index]
    "compute.instances.osLogin",
    "compute.instances.osAdminLogin",
]


@pytest.mark.parametrize(("access", "settings", "name", "live", "code", "fix"), MISSING.values(), ids=MISSING)
def test_what_is_missing_is_named_with_the_command_that_adds_it(
    tpujob: Tpujob, access: str, settings: dict[str, Any], name: str, live: bool | None, code: int, fix: str
) -> None:
    configure(tpujob, access)
    tpujob.settings(**settings)
    said, done = examined(tpujob)
    assert (check(said, name)["live"], check(said, name)["fix"], done.returncode) == (live, fix, code)
    others = [each for each in said["checks"] if each["name"] != name and each["code"]]
    assert not others, "one thing is missing"


@pytest.mark.parametrize(("name", "permission"), [
    ("firewall", "compute.firewalls.list"), ("private-google-access", "compute.subnetworks.list"),
    ("cloud-nat", "compute.routers.list"),
])  # fmt: skip
def test_what_the_user_may_not_read_is_not_known_and_no_failure(tpujob: Tpujob, name: str, permission: str) -> None:
    configure(tpujob, IAP)
    tpujob.settings(missing_permissions=[permission])
    said, done = examined(tpujob)
    found = check(said, name)
    assert done.returncode == 0 and found["live"] is None
    assert found["text"].startswith("not known whether")
    assert found["text"].endswith(f"Required '{permission}' permission for 'projects/emulated'")


def test_an_api_that_does_not_answer_is_not_known(tpujob: Tpujob) -> None:
    tpujob.fault("drop", "compute.firewalls.list")
    said, done = examined(tpujob)
    assert done.returncode == 0 and check(said, "firewall")["live"] is None


def test_a_network_and_a_subnetwork_of_another_project_are_asked_there(tpujob: Tpujob) -> None:
    tpujob.settings(networks=["default", "shared"], private_google_access=False, ssh_from=[])
    configure(tpujob, "{via: iap, subnetwork: projects/host-project/regions/us-central1/subnetworks/shared}")
    said, _ = examined(tpujob)
    assert "create shared-allow-iap --network=shared" in check(said, "firewall")["fix"]
    for name in ("firewall", "private-google-access"):
        assert check(said, name)["fix"].endswith("--project=host-project`")


@pytest.mark.ci
def test_an_open_slice_is_logged_in_to_by_the_way_that_it_has(tpujob: Tpujob) -> None:
    configure(tpujob, "{via: iap, os_login: on}")
    assert tpujob("up", "mine", "--accelerator", "v5litepod-16").returncode == 0
    said, done = examined(tpujob)
    assert done.returncode == 0
    tried = check(said, "ssh")
    assert tried["live"] is True
    assert "mine: logged in to all 4 workers through Identity-Aware Proxy, with OS Login, in" in tried["text"]
    assert not names(said) & {"iap", "os-login", "firewall"}, "the login has shown that they are right"

    tpujob.settings(missing_permissions=["iap.tunnelInstances.accessViaIAP"])
    said, done = examined(tpujob)
    tried = check(said, "ssh")
    assert tried["live"] is False and "refuses (4033" in tried["text"]
    assert done.returncode == tried["code"] == 77
    assert check(said, "iap")["fix"] == f"{GRANT}roles/iap.tunnelResourceAccessor`", "and then the cause is looked for"
    tpujob.settings(missing_permissions=[])
    assert tpujob("down", "mine").returncode == 0


def test_a_watchdog_without_private_google_access_is_not_armed(tpujob: Tpujob) -> None:
    configure(tpujob, IAP)
    tpujob.settings(private_google_access=False)
    planned = tpujob("plan", tpujob.job(f"name: way\ntpu: {{zone: {ZONE}}}\ncommand: 'true'\n"))
    assert "their watchdog needs Private Google Access" in planned.text
    assert tpujob("up", "mine").returncode == 0
    said, done = examined(tpujob)
    assert done.returncode == 0
    assert check(said, "watchdog")["live"] is False
    assert check(said, "private-google-access")["live"] is False
    assert tpujob("down", "mine").returncode == 0


def test_the_way_of_a_job_file_and_of_via_comes_before_that_of_the_settings(tpujob: Tpujob) -> None:
    tpujob.settings(missing_permissions=["iap.tunnelInstances.accessViaIAP"])
    job = tpujob.job(f"name: shy\ntpu: {{zone: {ZONE}}}\naccess: {IAP}\ncommand: 'true'\n")
    for words, whose in (([job], "of the job shy"), (["--via", "iap"], "with this --via")):
        said, done = examined(tpujob, *map(str, words))
        assert done.returncode == 77
        text = check(said, "access")["text"]
        assert text.startswith(f"the workers {whose} are reached through Identity-Aware Proxy: `via: iap`")
        assert check(said, "iap")["fix"] == f"{GRANT}roles/iap.tunnelResourceAccessor`"
    said, done = examined(tpujob, str(job), "--via", "external")
    assert done.returncode == 0 and "iap" not in names(said)


def test_a_run_that_cannot_connect_names_the_doctor_of_its_job(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "FRESH_S", 0.0)  # the relay is asked once
    tpujob.settings(missing_permissions=["iap.tunnelInstances.accessViaIAP"])
    job = tpujob.job(f"name: shy\ntpu: {{zone: {ZONE}}}\naccess: {IAP}\ncommand: 'true'\n")
    done = tpujob("run", job)
    assert done.returncode == 77 and f"`tpujob doctor {job}` prints the command" in " ".join(done.stderr.split())
