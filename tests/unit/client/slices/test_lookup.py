"""Which slice a name means for the commands that use one, beside jobs on clusters of the same name."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client import lookup
from orchestrator.client.session import Session
from orchestrator.core.lease.lease import Intent, Lease, LeaseState, Purpose
from orchestrator.errors import UserError
from orchestrator.settings import GKE, Target
from tests.unit.engine.virtual import lease_and_request

PODS = "alice runs in pods of a cluster"


def on_cluster() -> Lease:
    return replace(lease_and_request(1)[0], cloud=GKE, run="r1")


def session(directory: Path, *leases: Lease, cloud: str = "emulated") -> Session:
    made = Session(Target(cloud, cloud), directory)
    made.ledger.record(*map(Intent, leases))
    return made


def test_a_slice_is_found_though_a_job_on_a_cluster_has_its_name(tmp_path: Path) -> None:
    held = lease_and_request(0, purpose=Purpose.HOLD)[0]
    found = session(tmp_path, held, on_cluster())
    assert lookup.require(found, "alice").id == held.id


@pytest.mark.parametrize("cloud", ["emulated", GKE])
def test_a_name_that_only_a_job_on_a_cluster_has_is_refused(tmp_path: Path, cloud: str) -> None:
    with pytest.raises(UserError, match=PODS):
        lookup.require(session(tmp_path, on_cluster(), cloud=cloud), "alice")


def test_a_job_on_a_cluster_is_named_where_the_slice_of_its_name_is_being_deleted(tmp_path: Path) -> None:
    held = replace(lease_and_request(0, purpose=Purpose.HOLD)[0], state=LeaseState.DOWN)
    with pytest.raises(UserError, match=PODS):
        lookup.require(session(tmp_path, held, on_cluster()), "alice")


def test_a_name_that_nothing_has_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no slice named 'bob'"):
        lookup.require(session(tmp_path, on_cluster()), "bob")
