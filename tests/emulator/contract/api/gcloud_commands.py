"""The commands of the real gcloud on the emulator: the contract that test_gcloud.py runs and docs/emulator.md shows.

Each scenario runs in order, once for each track on the same emulator, with `{n}` in its names for the track.
"""

from dataclasses import dataclass

GA, ALPHA = "ga", "alpha"
BOTH, ONLY_ALPHA = (GA, ALPHA), (ALPHA,)
SHAPE = "--accelerator-type=v5litepod-4 --version=v2-alpha-tpuv5-lite"
FOUR = "--accelerator-type=v5litepod-16 --version=v2-alpha-tpuv5-lite"
QUEUED = "--accelerator-type=v5litepod-4 --runtime-version=v2-alpha-tpuv5-lite"
LARGE = "--accelerator-type=v6e-8 --version=v2-alpha-tpuv6e"
RESCHEDULED = "--accelerator-type=v6e-8 --runtime-version=v2-alpha-tpuv6e"
DISK = "projects/p/zones/us-central1-a/disks/d"


@dataclass(frozen=True)
class Step:
    """One gcloud command; `prints` must be in its output."""

    command: str
    arguments: str
    prints: str
    tracks: tuple[str, ...] = BOTH
    fails: bool = False
    note: str = ""  # for the table
    zone: str = "us-central1-a"
    patient: bool = False  # repeated until it prints that


def _life() -> list[Step]:
    return [
        Step("tpu-vm create", f"n{{n}} {SHAPE} --spot --labels=owner=ada --metadata=a=b", "Created tpu [n{n}]."),
        Step("tpu-vm create", f"n{{n}} {SHAPE}", "nodes/n{n}' already exists", fails=True),
        Step("tpu-vm create", f"async{{n}} {SHAPE} --async", "Check operation"),
        Step("tpu-vm list", "--filter=name~/n{n}$ --format=value(name.basename(),state)", "n{n}\tREADY"),
        Step("tpu-vm describe", "n{n} --format=value(labels.owner,schedulingConfig.spot)", "ada\tTrue"),
        Step("tpu-vm update", "n{n} --update-labels=held=yes --add-tags=t", "Updated tpu [n{n}]."),
        Step("tpu-vm describe", "n{n} --format=value(labels.held,tags)", "yes\tt"),
        Step("tpu-vm get-guest-attributes", "n{n}", "ssh-ed25519"),
        Step("tpu-vm stop", "n{n}", "verb: stop"),
        Step("tpu-vm stop", "n{n}", "stop is not supported while in state STOPPED", fails=True),
        Step("tpu-vm start", "n{n}", "verb: start"),
        Step("tpu-vm delete", "n{n}", "Deleted tpu [n{n}]."),
        Step("tpu-vm describe", "n{n}", "nodes/n{n}' was not found", fails=True),
    ]


def _connections() -> list[Step]:
    return [
        Step("tpu-vm create", f"d{{n}} {FOUR}", "Created tpu [d{n}]."),
        Step("tpu-vm ssh", "d{n} --worker=2 --command=pwd", "/worker2/home"),
        Step(
            "tpu-vm ssh", "d{n} --worker=all --command=pwd", "/worker3/home", note="also `--worker=all` and `--dry-run`"
        ),
        Step("tpu-vm ssh", "d{n} --worker=all --command=pwd --dry-run", "HostKeyAlias=tpu."),
        Step("tpu-vm scp", "{file} d{n}:sent --worker=all", "worker 3", note="also `--worker=all` and `--recurse`"),
        Step("tpu-vm scp", "d{n}:sent {file}.back --worker=3", "worker 3"),
        Step("tpu-vm scp", "{folder} d{n}:folder --recurse", "worker 0"),
        Step("tpu-vm ssh", "d{n} '--command=cat folder/inner'", "hello"),
        Step("tpu-vm delete", "d{n} --async", "Check operation"),
    ]


def _queue() -> list[Step]:
    return [
        Step(
            "queued-resources create",
            f"q{{n}} {QUEUED} --node-id=q{{n}}-node --spot --labels=a=b --valid-until-duration=6h",
            "Created queued_resource [q{n}].",
        ),
        Step(
            "queued-resources list",
            "--filter=name~/q{n}$ --format=value(name.basename(),state.state)",
            "q{n}\tACTIVE",
            patient=True,
        ),
        Step("queued-resources describe", "q{n} --format=value(queueingPolicy.validUntilDuration)", "21600s"),
        Step("queued-resources ssh", "q{n} --command=pwd", "/worker0/home"),
        Step("queued-resources scp", "{file} q{n}:sent", "worker 0"),
        Step("queued-resources delete", "q{n}", "has nodes", fails=True),
        Step("queued-resources delete", "q{n} --force", "Deleted queued_resource [q{n}]."),
        Step(
            "queued-resources create", f"m{{n}} {QUEUED} --node-prefix=m{{n}} --node-count=2 --async", "Check operation"
        ),
        Step("queued-resources describe", "m{n} --format=value(state.state)", "ACTIVE", patient=True),
        Step(
            "queued-resources ssh",
            "m{n} --node=all --worker=all --command=hostname",
            "into 2 nodes",
            note="also `--node=all`",
        ),
        Step("queued-resources reset", "m{n}", "verb: reset"),
        Step("tpu-vm list", "--filter=name~/m{n}-[01]$ --format=value(name.basename())", "m{n}-1"),
        Step("queued-resources delete", "m{n} --force --async", "Check operation"),
        Step(
            "queued-resources create",
            f"flex {QUEUED} --node-id=flex --provisioning-model=flex-start --max-run-duration=2h",
            "Created queued_resource [flex].",
            ONLY_ALPHA,
        ),
        Step("queued-resources delete", "flex --force --async", "Check operation", ONLY_ALPHA),
    ]


