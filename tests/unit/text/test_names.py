"""Names, durations and sizes, as people write and read them; and the environment and scripts of a job, by a real bash."""

import fcntl
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.promise.guardian_process import with_absolute_paths
from orchestrator.text import names, scripts
from orchestrator.text.scripts import Environment, of_training
from orchestrator.text.units import (
    format_duration,
    format_size,
    format_usd,
    format_usd_per_hour,
    parse_duration,
    parse_size,
)
from tests.waiting import ran


def test_a_run_id_is_ten_letters_without_the_ambiguous_ones() -> None:
    assert names.new_run_id(0) == "0000000000"
    assert names.new_run_id(2**50 - 1) == "zzzzzzzzzz"
    assert names.new_run_id(0b00001_00010) == "0000000012"


@given(st.integers(0, 2**50 - 1), st.integers(0, 2**50 - 1))
def test_different_bits_give_different_run_ids(one: int, other: int) -> None:
    assert (names.new_run_id(one) == names.new_run_id(other)) == (one == other)
    assert not set(names.new_run_id(one)) & set("ilou")


def test_more_bits_than_a_run_id_holds_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        names.new_run_id(2**50)


def test_an_owner_id_is_stable_and_differs_by_user_and_machine() -> None:
    assert names.owner_id("ada", "laptop") == names.owner_id("ada", "laptop")
    others = {names.owner_id("ada", "desktop"), names.owner_id("bob", "laptop"), names.owner_id("adal", "aptop")}
    assert len(others | {names.owner_id("ada", "laptop")}) == 4
    assert names.owner_id("\udcff", "x") != names.owner_id("", "x")  # a user name that is not text


@given(st.text(), st.integers(0, 2**50 - 1))
def test_every_node_name_is_allowed_by_the_api(user: str, bits: int) -> None:
    owner, run = names.owner_id(user, "machine"), names.new_run_id(bits)
    node = names.node_name(owner, run)
    assert node == f"tpujob-{owner}-{run}"
    assert names.node_problem(node) is None


def test_the_labels_are_those_that_gc_reads() -> None:
    labels = names.labels(
        lease_id="7q2m4x1pzt", owner="k3f9ab", claimed_until=1795255421.9, deadline=1795341821.0, name="mnist",
        mode="attached",
    )  # fmt: skip
    assert labels == {
        "tpujob": "1", "tpujob-lease-id": "7q2m4x1pzt", "tpujob-owner": "k3f9ab",
        "tpujob-claimed-until": "1795255421", "tpujob-deadline": "1795341821", "tpujob-name": "mnist",
        "tpujob-mode": "attached",
    }  # fmt: skip


@pytest.mark.parametrize(("node", "labels", "ours"), [
    ("tpujob-k3f9ab-7q2m4x1pzt", {"tpujob": "1"}, True), ("tpujob-k3f9ab-7q2m4x1pzt", {}, False),
    ("training", {"tpujob": "1"}, False), ("tpujobs", {"tpujob": "1"}, False),
])  # fmt: skip
def test_a_node_is_ours_by_name_and_label_only_together(node: str, labels: dict[str, str], ours: bool) -> None:
    assert names.is_ours(node, labels) is ours


@given(st.text())
def test_any_text_becomes_a_valid_label_value(text: str) -> None:
    assert re.fullmatch("[a-z0-9_-]{0,63}", names.to_label_value(text))


@given(st.text())
def test_any_text_becomes_a_job_name(text: str) -> None:
    assert names.job_name_problem(names.to_job_name(text)) is None


@pytest.mark.parametrize("text", ["my-project-1", "a23456", "a" * 30, "example.com:my-project"])
def test_project_ids_of_google_are_accepted(text: str) -> None:
    assert names.project_problem(text) is None


@pytest.mark.parametrize("text", [
    "-oProxyCommand=x", "My-Project", "a" * 31, "short", "ends-with-", "1abcdef", "a/../../b", "", "abcdef\n",
    "prоject-1",
])  # fmt: skip
def test_an_invalid_project_id_is_refused_with_the_rule(text: str) -> None:
    problem = names.project_problem(text)
    assert problem is not None and "6 to 30 lower-case letters" in problem


