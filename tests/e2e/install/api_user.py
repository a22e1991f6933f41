"""A program that uses the Python API as its users do. mypy --strict accepts it; it is not run.

`test_python_api` checks it against the source tree, `test_wheel` against the installed wheel.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import tpujob
from tpujob import Client, Event, Job, Limits, Notice, Plan, Run, RunResult, Tpu, TpuAlternative, Train


def jobs() -> Iterator[Job]:
    yield Job.load("jobs/mnist.yaml")
    yield Job.load(Path("jobs") / "mnist.yaml")
    yield Job(command="python3 train.py --epochs 3", tpu=Tpu(accelerator="v5e-8"))
    yield Job(
        name="everything",
        tpu=Tpu(
            any_of=[TpuAlternative(accelerator="v6e-8", zone="any"), TpuAlternative(zone=["us-west4", "us-central1"])],
            order="cheapest",
            max_price_per_hour=12,
            wait=timedelta(hours=6),
            provisioning="spot",
        ),
        command=["python3", "train.py"],
        code=Path(__file__).parent,
        setup=["pip install einops"],
        env={"WANDB_API_KEY": "${env:WANDB_API_KEY}"},
        artifacts=["checkpoints/*.pt"],
        bucket="gs://bucket/runs",
        limits=Limits(max_duration="6h", max_cost=20, linger=timedelta(minutes=30), max_results="50GB"),
        on_preemption="restart",
        max_restarts=5,
    )
    yield Job(on="local", train=Train(model="mlp", dataset="synthetic", epochs=1, lr=0.1, options={"any": [1, "x"]}))


def show(event: Event) -> None:
    match event:
        case tpujob.Notice(stage=stage, text=text) | tpujob.Progress(stage=stage, text=text):
            print(stage.upper(), text)
        case tpujob.LogLines(worker=worker, lines=lines):
            print(worker, *lines, sep="\n")
        case tpujob.Alert() | tpujob.Failure():
            print(event.as_json())
        case _:
            pass


def main() -> None:
    client = Client("emulated", on_event=show)
    for job in jobs():
        name: str = job.name
        plan: Plan = client.plan(job)
        price: float | None = plan.worst_case_usd
        zones: list[str] = [candidate.zone for candidate in plan.candidates]
        print(name, price, zones, plan)

    result: RunResult = client.run(job, on_event=lambda event: None, keep="30m", max_duration=timedelta(hours=2))
    figures: tuple[dict[str, Any], float | None, int, bool] = (
        result.metrics,
        result.cost_usd,
        result.attempt_count,
        result.released,
    )
    paths: tuple[Path, ...] = result.artifacts
    print(figures, paths)

    run: Run = client.submit(job)
    for line in run.logs(follow=True, worker=0):
        text: str = line.text
        print(line.worker, text)
    print(run.id, run.state, run.wait().state, client.get(run.id) == run)
    run.cancel()
    for summary in client.runs():
        ended: float | None = summary.ended_at
        print(summary.run, ended, client.show(summary.run).metrics)
    client.collect(run, max_results="80GB")

    with client.slice("v5litepod-16", zone="us-central1", provisioning="spot") as rented:
        for done in rented.exec(["hostname"]):
            print(done.worker, done.exit_code, done.output, done.errors)
        rented.exec("nproc", workers=0, check=True, timeout_s=30)
        print(rented.name, rented.hosts, rented.zone, rented.accelerator)

    brought: tpujob.UpResult = client.up("mine", accelerator="v5e-8", idle=None)
    client.extend(brought.name, by="2h")
    client.stop("mine")
    client.start("mine")
    for row in client.status().slices:
        usd: float | None = row.usd_so_far
        print(row.name, row.state, usd)
    for release in client.down("mine").released:
        print(release.node, release.absent)
    for offer in client.offers("v6e", spot=True).rows:
        print(offer.accelerator, offer.zone, offer.spot_usd_per_hour)


@tpujob.function("v5e-8", zone=["us-central1", "us-east5"], spot=True, backend="xla", max_duration=timedelta(hours=1))
def fit(lr: float, *, steps: int = 10) -> dict[str, float]:
    return {"loss": lr * steps}


def functions(client: Client) -> None:
    found: dict[str, float] = fit(0.1, steps=3)
    here: dict[str, float] = fit.local(0.1)
    there: dict[str, float] = client.call(fit, 0.1, steps=2)
    length: int = client.call(len, "four")
    job: Job = fit.job(lr=0.1)
    later: dict[str, float] = fit.value(client.submit(job))
    print(found, here, there, length, later)
    losses: list[dict[str, float]] = fit.map({"lr": [0.1, 0.2]}, parallel=2)
    mixed: list[dict[str, float] | tpujob.TpujobError] = fit.map([(0.1,), {"lr": 0.2}], return_exceptions=True)
    print(losses, mixed)
    try:
        fit(1)
    except tpujob.RemoteFunctionError as error:
        line: int | None = error.line
        print(error.type_name, error.traceback, error.file, line)


def careful(client: Client, job: Job) -> int:
    try:
        client.run(job)
    except tpujob.PayloadFailed as error:
        return error.rc
    except tpujob.CapacityError as error:
        print(error.message, error.hint)
    except tpujob.TeardownUnproven:
        raise
    except tpujob.TpujobError as error:
        return error.exit_code
    notice = Notice("stage", "text")
    return len(notice.text)


if __name__ == "__main__":
    main()
