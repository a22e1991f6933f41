"""`tpujob doctor`: what it finds on machines in different condition and on the way to workers, and when it gives up."""

import json
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.guarantee import health_checks
from orchestrator.places.vms import reach
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.ledger.rows import GcRun
from orchestrator.settings import Target
from tests.cli_fixture import Tpujob
from tests.waiting import until

ZONE = "us-central1-a"


def examined(cli: Tpujob, *words: str, **env: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    done = cli("doctor", "--json", *words, env={"XDG_RUNTIME_DIR": "", **env})
    return json.loads(done.stdout), done


def check(said: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in said["checks"] if each["name"] == name]
    return found


def test_a_fresh_machine_is_usable_and_learns_what_is_not_live(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_GUARDIAN="on")
    assert done.returncode == 0, done.stderr
    assert said["usable"] and said["slices"] == [] and said["worst_usd"] == 0
    assert check(said, "cloud")["live"] and "gcloud config set project" in check(said, "cloud")["fix"]
    assert "zones" in check(said, "credentials")["text"]
    guardian = check(said, "guardian")
    assert guardian["live"] and guardian["text"].startswith("armed in ")
    assert check(said, "timer")["live"] is False and check(said, "timer")["fix"] == "`tpujob install-gc`"
    assert check(said, "watchdog")["live"] is None
    assert check(said, "gc")["live"] is None
    log = tpujob.directory / "state" / "guardian.log"
    assert log.exists(), "a guardian really started"


def test_gc_runs_that_ran_are_counted_by_age(tpujob: Tpujob) -> None:
    assert tpujob("gc").returncode == 0
    assert tpujob("gc", "--local").returncode == 0
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is True
    assert "the last local gc was" in check(said, "timer")["text"]
    with sqlite3.connect(tpujob.directory / "state" / "ledger.sqlite3") as db:
        db.execute("update gc_run set at = ?", (time.time() - 2 * 86400,))
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is False and "2 d ago" in check(said, "gc")["text"]


def test_a_gc_run_of_some_zones_is_no_gc_run_of_the_project(tpujob: Tpujob) -> None:
    assert tpujob("gc", "--zone", ZONE).returncode == 0
    said, _ = examined(tpujob)
    assert check(said, "gc")["live"] is None


def test_what_is_alive_is_shown_with_its_watchdogs_and_its_worst_case(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    until(lambda: all(each["armed"] for each in examined(tpujob)[0]["slices"][0]["watchdogs"]))
    said, _ = examined(tpujob)
    (found,) = said["slices"]
    assert (found["name"], found["mode"], found["state"]) == ("alice", "hold", "READY")
    assert found["claimed_until"] == pytest.approx(found["deadline"], abs=2)
    assert found["worst_usd"] == pytest.approx(9.6 * 24, rel=0.01) and said["worst_usd"] == found["worst_usd"]
    assert check(said, "watchdog")["live"] is True
    text = tpujob("doctor").stdout
    assert "watchdog armed on 1 of 1" in text and " emulated\n" in text and "worst case" in text
    assert tpujob("down", "alice").returncode == 0


def test_a_slice_whose_watchdog_says_nothing_is_not_called_safe(tpujob: Tpujob) -> None:
    tpujob.settings(startup_script=False)
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    said, done = examined(tpujob)
    assert done.returncode == 0
    unarmed = check(said, "watchdog")
    assert unarmed["live"] is False and "alice: worker0: its watchdog has published nothing" in unarmed["text"]
    assert "nothing bounds it if this machine is gone" in tpujob("doctor").stdout
    assert tpujob("down", "alice").returncode == 0


def test_no_guardian_is_said_and_one_that_cannot_start_makes_it_unusable(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_GUARDIAN="off")
    assert done.returncode == 0 and check(said, "guardian")["live"] is False
    (tpujob.directory / "state" / "guardian.log").mkdir()
    said, done = examined(tpujob, TPUJOB_GUARDIAN="on")
    assert done.returncode == 70 and not said["usable"]


def test_in_a_ci_job_it_says_what_that_means(tpujob: Tpujob) -> None:
    said, _ = examined(tpujob, TPUJOB_GUARDIAN="on", CI="true")
    assert "but not the end of this CI job" in check(said, "guardian")["text"]


def test_settings_that_cannot_be_used_are_the_diagnosis(tpujob: Tpujob) -> None:
    said, done = examined(tpujob, TPUJOB_CLOUD="azure")
    assert done.returncode == 64 and "'azure' is not a cloud" in check(said, "cloud")["text"]


def test_a_token_that_is_refused_is_77(tpujob: Tpujob, tmp_path: Path) -> None:
    tpujob.admin("GET", "status")
    from cloud_tpu_emulator.daemon import control

    (tmp_path / "token").write_text("wrong")
    url = control.ensure_running(tpujob.emulator_directory).url
    said, done = examined(tpujob, TPUJOB_ENDPOINT=url, TPUJOB_TOKEN_FILE=str(tmp_path / "token"))
    assert done.returncode == 77 and check(said, "credentials")["live"] is False


def test_a_state_directory_or_ledger_that_cannot_be_used_is_the_diagnosis(tpujob: Tpujob) -> None:
    tpujob.admin("GET", "status")
    (tpujob.directory / "state" / "ledger.sqlite3").write_bytes(b"not a database" * 1000)
    said, done = examined(tpujob)
    assert done.returncode == 70 and "cannot be used" in check(said, "state")["text"]
    assert said["slices"] is None and said["worst_usd"] is None
    for layer in ("watchdog", "timer", "gc"):
        assert "not known" in check(said, layer)["text"] and not check(said, layer)["live"], check(said, layer)
    assert "worst case" not in tpujob("doctor").stdout
    (tpujob.directory / "state").chmod(0o777)
    said, done = examined(tpujob)
    assert done.returncode == 64
    (tpujob.directory / "state").chmod(0o700)


def test_a_ledger_that_cannot_say_the_time_ends_no_diagnosis(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.record_gc(GcRun(time.time(), "emulated", "some-project", "all", True, 0, 0))
    assert health_checks.gc(ledger, Target("emulated", "some-project")).live is True
    with sqlite3.connect(ledger.path) as db:
        db.execute("drop table anchor")
    assert health_checks.gc(ledger, Target("emulated", "some-project")).live is None


def test_what_is_owed_outranks_everything(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    tpujob.admin("POST", "faults", {"operation": "nodes.*", "kind": "status", "status": 403})
    tpujob.as_process("down", "alice", env={"TPUJOB_CRASH_AT": "Sleep:1:before"})
    with sqlite3.connect(tpujob.directory / "state" / "ledger.sqlite3") as db:
        assert list(db.execute("select state from lease")) == [("down",)]
    said, done = examined(tpujob)
    assert done.returncode == 75 and said["slices"][0]["lease"] == "down"


ACCOUNT = "user:developer@emulated.example"
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