@pytest.mark.parametrize("text", ["us-central1-a", "northamerica-northeast1-b", "europe-west12-c"])
def test_zones_are_recognised_by_their_form(text: str) -> None:
    assert names.zone_problem(text) is None
    assert names.region_problem(text.rpartition("-")[0]) is None


@pytest.mark.parametrize(
    "text", ["us-central1", "../..", "; rm -rf ~", "us-central1-a\n", "-", "US-CENTRAL1-A", "us-central1-aa"]
)
def test_an_invalid_zone_is_refused(text: str) -> None:
    assert names.zone_problem(text) == "is not a zone; zones look like us-central1-a"


@pytest.mark.parametrize("text", ["a", "node-1", "a" * 61])
def test_node_names_of_the_api_are_accepted(text: str) -> None:
    assert names.node_problem(text) is None


@pytest.mark.parametrize("text", ["", "A", "1a", "a-", "-a", "a_b", "a" * 62, "a/b", "$(reboot)", "a\n"])
def test_an_invalid_node_name_is_refused(text: str) -> None:
    assert names.node_problem(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1.5h", 5400), (" 1 h 30 m ", 5400)],
)
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "example"), [
    *((text, "90s, 30m, 1h30m or 2d") for text in ("", "soon", "-5m", "30m1h", "1h1h", "1e3s", "٣m")),
    ("45", "45m or 45h"), ("12:30:00", "12h30m"), ("1:30", "1h30m"),
])  # fmt: skip
def test_anything_else_is_refused_with_an_example(text: str, example: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == f"write numbers with units, such as {example}"


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (2.14, "2.1 s"), (58.2, "58.2 s"), (59.96, "1 m"), (72, "1 m 12 s"), (3599.7, "1 h"),
    (11100, "3 h 5 m"), (86399, "1 d"), (90000, "1 d 1 h"), (-72, "-1 m 12 s"),
    (float("inf"), "unknown"), (float("nan"), "unknown"),
])  # fmt: skip
def test_durations_are_formatted_in_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
@example(3599.5)
def test_a_formatted_duration_parses_as_nearly_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.03, abs=0.051)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.1, "$0.10"), (0.0, "$0.00"), (0.001, "<$0.01"), (1234.5, "$1,234.50"), (None, "an unknown amount")],
)
def test_dollars_never_hide_that_something_was_paid_or_is_unknown(amount: float | None, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(9.6, "about $9.60/h"), (0.0, "$0.00/h (granted)"), (None, "price unknown")]
)
def test_a_price_is_about(amount: float | None, text: str) -> None:
    assert format_usd_per_hour(amount) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("50GB", 50 * 10**9), ("1.5 TB", 1_500 * 10**9), ("512MiB", 512 << 20), ("7 b", 7), ("10kB", 10_000)],
)
def test_a_size_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "50", "GB", "50 gigabytes", "-1GB", "1e9B", "５GB", "50G"])
def test_an_invalid_size_gets_advice(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 500MB, 50GB or 1\.5TB"):
        parse_size(text)


@pytest.mark.parametrize(("size_bytes", "text"), [
    (0, "0 bytes"), (1, "1 byte"), (812, "812 bytes"), (81_200, "81 KB"), (999_600, "1.0 MB"), (3_240_000_000, "3.2 GB"),
    (5e15, "5,000.0 TB"),
])  # fmt: skip
def test_a_size_is_shown_with_few_figures(size_bytes: float, text: str) -> None:
    assert format_size(size_bytes) == text


ASKED = Environment(what="requirements.txt", requirements='alpha\nit\'s "quoted"\n', python="3.12")


def bash(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return ran(["bash", "-c", script], env=env)


@pytest.mark.parametrize("change", [
    {"requirements": "beta\n"}, {"constraints": "alpha<1\n"}, {"python": "3.13"}, {"base": "$OTHER/python"},
    {"code_sha256": "0"},
])  # fmt: skip
def test_whatever_else_is_asked_for_is_another_environment(change: dict[str, str]) -> None:
    assert replace(ASKED, **change).name != ASKED.name  # type: ignore[arg-type]


def test_what_only_describes_it_leaves_its_name() -> None:
    assert replace(ASKED, what="the same by another name", install_uv=True).name == ASKED.name


def test_the_agent_gets_the_request_as_it_was_asked_for(tmp_path: Path) -> None:
    done = bash(tmp_path, ASKED.setup("exec cat") + "echo then")
    request, then = done.stdout.splitlines()
    found = json.loads(request)
    assert (found["name"], found["requirements"], then) == (ASKED.name, ASKED.requirements, "then"), done.stderr


def test_the_setup_ends_with_the_code_of_the_agent(tmp_path: Path) -> None:
    done = bash(tmp_path, ASKED.setup("exec bash -c 'exit 7'") + "echo then")
    assert (done.returncode, done.stdout) == (7, "")


@pytest.mark.parametrize("root", ["~/tpujob/envs", "{home}/a state directory"])
def test_the_jobs_python_comes_first_and_its_environment_is_locked_meanwhile(tmp_path: Path, root: str) -> None:
    asked = replace(ASKED, root=root.format(home=tmp_path))
    place = Path(asked.root.replace("~", str(tmp_path))) / asked.name
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    python.write_text("#!/bin/sh\necho it is $VIRTUAL_ENV\n")
    python.chmod(0o755)
    lock = Path(f"{place}.lock")
    lock.touch()
    done = bash(tmp_path, asked.use(f"python; flock -n '{lock}' true || echo in use"))
    assert done.stdout.splitlines() == [f"it is {place}", "in use"], done.stderr
    with lock.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_training_has_the_packages_of_its_backend_and_the_jobs_own() -> None:
    found = of_training("xla", ASKED)
    assert found.requirements.startswith("torch==2.9.0\ntorch_xla[tpu]==2.9.0\n")
    assert found.requirements.endswith(ASKED.requirements)
    assert (found.what, found.python, found.imports) == ("torch_xla and requirements.txt", "3.12", "torch, torch_xla")
    assert of_training("cpu", ASKED).name == found.name


def test_torch_tpu_has_an_environment_of_its_own_and_needs_a_newer_python() -> None:
    found = of_training("tpu", Environment())
    assert (found.what, found.imports, found.least_python) == ("torch and torch_tpu", "torch, torch_tpu", "3.11")
    assert found.name != of_training("xla", Environment()).name and "torch_xla" not in found.requirements
    assert "backend xla, which trains on the same TPU" in found.too_old and "{version}" in found.too_old


@pytest.mark.parametrize(("line", "kept", "said"), [
    ("jax[tpu]>=0.6", "jax>=0.6\n", "jax[tpu] means jax, libtpu is left out"),
    ("torch_xla[tpu, pallas]==2.9.0 ; x", "torch_xla[ pallas]==2.9.0 ; x\n",
     "torch_xla[tpu, pallas] means torch_xla[ pallas], "),
    ("libtpu==0.0.21", "", "TPU, libtpu is"), ("-f https://storage.googleapis.com/libtpu-wheels/index.html", "", ""),
    *((line, f"{line}\n", "") for line in ("jax", "jax[cuda12]", "jax[k8s,tpux]", "mylib[tpu]", "-f ./wheels")),
])  # fmt: skip
def test_without_a_tpu_the_same_requirements_mean_what_can_be_there(line: str, kept: str, said: str) -> None:
    found = Environment(requirements=f"{line}\nnumpy\n").without_tpu()
    assert found.requirements == f"{kept}numpy\n" and said in found.remark
    assert bool(found.remark) == (kept != f"{line}\n")


def test_relative_paths_are_those_of_the_directory_and_all_else_stays() -> None:
    given = {
        "KUBECONFIG": "team.yaml:/etc/kube:~/kube::", "GOOGLE_APPLICATION_CREDENTIALS": "keys/robot.json",
        "SSL_CERT_FILE": "/etc/a:b.pem", "TPUJOB_TOKEN_FILE": "", "PATH": "bin",
    }  # fmt: skip
    assert with_absolute_paths(given, "/home/me") == {
        **given,
        "KUBECONFIG": "/home/me/team.yaml:/etc/kube:~/kube::",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/keys/robot.json",
    }


PYTHON = """#!/bin/bash
echo "python3 $*" >> "$HOME/calls"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "python3"
    shim.write_text(PYTHON)
    shim.chmod(0o755)
    return tmp_path


def run(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    return ran(["bash", "-c", script], env=env)


def calls(home: Path) -> list[str]:
    return (home / "calls").read_text().splitlines() if (home / "calls").exists() else []


def test_the_main_script_of_a_training_runs_the_payload(home: Path) -> None:
    done = run(home, scripts.train_main("python3"))
    assert done.returncode == 0 and calls(home)[-1] == "python3 -m payload --config train.json"


def test_on_an_emulated_worker_the_environment_is_the_one_that_the_emulator_names(home: Path) -> None:
    own = scripts.in_lent_environment("command -v python3")
    environment = f"export TPUJOB_EMULATED_TRAINING={home / 'bin'}\n"
    assert run(home, environment + own).stdout.strip() == str(home / "bin" / "python3")
    older = run(home, own)
    assert older.returncode != 0 and "tpujob emulator stop" in older.stderr


@pytest.mark.parametrize(("worker", "found"), [("0", "lent"), ("1", "lent"), ("0", "its own")])
def test_a_lent_device_is_announced_once_before_the_command(home: Path, worker: str, found: str) -> None:
    (home / "bin" / "python3").write_text(f"#!/bin/bash\necho {found}\n")
    script = f"export TPUJOB_WORKER={worker}\n" + scripts.announce_lent_device("echo mine; exit 3\n")
    assert (run(home, script).returncode, run(home, script).stdout) == (3, "mine\n")
    lent = run(home, "export TPUJOB_EMULATED_LENT=torch\n" + script).stdout
    assert lent.endswith("mine\n") and ("this machine's torch is lent" in lent) is (worker == "0" and found == "lent")


def test_a_chain_ends_at_the_first_command_that_fails(home: Path) -> None:
    done = run(home, scripts.chain(("echo one", "exit 3", "echo two")))
    assert (done.returncode, done.stdout) == (3, "one\n")


@pytest.mark.parametrize(("user", "machine", "account", "name"), [
    ("alice", "laptop", None, "alice"), ("alice", "laptop", "Alice.Liddell@example.com", "alice-liddell"),
    ("root", "lab-7.example.com", None, "root-lab-7"), ("ubuntu", "vm", "alice@example.com", "alice"),
    ("jupyter", "a-very-long-machine-name", None, "jupyter-a-very-long"), ("", "", None, "user"),
    ("Ärztin_Ö", "x", None, "arztin-o"), ("用户", "lab", None, "user-lab"),
    ("x", "y", "runner-of-the-whole-laboratory@example.com", "runner-of-the-whole"),
    ("alice", "y", "123-compute@developer.gserviceaccount.com", "alice"),
    ("jenkins", "ci-1", "ci@my-project.iam.gserviceaccount.com", "jenkins-ci-1"),
])  # fmt: skip
def test_an_owner_has_a_name_that_people_can_read(user: str, machine: str, account: str | None, name: str) -> None:
    found = names.owner_name(user, machine, account)
    assert found == name and names.owner_problem(found) is None
    node = names.node_name(found, "k3zgazhmv1")
    assert names.node_problem(node) is None and node == f"tpujob-{name}-k3zgazhmv1"


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a_b", "a" * 21, "a b", "ä"])
def test_what_is_no_name_for_an_owner_is_told(text: str) -> None:
    assert "is not a name for an owner" in str(names.owner_problem(text))
