"""The table of all commands: group, summary and examples of each, by which it is found without being imported.

The command tree (`cli.typer_app`) reads this table, and imports a command when it is called.
"""

import importlib
from collections.abc import Callable
from typing import NamedTuple

COMPLETION = "_TPUJOB_COMPLETE"  # the variable with which a shell asks for completions


class Command(NamedTuple):
    """One row: `summary` is the first sentence of the function's docstring, which a test compares."""

    summary: str
    examples: tuple[str, ...] = ()
    function: str = ""  # "module:function" below `cli.commands`; empty: both have the name of the command
    reads: bool = False  # it changes nothing: if its output cannot be written, it fails
    light: bool = False  # called without typer where it has no arguments; it asks nothing
    is_group: bool = False


GROUPS: dict[str, dict[str, Command]] = {
    "Jobs": {
        "run": Command(
            "Run a job: create a slice (or use a held one), train, collect, delete, prove the deletion.",
            (
                "tpujob run jobs/mnist.yaml",
                "tpujob run jobs/mnist.yaml --zone us-east5 --spot --set train.epochs=2",
                "tpujob run --accelerator v5e-8 -- python train.py --lr 3e-4  # no job file",
                "tpujob run job.yaml --env WANDB_API_KEY -- python train.py --lr 1e-3",
                "tpujob run jobs/mnist.yaml --keep 30m  # hold the slice for the next run",
                "tpujob run jobs/mnist.yaml --json  # events, one a line",
                "tpujob run pod.yaml --logs all  # of 8 workers and more, too",
            ),
        ),
        "submit": Command("Start a job and leave: the same as `run --detach`.",
            ("tpujob submit jobs/mnist.yaml", "tpujob submit jobs/mnist.yaml --ttl 6h --cloud google"), "jobs.run:submit"),
        "queue": Command("Jobs that wait, and start by themselves: list them, and carry the queue on.",
            ("tpujob queue add job.yaml sweep.yaml", "tpujob queue  # what runs, what waits and why",
            "tpujob queue run  # a pass: do all that is due"), "jobs.queue:listing", is_group=True),
        "queue add": Command("Add jobs to the queue, or all jobs of a sweep, with their code as it is now.",
            ("tpujob queue add jobs/mnist.yaml", "tpujob queue add lr-sweep.yaml --priority 5"), "jobs.queue:add"),
        "queue run": Command("Make a pass: look after what runs, collect what ended, start what can start.",
            ("tpujob queue run", "tpujob queue run --forever"), "jobs.queue:run_queue"),
        "queue hold": Command("Keep jobs that wait from starting.", ("tpujob queue hold lr-sweep",), "jobs.queue:hold"),
        "queue release": Command("Let jobs that are held start.", ("tpujob queue release lr-sweep",), "jobs.queue:release"),
        "queue remove": Command("Take jobs out of the queue; one that has a slice is canceled.",
            ("tpujob queue remove mnist",), "jobs.queue:remove"),
        "queue move": Command("Move a job before the others, or to another priority.",
            ("tpujob queue move mnist --first", "tpujob queue move lr-sweep --priority 3"), "jobs.queue:move"),
        "attach": Command("Follow a detached run to its end: log, artifacts, proof.",
            ("tpujob attach mnist  # the newest run of this job", "tpujob attach x6qn33t5b8 --logs 0,3")),
        "collect": Command("Collect the results that a run left on its slice, then release the slice, proven.",
            ("tpujob collect mnist", "tpujob collect mnist --max-results 80GB"), "jobs.ending:collect"),
        "cancel": Command("End a run or a sweep, detached or in another terminal: delete its slices and prove it.",
            ("tpujob cancel mnist", "tpujob cancel lr-sweep"), "jobs.ending:cancel"),
        "plan": Command("Check a job and show what `run` would do: candidates, prices, the exact request.",
            ("tpujob plan jobs/mnist.yaml", "tpujob plan jobs/mnist.yaml --accelerator v6e-8 --zone any",
            "tpujob plan jobs/mnist.yaml --json"), reads=True),
        "check": Command("Check whether a program fits the chips of its accelerator: it runs here, the TPU compiler judges it.",
            ("tpujob check jobs/mnist.yaml", "tpujob check --accelerator v5e-1 -- python train.py --batch 512",
            "tpujob check jobs/jax.yaml --json"), reads=True),
        "export": Command("Print the objects that `run` would submit to a cluster: JobSet, ConfigMap and Secret.",
            ("tpujob export jobs/mnist-gke.yaml --to jobset > mnist.yaml",
            "tpujob export job.yaml --image us-docker.pkg.dev/p/r/train:1 --queue tpu"), "jobs.plan:export", reads=True),
        "init": Command("Write a commented job file for a script of this directory.",
            ("tpujob init  # for the only script here", "tpujob init src/train.py",
            "tpujob init --example  # list the examples", "tpujob init --example jax my-jobs")),
        "schema": Command("Print the JSON Schema of the job file, with which editors complete keys and underline mistakes.",
            ("tpujob schema > job.schema.json",), reads=True),
    },
    "Slices": {
        "up": Command("Bring a TPU slice to READY and hold it.",
            ("tpujob up --accelerator v5litepod-8 --zone us-central1-a",
            "tpujob up trainer --accelerator v6e-8 --zone us-east5 --spot --ttl 8h",
            "tpujob up --accelerator v5litepod-16 --zone any --dry-run")),
        "down": Command("Delete a slice and prove that it is gone.",
            ("tpujob down", "tpujob down trainer", "tpujob down --all")),
        "stop": Command("Stop a held slice of one host (Google stops no other): it keeps its disk, its name and its quota.",
            ("tpujob stop", "tpujob stop trainer"), "slices.up:stop"),
        "start": Command("Start a stopped slice again.", ("tpujob start", "tpujob start trainer"),
            "slices.up:start"),
        "status": Command("List every slice of tpujob in the project, asked of the API, with its cost so far; and "
            "what is not proven gone.", ("tpujob status", "tpujob status --json"), reads=True, light=True),
        "extend": Command("Move the end of a slice: its deadline, or the end of its hold.",
            ("tpujob extend mnist --by 1h", "tpujob extend trainer --by 30m"), "slices.up:extend"),
        "ssh": Command("Open a shell on a worker, or run one command there or on all workers.",
            ("tpujob ssh", "tpujob ssh trainer --worker 1", "tpujob ssh trainer -- python3 -V",
            "tpujob ssh trainer --worker all -- nproc",
            "tpujob ssh trainer -N -L 8888:localhost:8888  # until Ctrl-C")),
        "scp": Command("Copy files to a worker or from one, or to all workers or from all.",
            ("tpujob scp data.csv trainer:", "tpujob scp -r trainer:1:logs .",
            "tpujob scp --worker all trainer:out.json here/  # here/worker0/…"), "slices.ssh:scp"),
        "forward": Command("Let ports of this machine lead to ports of a worker, such as TensorBoard's, until "
            "Ctrl-C or the end of the slice.", ("tpujob forward trainer 6006",
            "tpujob forward mnist  # the `ports:` of a detached run",
            "tpujob forward trainer 8080:6006 8888 --worker 1"), "slices.ssh:forward"),
        "ssh-config": Command("Print the line for ~/.ssh/config with which ssh, rsync and editors know the workers "
            "of every slice.", ("tpujob ssh-config --install",
            "tpujob ssh-config trainer  # the hosts of one slice"), "slices.ssh:ssh_config", reads=True),
        "offers": Command("List the TPUs there are: types, topologies, zones, and dated prices of a whole slice per hour.",
            ("tpujob offers", "tpujob offers v5e", "tpujob offers v6e-8 us-east5", "tpujob offers tpu7x --on gke"),
            reads=True, light=True),
    },
    "Results": {
        "top": Command("Watch what goes on: every run, queued job and slice of yours, its step, figures, speed and chips, "
            "its cost and its end.", ("tpujob top", "tpujob top --filter 'cost>1' --sort cost", "tpujob top --once",
            "tpujob top --open  # as a page, with curves that grow"), "results.top:top", reads=True),
        "list": Command("List the runs of this machine, newest first.", ("tpujob list", "tpujob list --json",
            "tpujob list --filter state=failed --filter 'params.lr>0.01'"),
            "results.list_runs:list_runs", reads=True, light=True),
        "show": Command("Show one run: its state and events, how long each part took, what it cost, and its files.",
            ("tpujob show mnist", "tpujob show mnist --json"), "results.runs:show", reads=True),
        "logs": Command("What the workers of a run wrote, as far as it arrived here.",
            ("tpujob logs  # of the newest run", "tpujob logs -f mnist", "tpujob logs mnist --worker 1",
            "tpujob logs mnist --worker all"), reads=True),
        "compare": Command("Compare runs: seconds in all, per iteration and per epoch with their spread, accuracy, dollars.",
            ("tpujob compare mnist-ddp mnist-single", "tpujob compare mnist-ddp mnist-single --markdown"),
            "results.runs:compare", reads=True),
        "cost": Command("Show what this machine's slices and runs cost in a month: by job, what idled, what was "
            "lost, what spot saved.", ("tpujob cost", "tpujob cost --month 2026-11 --by accelerator",
            "tpujob cost --since 30d --by run --csv > costs.csv"), reads=True, light=True),
        "report": Command(
            "Write a page of a run, or of several beside each other: one HTML file that opens offline.",
                ("tpujob report mnist --open", "tpujob report lr-sweep  # curves and a table of all its runs",
                "tpujob report mnist-ddp mnist-single --out comparison.html",
                "tpujob report lr-sweep --csv --out lr-sweep.csv")
        ),
    },
    "Guarantee": {
        "gc": Command("Delete every slice of tpujob in the project whose claim is over, whichever machine made it.",
            ("tpujob gc --dry-run", "tpujob gc --zone us-central1", "tpujob gc --local")),
        "install-gc": Command("Install a timer that runs `tpujob gc --local` every few minutes: a systemd timer, a "
            "launchd agent or a cron line.", ("tpujob install-gc",), "guarantee.gc:install_gc"),
        "doctor": Command("Show which layers of the guarantee are live for this machine and project, the open "
            "slices, and their worst case.", ("tpujob doctor", "tpujob doctor train.yaml", "tpujob doctor --via iap",
            "tpujob doctor --json"), reads=True),
        "notify": Command("Send a test message to the receiver of `notify:`, and print what came back.",
            ("tpujob notify", "tpujob notify train.yaml")),
        "forget": Command("Stop asking after a slice whose deletion cannot be proven.", ("tpujob forget trainer",)),
        "drill": Command("Rehearse ten disasters on a private emulator: what is killed, what deletes the slice, and "
            "within which bound.", ("tpujob drill", "tpujob drill --only 3")),
        "smoke": Command("Prove tpujob on your own project: create, train, delete, gc and a watchdog at work, for at most "
            "$2 and 20 minutes.", ("tpujob smoke", "tpujob smoke --zone us-central1 --yes", "tpujob smoke --cloud emulated")),
    },
    "Emulator": {
        "emulator": Command("Start, stop and inspect the emulated Cloud TPU, and make it fail.", is_group=True),
        "emulator up": Command("Start the emulator and print the environment for gcloud, curl and Python.",
            ("tpujob emulator up", "tpujob emulator up --grpc", 'eval "$(tpujob emulator up)"'),
            "emulator.daemon:up"),
        "emulator env": Command('Print the environment of the running emulator: eval "$(tpujob emulator env)".',
            ('eval "$(tpujob emulator env)"', "tpujob emulator env --json"), "emulator.daemon:env", reads=True),
        "emulator stop": Command("Stop the emulator, with every emulated VM and its processes.",
            ("tpujob emulator stop", "tpujob emulator stop --yes"), "emulator.stop:stop"),
        "emulator status": Command("Show whether the emulator runs, its nodes, and its billing meter.",
            ("tpujob emulator status", "tpujob emulator status --json"), "emulator.daemon:status", reads=True, light=True),
        "emulator requests": Command("List the newest calls to the emulated API: caller, reply, method, path, and "
            "the faults they met.", ("tpujob emulator requests",
            "tpujob emulator requests --node tpujob-alice-x6qn33t5b8 --last 10"), "emulator.behavior:requests", reads=True),
        "emulator fault": Command("Add, list and clear faults: what fails, at which calls.", is_group=True),
        "emulator fault add": Command("Add a fault; it stays until it is cleared.",
            ("tpujob emulator fault add status status=429 --on nodes.delete --first 3",
            "tpujob emulator fault add lost_reply --on nodes.create --calls 1"), "emulator.behavior:add_fault"),
        "emulator fault load": Command("Add the faults of a file: all of them, or none if one is invalid.",
            ("tpujob emulator fault load faults.json",), "emulator.behavior:load_faults"),
        "emulator fault list": Command("List the faults, with how many calls each of them matched and spoiled.",
            ("tpujob emulator fault list",), "emulator.behavior:list_faults", reads=True),
        "emulator fault clear": Command("Remove faults: the emulator works again.",
            ("tpujob emulator fault clear", "tpujob emulator fault clear f1 f2"), "emulator.behavior:clear_faults"),
        "emulator preempt": Command("Preempt a node as Google preempts spot capacity: PREEMPTED, still listed, not "
            "billed, its hosts off.", ("tpujob emulator preempt tpujob-alice-x6qn33t5b8 --notice 30s",),
            "emulator.behavior:preempt"),
        "emulator maintain": Command("Start a maintenance event: announced to the VMs and in the API, then the "
            "hosts go off and boot again.",
            ("tpujob emulator maintain tpujob-alice-x6qn33t5b8 --notice 30s --lasts 10s",),
            "emulator.behavior:maintain"),
        "emulator vanish": Command("Delete a node as another user would: the API no longer shows it.",
            ("tpujob emulator vanish tpujob-alice-x6qn33t5b8",), "emulator.behavior:vanish"),
        "emulator put": Command("Put a node into a state, as a failing host does.",
            ("tpujob emulator put tpujob-alice-x6qn33t5b8 REPAIRING --for 20s",), "emulator.behavior:put"),
        "emulator worker": Command("Make one worker refuse or ignore SSH connections, or freeze its whole machine.",
            ("tpujob emulator worker tpujob-alice-x6qn33t5b8 0 frozen",), "emulator.behavior:worker"),
        "emulator rehearse": Command("Start a rehearsal from a file, or show the current one.",
            ("tpujob emulator rehearse jobs/rehearsals/spot-anywhere.yaml", "tpujob emulator rehearse --end"),
            "emulator.behavior:rehearse"),
        "emulator capacity": Command("Set, list and clear how many chips there are, where, and when.", is_group=True),
        "emulator capacity set": Command("Set how many chips there are.",
            ("tpujob emulator capacity set us-central1-a/v5litepod-8 none --until 2m",
            "tpujob emulator capacity set '*/*' 16 --tier spot"), "emulator.behavior:set_capacity"),
        "emulator capacity list": Command("List what was set.", ("tpujob emulator capacity list",),
            "emulator.behavior:list_capacity", reads=True),
        "emulator capacity clear": Command("Remove every limit: there is enough of everything.",
            ("tpujob emulator capacity clear",), "emulator.behavior:clear_capacity"),
    },
}  # fmt: skip
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
LIGHT = [name for name, command in COMMANDS.items() if command.light]


def load(name: str) -> Callable[..., int | None]:
    """Import a command and return its function, which returns the exit code; None is 0."""
    module, _, function = function_of(name).partition(":")
    found: Callable[..., int | None] = getattr(importlib.import_module(f"orchestrator.cli.commands.{module}"), function)
    return found


def function_of(name: str) -> str:
    """Return the "module:function" of a command, below `cli.commands`."""
    package = next(title.lower() for title, commands in GROUPS.items() if name in commands)
    own = name.replace("-", "_")
    return COMMANDS[name].function or f"{package}.{own}:{own}"


def children(parent: str) -> dict[str, Command]:
    """Return the commands right below a group, by their own name; `""` is `tpujob` itself."""
    begin = f"{parent} " if parent else ""
    names = {name: name.removeprefix(begin) for name in COMMANDS if name.startswith(begin)}
    return {last: COMMANDS[name] for name, last in names.items() if " " not in last}