def _catalogs() -> list[Step]:
    version = "v2-alpha-tpuv5-lite"
    return [
        Step("accelerator-types list", "--filter=type:v5litepod-16", "v5litepod-16"),
        Step("accelerator-types describe", "v5litepod-4", "topology: 2x2"),
        Step("tpu-vm accelerator-types list", "--filter=type:v5litepod-16", "v5litepod-16"),
        Step("tpu-vm accelerator-types describe", "v5litepod-4", "topology: 2x2"),
        Step("topologies list", "", "v5litepod-16"),
        Step("versions list", f"--filter=version={version}", version, note="the runtime versions"),
        Step("versions describe", version, f"version: {version}"),
        Step("tpu-vm versions list", f"--filter=version={version}", version),
        Step("tpu-vm versions describe", version, f"version: {version}"),
        Step("locations list", "--filter=locationId:us-central1-a", "us-central1-a", zone=""),
        Step("locations describe", "us-central1-a", "locationId: us-central1-a", zone=""),
        Step("tpu-vm service-identity create", "", "@cloud-tpu.iam.gserviceaccount.com"),
        Step("reservations list", "", "Listed 0 items.", ONLY_ALPHA, note="none, unless a rehearsal has some"),
        Step("list", "", "Listed 0 items.", note="TPU Nodes, which Google has turned off: none"),
        Step(
            "create",
            "old --version=2.12",
            "Please migrate to TPU VM Architecture",
            fails=True,
            note="refused, as by Google",
        ),
    ]


def _maintenance() -> list[Step]:
    return [
        Step("tpu-vm create", f"k{{n}} {SHAPE} --provisioning-model=spot", "Created tpu [k{n}].", ONLY_ALPHA),
        Step("tpu-vm attach-disk", f"k{{n}} --disk={DISK} --mode=read-only", "Attaching disk", ONLY_ALPHA),
        Step("tpu-vm detach-disk", f"k{{n}} --disk={DISK}", "Detaching disk", ONLY_ALPHA),
        Step("tpu-vm simulate-maintenance-event", "k{n} --workers=0", "maintenanceStatus: PENDING", ONLY_ALPHA),
        Step("tpu-vm perform-maintenance", "k{n}", "cannot be started now", ONLY_ALPHA, fails=True),
        Step("tpu-vm delete", "k{n} --async", "Check operation", ONLY_ALPHA),
        Step("queued-resources create", f"s{{n}} {RESCHEDULED} --node-id=s{{n}}", "Created", ONLY_ALPHA),
        Step("queued-resources describe", "s{n} --format=value(state.state)", "ACTIVE", ONLY_ALPHA, patient=True),
        Step("tpu-vm simulate-maintenance-event", "s{n}", "canReschedule: true", ONLY_ALPHA),
        Step("queued-resources perform-maintenance", "s{n} --node-names=s{n}", "verb: update", ONLY_ALPHA),
        Step("queued-resources delete", "s{n} --force", "Deleted queued_resource", ONLY_ALPHA),
        Step("tpu-vm create", f"p{{n}} {LARGE}", "Created tpu [p{n}].", ONLY_ALPHA),
        Step("tpu-vm simulate-maintenance-event", "p{n}", "canReschedule: true", ONLY_ALPHA),
        Step("tpu-vm perform-maintenance", "p{n}", "ONGOING", ONLY_ALPHA, note="v6e from 2x4 on, as with Google"),
        Step("tpu-vm delete", "p{n} --async", "Check operation", ONLY_ALPHA),
    ]


SCENARIOS: dict[str, list[Step]] = {
    "a node's life": _life(),
    "ssh and scp": _connections(),
    "queued resources": _queue(),
    "catalogs": _catalogs(),
    "disks and maintenance": _maintenance(),
}

# Commands that the emulator does not support, with the reason.
NOT_HERE = {
    "execution-groups": "they create Compute Engine VMs, which are not emulated",
    "delete, describe, reimage, start, stop": "they are for TPU Nodes, which Google has turned off",
}


def table() -> str:
    """Return the Markdown table of docs/emulator.md."""
    tracks: dict[str, set[str]] = {}
    notes: dict[str, list[str]] = {}
    for step in (step for steps in SCENARIOS.values() for step in steps):
        tracks.setdefault(step.command, set()).update(step.tracks)
        notes.setdefault(step.command, []).extend([step.note] if step.note else [])
    rows = ["| gcloud compute tpus … | GA | alpha | |", "|---|---|---|---|"]
    for command in sorted(tracks):
        marks = " | ".join("yes" if track in tracks[command] else "" for track in BOTH)
        rows.append(f"| `{command}` | {marks} | {'; '.join(notes[command])} |")
    for commands, why in NOT_HERE.items():
        rows.append(f"| {', '.join(f'`{command}`' for command in commands.split(', '))} | no | no | {why} |")
    return "\n".join(rows)
