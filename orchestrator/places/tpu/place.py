"""The Cloud TPU API as a place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.places.tpu.api.client import connect
from orchestrator.places.tpu.api.create_request import create_request, load
from orchestrator.places.tpu.traits import TRAITS
from orchestrator.places.vms.place import VmPlace
from orchestrator.promise.obtain.startup_script import Watched

if TYPE_CHECKING:
    from orchestrator.places.desk import Lines
    from orchestrator.promise.lease.cloud_api import Cloud
    from orchestrator.promise.obtain.drafts import Draft


class CloudTpu(VmPlace):
    traits = TRAITS
    watched = Watched(
        url="https://tpu.googleapis.com",
        base="/v2/",
        node="projects/{0.project}/locations/{0.zone}/nodes/{0.node}",
        state="state",
        booting=("CREATING", "STARTING"),
    )

    def request_of(self, draft: Draft) -> Mapping[str, Any]:
        return create_request(draft.request)

    def open_cloud(self, lines: Lines, cloud: str) -> Cloud:
        if not lines.light:
            load()
        return connect(*lines.address(cloud), now=not lines.light)


PLACE = CloudTpu()
