"""Which cloud is used: the sources of settings, granted quota, and the line of each mistake."""

import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator import settings
from orchestrator.capacity.grants import Grant
from orchestrator.errors import ConfigError
from orchestrator.job.cluster import ClusterWish
from orchestrator.promise.lease.access import AccessWish
from orchestrator.settings import Target, resolve
from tests.waiting import ran


class Home:
    """A home directory whose configuration files a test writes, and the environment that goes with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {"HOME": str(path)}

    def write(self, where: str, text: str) -> Path:
        path = self.path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def own(self, text: str) -> Path:
        return self.write(".config/tpujob/settings.yaml", text)

    def gcloud(self, text: str, name: str = "default") -> None:
        self.write(f".config/gcloud/configurations/config_{name}", text)

    def adc(self, **fields: str) -> None:
        self.write(".config/gcloud/application_default_credentials.json", json.dumps(fields))

    def resolve(self, cloud: str | None = None, project: str | None = None, **environ: str) -> Target:
        return resolve(cloud, project, self.environ | environ)

    def refusal(self, cloud: str | None = None, project: str | None = None, **environ: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.resolve(cloud, project, **environ)
        assert caught.value.exit_code == 64
        assert "\n" not in caught.value.message
        return f"{caught.value.message} | {caught.value.hint or ''}"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_without_any_configuration_it_is_the_emulator_and_the_reason_is_shown(home: Home) -> None:
    target = home.resolve()
    assert (target.kind, target.project, target.zone) == ("emulated", "emulated", None)
    assert "EMULATED" in target.why
    assert "no Google Cloud project is configured" in target.why


def test_the_sources_of_a_project_in_order(home: Home) -> None:
    """Each source is added before the one that it must yield to."""

    def project(**environ: str) -> tuple[str, str]:
        target = home.resolve(**environ)
        assert target.kind == "google"
        assert target.source in target.why
        return target.project, target.source

    home.adc(type="authorized_user", quota_project_id="adc-quota")
    assert project() == ("adc-quota", "application default credentials")
    assert project(GOOGLE_CLOUD_PROJECT="from-variable") == ("from-variable", "GOOGLE_CLOUD_PROJECT")
    home.gcloud("[core]\nproject = gcloud-proj\n")
    assert project(GOOGLE_CLOUD_PROJECT="from-variable") == ("gcloud-proj", "gcloud's configuration 'default'")
    assert project(CLOUDSDK_CORE_PROJECT="sdk-variable") == ("sdk-variable", "CLOUDSDK_CORE_PROJECT")
    path = home.own("project: own-project\n")
    assert project(CLOUDSDK_CORE_PROJECT="sdk-variable") == ("own-project", str(path))
    assert project(TPUJOB_PROJECT="env-project") == ("env-project", "TPUJOB_PROJECT")
    target = home.resolve(None, "cli-project", TPUJOB_PROJECT="env-project")
    assert (target.project, target.source) == ("cli-project", "--project")


def test_a_service_account_file_names_its_project(home: Home) -> None:
    key = home.write("key.json", json.dumps({"type": "service_account", "project_id": "sa-project"}))
    target = home.resolve(GOOGLE_APPLICATION_CREDENTIALS=str(key))
    assert (target.project, target.source) == ("sa-project", "GOOGLE_APPLICATION_CREDENTIALS")


def test_an_adc_file_without_a_project_configures_none(home: Home) -> None:
    home.adc(type="authorized_user", client_id="x")
    assert home.resolve().kind == "emulated"


def test_a_named_credentials_file_that_is_unusable_is_refused(home: Home) -> None:
    assert "does not exist" in home.refusal(GOOGLE_APPLICATION_CREDENTIALS=str(home.path / "none.json"))
    broken = home.write("key.json", "{")
    assert "is not JSON" in home.refusal(GOOGLE_APPLICATION_CREDENTIALS=str(broken))


def test_gclouds_active_configuration_is_the_one_that_counts(home: Home) -> None:
    home.gcloud("[core]\nproject = default-proj\n")
    home.gcloud("[core]\nproject = work-project\n[compute]\nzone = us-central1-a\n", "work")
    assert home.resolve().project == "default-proj"
    assert home.resolve(CLOUDSDK_ACTIVE_CONFIG_NAME="work").project == "work-project"
    home.write(".config/gcloud/active_config", "work\n")
    assert (home.resolve().project, home.resolve().zone) == ("work-project", "us-central1-a")
    elsewhere = home.write("sdk/configurations/config_default", "[core]\nproject = other-proj\n").parents[1]
    assert home.resolve(CLOUDSDK_CONFIG=str(elsewhere)).project == "other-proj"


def test_a_zone_comes_from_the_environment_then_the_settings_file_then_gcloud(home: Home) -> None:
    home.gcloud("[core]\nproject = gcloud-proj\n[compute]\nzone = us-central1-a\n")
    assert home.resolve().zone == "us-central1-a"
    assert home.resolve("emulated").zone is None, "gcloud's zone is about Google's cloud"
    home.own("zone: europe-west4-b\n")
    assert home.resolve().zone == home.resolve("emulated").zone == "europe-west4-b"
    assert home.resolve(TPUJOB_ZONE="us-east5-b").zone == "us-east5-b"
    assert home.resolve(TPUJOB_ZONE="us-central1").zone == "us-central1", "a region is a place, too"


def test_gclouds_zone_without_tpus_is_ignored_with_a_remark(home: Home) -> None:
    home.gcloud("[core]\nproject = gcloud-proj\n[compute]\nzone = us-west1-x\n")
    target = home.resolve()
    assert target.zone is None
    assert "us-west1-x, has no TPUs and is not used" in target.why


def test_an_explicit_cloud_goes_before_every_project(home: Home) -> None:
    home.gcloud("[core]\nproject = gcloud-proj\n")
    assert home.resolve("emulated").project == "emulated"
    assert home.resolve("emulated", "my-project").project == "my-project"
    assert home.resolve(None, "my-project", TPUJOB_CLOUD="emulated").kind == "emulated"
    assert home.resolve("google", TPUJOB_CLOUD="emulated").project == "gcloud-proj"


def test_google_without_any_project_is_refused(home: Home) -> None:
    assert "no Google Cloud project to use | name one with --project" in home.refusal("google")
    assert "no Google Cloud project to use" in home.refusal(TPUJOB_CLOUD="google")


def test_a_cloud_that_does_not_exist_is_refused(home: Home) -> None:
    assert "--cloud: 'aws' is not a cloud | it is `emulated` or `google`" in home.refusal("aws")
    assert "TPUJOB_CLOUD: 'prod'" in home.refusal(TPUJOB_CLOUD="prod")


def test_a_shell_that_points_gcloud_at_an_emulator_does_not_select_google(home: Home) -> None:
    """`tpujob emulator up` prints such an environment, with a project in it, for gcloud."""
    gcloud_here = {"CLOUDSDK_CORE_PROJECT": "emulated", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:8080/"}
    home.adc(quota_project_id="adc-quota")
    target = home.resolve(**gcloud_here)
    assert target.kind == "emulated"
    assert "gcloud is pointed at http://127.0.0.1:8080/" in target.why
    assert home.resolve("google", **gcloud_here).project == "adc-quota"
    assert home.resolve(None, "my-project", **gcloud_here).project == "my-project"


@pytest.mark.parametrize(
    "project", ["-oProxyCommand=x", "MyProject", "a" * 31, "short", "ends-", "a b cdef", "../../x"]
)
def test_an_invalid_project_id_is_refused_from_every_source(home: Home, project: str) -> None:
    assert "--project" in home.refusal(None, project)
    assert "--project" in home.refusal("emulated", project)
    assert "TPUJOB_PROJECT" in home.refusal(TPUJOB_PROJECT=project)
    assert "CLOUDSDK_CORE_PROJECT" in home.refusal(CLOUDSDK_CORE_PROJECT=project)


@pytest.mark.parametrize("zone", ["; rm -rf ~", "../..", "us-centrall1-", "-z", "US-CENTRAL1-A"])
def test_an_invalid_zone_is_refused(home: Home, zone: str) -> None:
    assert "TPUJOB_ZONE" in home.refusal(TPUJOB_ZONE=zone)
    home.own(f"zone: {json.dumps(zone)}\n")
    assert "settings.yaml:1: zone: " in home.refusal()


def test_a_mistyped_zone_gets_the_nearest_one(home: Home) -> None:
    assert "nearest: us-central1" in home.refusal(TPUJOB_ZONE="us-centrall1-a-")


def test_the_settings_file_has_these_keys(home: Home) -> None:
    home.own(
        "# mine\nproject: my-project\nzone: us-central1-a\nservice_account: vm@my-project.iam.gserviceaccount.com\n"
        "access: {network: projects/host-proj/global/networks/shared}\nruns_dir: ~/runs\nemulated_cores: 4\n"
        "gke: {context: tpus, queue: tpu, image: us-docker.pkg.dev/p/r/train:1}\n"
    )
    target = home.resolve()
    assert (target.kind, target.project, target.zone) == ("google", "my-project", "us-central1-a")
    assert target.service_account == "vm@my-project.iam.gserviceaccount.com"
    assert target.access.network == "projects/host-proj/global/networks/shared"
    assert target.gke == ClusterWish(context="tpus", queue="tpu", image="us-docker.pkg.dev/p/r/train:1")
    assert (target.runs_dir, target.emulated_cores) == (str(home.path / "runs"), 4)


def test_an_empty_settings_file_sets_nothing(home: Home) -> None:
    home.own("# nothing yet\n")
    assert home.resolve() == Home(home.path).resolve()
    assert home.resolve().access == AccessWish()
    assert home.resolve().gke == ClusterWish()


@pytest.mark.parametrize(("text", "message"), [
    ("project: my-project\nproyect: x\n", ":2: proyect: unknown setting | the settings are project, zone"),
    ("zone: us-central1-a\nzone: us-east5-b\n", ":2: zone: set twice"), ("- project\n", "lines of the form"),
    ("just words\n", "lines of the form"), ("project: [a, b]\n", ":1: project: needs one plain value"),
    ("project:\n", ":1: project: needs one plain value"), ("project: 'my-project\n", "not valid YAML"),
    ("a: &a [*a]\n", ":1: a: "), ("project: my-project\n---\nproject: my-project\n", "not valid YAML"),
    ("emulated_cores: 0\n", "whole number from 1 to 64"), ("emulated_cores: ²\n", "whole number from 1 to 64"),
    ("emulated_cores: 2.5\n", "whole number from 1 to 64"), ("runs_dir: runs\n", "relative"),
    ("service_account: '-x'\n", "not a name"),
    ("access: {network: 'a b'}\n", "access.network: `a b` is not a name"),
    ("access:\n  via: ipa\n", ":2: access.via: must be"),
    ("access:\n  vai: iap\n", ":2: access.vai: unknown key; did you mean `via`?"),
    ("access: iap\n", "access: expected a mapping"),
    ("access: {via: iap, ssh_proxy_command: nc %h %p}\n", "`via: iap` uses none"),
    ("access: {ssh_proxy_command: 'nc %q'}\n", "`%q` means nothing here"),
    ("access: {tags: [A]}\n", "not a network tag"),
    ("gke: {image: 'a b'}\n", "gke.image: `a b` is not a container image"),
    ("gke:\n  pod: {nodeNam: a}\n", ":2: gke.pod.nodeNam: is no field of a pod; did you mean `nodeName`?"),
    ("gke:\n  pod: {nodeSelector: {a: '${env:B}'}}\n", ":2: gke.pod.nodeSelector.a: `${env:…}` is read only in `env:`"),
    ("gke:\n  imgae: a\n", ":2: gke.imgae: unknown key; did you mean `image`?"),
    ("gke:\n  context: a\n  cluster: projects/p-123/locations/us-east5/clusters/c\n",
     ":3: gke.cluster: and `context` both"),
    ("gke: {machine_type: ct6e-standard-4t}\n", "write it in the job file"),
    ("quota: 5\n", ":1: quota: needs a list"), ("quota:\n", ":1: quota: needs a list"),
    ("zone: us-central1-a\nquota:\n  - many\n", ":3: quota: is not a grant; write for example `5 on-demand"),
    ("quota:\n  - {accelerator: v3-8}\n", ":2: quota: lacks count"),
    ("quota:\n  - {accelerator: v3-8, count: [5], zone: x}\n", ":2: quota: is neither a line nor a mapping of plain"),
    ("quota:\n  - [5]\n", ":2: quota: is neither a line nor a mapping of plain values"),
    ("quota: []\nquota: []\n", ":2: quota: set twice"),
])  # fmt: skip
def test_a_mistake_in_the_settings_file_is_reported_with_its_place(home: Home, text: str, message: str) -> None:
    path = home.own(text)
    refusal = home.refusal()
    assert refusal.startswith(str(path))
    assert message in refusal


def test_a_tag_in_the_settings_file_constructs_nothing(home: Home) -> None:
    home.own('project: !!python/object/apply:os.system ["touch x"]\n')
    assert "needs one plain value" in home.refusal()


def test_a_byte_order_mark_of_the_settings_file_is_passed_over_and_utf_16_is_refused(home: Home) -> None:
    home.own("\ufeffproject: my-project\naccess: {via: iap}\n")
    assert (home.resolve().project, home.resolve().access.via) == ("my-project", "iap")
    (home.path / ".config/tpujob/settings.yaml").write_bytes("project: my-project\n".encode("utf-16"))
    assert "settings.yaml is UTF-16 or binary; save it as UTF-8" in home.refusal()


def test_a_settings_file_that_cannot_be_read_is_refused(home: Home) -> None:
    (home.path / ".config/tpujob/settings.yaml").mkdir(parents=True)
    assert "cannot be read" in home.refusal()
    home.gcloud("[core\nproject=x")
    (home.path / ".config/tpujob/settings.yaml").rmdir()
    assert "gcloud's configuration cannot be read" in home.refusal()


def test_xdg_moves_the_settings_file_and_a_relative_base_does_not_count(home: Home) -> None:
    home.write("xdg/tpujob/settings.yaml", "project: xdg-project\n")
    assert home.resolve(XDG_CONFIG_HOME=str(home.path / "xdg")).project == "xdg-project"
    assert home.resolve(XDG_CONFIG_HOME="xdg").kind == "emulated"


@pytest.mark.parametrize("endpoint", [
    "http://evil:80", "http://169.254.169.254", "http://127.0.0.1@evil.com:80", "https://tpu.googleapis.com",
    "http://127.0.0.1.evil.com:80",
    "http://user:word@127.0.0.1:80", "http://0.0.0.0:80", "http://127.0.0.1:99999", "http://127.0.0.1",
    "127.0.0.1:80", "file:///etc/passwd", "http://127.0.0.1:80/path", "http://localhost.evil.com:80",
])  # fmt: skip
def test_an_endpoint_that_is_not_loopback_is_refused(home: Home, endpoint: str) -> None:
    assert "is not an address on this machine's loopback" in home.refusal(TPUJOB_ENDPOINT=endpoint)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8080", "http://[::1]:8080/", "http://localhost:8080"])
def test_an_endpoint_on_loopback_is_an_emulator_and_never_google(home: Home, endpoint: str) -> None:
    home.gcloud("[core]\nproject = gcloud-proj\n")
    target = home.resolve(TPUJOB_ENDPOINT=endpoint, TPUJOB_TOKEN_FILE="/t")
    assert (target.kind, target.project, target.endpoint, target.token_file) == ("emulated", "emulated", endpoint, "/t")
    assert endpoint in target.why
    assert "drop one" in home.refusal("google", TPUJOB_ENDPOINT=endpoint)


def test_the_state_directory_has_three_possible_places(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert settings.state_dir(home) == tmp_path / ".local/state/tpujob"
    assert settings.state_dir(home | {"XDG_STATE_HOME": str(tmp_path / "s")}) == tmp_path / "s/tpujob"
    assert settings.state_dir(home | {"TPUJOB_STATE_DIR": str(tmp_path / "mine")}) == tmp_path / "mine"


def test_the_state_directory_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        assert settings.open_state_dir(path) == path
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    settings.open_state_dir(path)
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_other_users_can_write_is_refused(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            settings.open_state_dir(path)
        return f"{caught.value.message} | {caught.value.hint}"

    writable = tmp_path / "writable"
    writable.mkdir()
    writable.chmod(0o777)
    assert f"`chmod 700 {writable}`" in refusal(writable)
    writable.chmod(0o720)
    assert f"`chmod 700 {writable}`" in refusal(writable)

    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "is a symbolic link" in refusal(tmp_path / "link")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert "TPUJOB_STATE_DIR" in refusal(tmp_path / "dangling")
    (tmp_path / "file").write_text("")
    assert "cannot be used" in refusal(tmp_path / "file")


def test_a_state_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        settings.open_state_dir(tmp_path)


def test_deciding_needs_neither_yaml_nor_the_cloud_client(tmp_path: Path) -> None:
    code = (
        "import sys; from orchestrator import settings; t = settings.resolve(None, None, {'HOME': sys.argv[1]}); "
        "import orchestrator.places.tpu.api.client, orchestrator.places.google.credentials; "
        "print(t.kind, [m for m in ('yaml', 'requests', 'google.auth', 'grpc', 'pydantic') if m in sys.modules])"
    )
    done = ran([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert done.stdout.strip() == "emulated []"


def test_grants_are_written_as_keys_or_pasted_from_an_email(home: Home) -> None:
    home.own("""\
