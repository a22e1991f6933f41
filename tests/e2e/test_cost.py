"""`tpujob cost` on the emulator: the dollars of `tpujob show`, and those of the billing meter."""

import csv
import io
import json

import pytest

import tpujob as api
from tests.cli_fixture import Tpujob

SPOT = "name: spot\ntpu: {accelerator: v5litepod-8, zone: us-central1-a, provisioning: spot}\ncommand: 'true'\n"
FAILS = "name: fails\ntpu: {accelerator: v5litepod-4, zone: us-west4-a}\ncommand: exit 3\n"
RACE = """
name: race
tpu: {accelerator: v5litepod-8, zone: [us-central1-a, us-east1-c], provisioning: queued, wait: 1h, race: true}
command: 'true'
"""
ON_HELD = "name: on-held\ntpu: {accelerator: v5litepod-8, zone: us-central1-a}\ncommand: 'true'\n"
HERE = "name: here\n'on': local\ncommand: 'true'\n"


def test_cost_tells_the_dollars_of_show_and_of_the_billing_meter(tpujob: Tpujob) -> None:
    for name, text in (("spot", SPOT), ("fails", FAILS), ("race", RACE), ("here", HERE)):
        assert tpujob("run", tpujob.job(text, f"{name}.yaml")).returncode == (3 if name == "fails" else 0)
    assert tpujob("up", "mine", "--accelerator", "v5litepod-8", "--zone", "us-central1-a").returncode == 0
    assert tpujob("run", tpujob.job(ON_HELD, "held.yaml")).returncode == 0
    still = tpujob("cost").stdout
    assert "nothing of it is billed" in still and "still billed: " in still and "not an invoice" in still
    assert tpujob("down", "mine").returncode == 0

    found = json.loads(tpujob("cost", "--by", "run", "--json").stdout)
    emulated, local = found["clouds"]
    assert (emulated["cloud"], local["cloud"]) == ("emulated", "local")
    shown = {
        run["run"]: json.loads(tpujob("show", run["run"], "--json").stdout)["cost_usd"]
        for run in json.loads(tpujob("list", "--json").stdout)
        if run["cloud"] == "emulated"
    }
    rows = {row["name"]: row for row in emulated["rows"]}
    assert {run: pytest.approx(rows[run]["cost_usd"]) for run in shown} == shown and len(shown) == 4
    assert set(rows) == {*shown, "slice mine"} and rows["slice mine"]["idle_usd"] > 0

    total = emulated["total"]
    metered = {bill["name"].rpartition("/")[2]: bill["usd"] for bill in tpujob.bills()}
    queued = {lease.name.node for lease in tpujob.leases() if lease.name.queued}
    at_once = [row for row in emulated["rows"] if row["job"] != "race"]
    # The meter begins between our create call and READY, and ends between our delete call and the proof.
    least = sum(row["cost_usd"] - row["overhead_usd"] for row in at_once)
    most = sum(row["cost_usd"] for row in at_once)
    assert least <= sum(usd for node, usd in metered.items() if node not in queued) <= most
    # A queued slice counts from READY on.
    assert total["job_usd"] + total["failed_usd"] + total["idle_usd"] <= sum(metered.values())
    assert total["spot_saved_usd"] > 0 and total["failed_usd"] > 0 and emulated["open_slices"] == []
    assert local["total"]["cost_usd"] is None and local["rows"][0]["job"] == "here"

    of_month = api.Client().cost(by="job")
    assert {row.name: row.runs for row in of_month.clouds[0].rows} == {
        **{"spot": 1, "fails": 1, "race": 1, "on-held": 1},
        "slice mine": 0,
    }
    lines = list(csv.DictReader(io.StringIO(tpujob("cost", "--since", "1h", "--by", "accelerator", "--csv").stdout)))
    assert {line["accelerator"] for line in lines} == {"v5litepod-8", "v5litepod-4", "this machine"}
    assert sum(float(line["cost_usd"] or 0.0) for line in lines) == pytest.approx(total["cost_usd"])
    with tpujob.creating_nothing():
        assert tpujob("cost", "--month", "2026-13").returncode == 64
