"""`kill -9` of everything local: what the cluster ends by itself, and what a guardian and gc do."""

import signal
from pathlib import Path

import psutil
import pytest
import yaml

from orchestrator.promise.lease.lease import LeaseState
from tests.cli_fixture import kill_all
from tests.cluster.gke_fixture import HOLD, Gke
from tests.waiting import until

pytestmark = pytest.mark.cluster

PATIENT = "trap '' TERM; echo begun; while :; do sleep 0.1; done"


def kill_all_local(gke: Gke) -> None:
    while found := gke.local():  # a process that was just being started is there only now
        kill_all(found)


def test_a_pod_whose_own_program_hangs_too_is_ended_by_the_control_plane(gke: Gke) -> None:
    gke.change("from orchestrator.places.gke.objects import manifest as m; m.ENDS_WITHIN_S = -45.0; m.SENDING_S = -9")
    gke.running(PATIENT, limits={"max_duration": "1m"})
    (pod,) = gke.pods()
    kill_all_local(gke)
    programs = [each for each in psutil.process_iter() if is_of(each, pod["status"]["podIP"])]
    for each in programs:
        each.send_signal(signal.SIGSTOP)
    assert programs
    gke.cluster.supply(gke.space, idle_s=0)
    until(lambda: not gke.cluster.nodes(gke.space), "the nodes to go")
    (left,) = gke.pods()
    assert left["status"]["reason"] == "DeadlineExceeded"


def is_of(process: psutil.Process, address: str) -> bool:
    """Whether it is the program of this pod, or what that has started in Python; not what stands for its runtime."""
    try:
        return process.environ().get("TPUJOB_POD_IP") == address and process.name().startswith("python")
    except (psutil.Error, OSError):
        return False


def test_the_guardian_deletes_what_a_killed_command_has_left(gke: Gke) -> None:
    gke.env["TPUJOB_GUARDIAN"] = ""
    command = gke.running(HOLD)
    command.process.kill()
    command.process.wait()
    until(lambda: [each.state for each in gke.leases()] == [LeaseState.GONE], "the proof of the guardian")
    assert gke.left() == []


def test_a_finished_job_that_no_machine_collects_is_deleted_by_the_cluster(gke: Gke) -> None:
    gke.submit(HOLD)
    until(gke.pods, "its pod")
    soon, name = '{"spec":{"ttlSecondsAfterFinished":1}}', gke.jobsets()[0]["metadata"]["name"]
    gke.cluster.kubectl("patch", "jobset", name, "-n", gke.space, "--type=merge", "-p", soon)
    until(lambda: gke.let_go() or not gke.left(), "its end")


def test_a_command_with_good_credentials_takes_over_from_a_guardian_whose_token_is_refused(gke: Gke) -> None:
    good, own = Path(gke.env["KUBECONFIG"]), gke.directory / "expires"
    own.write_bytes(good.read_bytes())
    own.chmod(0o600)
    gke.env["TPUJOB_GUARDIAN"] = ""
    command = gke.running(HOLD, env={"KUBECONFIG": str(own)})
    config = yaml.safe_load(own.read_text())
    own.write_text(yaml.safe_dump({**config, "users": [{**config["users"][0], "user": {"token": "expired"}}]}))
    command.process.kill()
    command.process.wait()
    log = Path(gke.env["TPUJOB_STATE_DIR"]) / "guardian.log"
    until(lambda: "in vain while the credentials are refused" in log.read_text(), "a guardian that is refused")
    until(lambda: gke("status").returncode == 0 and gke.leases()[0].state is LeaseState.GONE, "a command that is not")
    assert gke.left() == []


def test_gc_from_another_machine_deletes_what_waits_after_its_time(gke: Gke) -> None:
    """A JobSet that waits in its queue has no deadline that runs: gc goes by its annotation."""
    command = gke.begin("run", gke.write("true", queue="none", tpu={"wait": "5s"}, limits={"max_duration": "1m"}))
    until(gke.jobsets, "the JobSet")
    kill_all_local(gke)
    command.process.wait()
    gke.env["TPUJOB_STATE_DIR"] = str(gke.directory / "another")
    gke.change("from orchestrator.promise.lease import periods as p; p.GOOGLE = p.Timings(margin_s=1.0)")
    words = ("gc", "--on", "gke", "--namespace", gke.space)
    assert gke(*words).returncode == 0 and gke.jobsets(), "its claim lives"
    name = gke.jobsets()[0]["metadata"]["name"]
    gke.cluster.kubectl("annotate", "jobset", name, "-n", gke.space, "--overwrite", "tpujob-life-seconds=1")
    until(lambda: gke(*words).returncode == 0 and not gke.left(), "gc")