zone: us-central1-a
quota:
  - {accelerator: v3-8, count: 5, zone: europe-west4-a}
  - accelerator: v2-8
    count: 100
    zone: us-central1-f
    spot: true
  - 32 spot Cloud TPU v4 chips in zone us-central2-b
""")
    assert home.resolve().grants == (
        Grant("v3-8", 5, "europe-west4-a"),
        Grant("v2-8", 100, "us-central1-f", spot=True),
        Grant("v4", 32, "us-central2-b", spot=True),
    )
    home.own("quota: []\n")
    assert home.resolve().grants == ()


def test_the_owner_is_that_of_the_settings_and_the_account_that_of_gcloud(home: Home) -> None:
    home.gcloud("[core]\naccount = Alice.L@example.com\nproject = my-project\n")
    assert (home.resolve().owner, home.resolve().account) == (None, "Alice.L@example.com")
    home.own("owner: alice\n")
    assert home.resolve().owner == "alice"
    assert home.resolve(TPUJOB_OWNER="bob").owner == "bob"


def test_an_owner_that_labels_cannot_have_is_refused_with_its_line(home: Home) -> None:
    home.own("owner: Alice\n")
    assert "settings.yaml:1: owner: 'Alice' is not a name for an owner" in home.refusal()
    home.own("owner: alice\n")
    assert "TPUJOB_OWNER: 'a_b' is not a name for an owner" in home.refusal(TPUJOB_OWNER="a_b")
