"""A small network with JAX: the batch is sharded over all cores of all hosts, the weights are replicated.

It writes a line of figures and a checkpoint every 50 steps, and resumes from the checkpoint that it finds.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH, WIDTH, EVERY = 512, 128, 50
ARTIFACTS = Path(os.environ.get("TPUJOB_ARTIFACTS", "artifacts"))


def draw(random, patterns, count):
    labels = random.integers(0, 10, count)
    return (patterns[labels] + random.normal(0, 6, (count, 784))).astype(np.float32), labels


def scores(weights, images):
    return jnp.maximum(images @ weights["in"], 0) @ weights["out"]


def loss_of(weights, images, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, images)), labels[:, None], 1).mean()


@jax.jit
def step(weights, images, labels, lr):
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda weight, gradient: weight - lr * gradient, weights, gradients), loss


def save(number, weights):
    """Replace the checkpoint in one step: a draft that was not finished is never read."""
    draft = ARTIFACTS / "checkpoint.npz.tmp"
    with draft.open("wb") as file:
        np.savez(file, step=number, **jax.device_get(weights))
    draft.replace(ARTIFACTS / "checkpoint.npz")


def restore(weights):
    """Return the number of steps that are done, and the weights after them: on every host those of the first one."""
    done, path = 0, ARTIFACTS / "checkpoint.npz"
    if path.exists():
        with np.load(path) as saved:
            done, weights = int(saved["step"]), {name: saved[name] for name in weights}
        print(f"resuming after step {done}", flush=True)
    if jax.process_count() == 1:
        return done, weights
    done, weights = multihost_utils.broadcast_one_to_all((done, weights))
    return int(done), weights


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    if (workers := int(os.environ.get("TPUJOB_WORKERS", "1"))) > 1:
        # On TPUs it discovers the other hosts and slices.
        named = (os.environ["TPUJOB_COORDINATOR"], workers, int(os.environ["TPUJOB_WORKER"]))
        jax.distributed.initialize(*(() if os.environ.get("PJRT_DEVICE") == "TPU" else named))
    mesh = Mesh(np.array(jax.devices()), ("cores",))
    dealt_out, everywhere = NamedSharding(mesh, PartitionSpec("cores")), NamedSharding(mesh, PartitionSpec())
    random = np.random.default_rng(1)
    patterns = random.normal(0, 1, (10, 784))
    train, test = draw(random, patterns, 20_000), draw(random, patterns, 2_000)
    first = {"in": random.normal(0, 0.05, (784, WIDTH)), "out": random.normal(0, 0.05, (WIDTH, 10))}
    done, first = restore({name: value.astype(np.float32) for name, value in first.items()})
    weights = jax.device_put(first, everywhere)
    losses, began, warm = [], time.monotonic(), done + 1
    for number in range(done + 1, options.steps + 1):
        chosen = np.random.default_rng(number).integers(0, len(train[1]), BATCH)
        batch = jax.device_put((train[0][chosen], train[1][chosen]), dealt_out)
        weights, loss = step(weights, *batch, options.lr)
        losses.append(loss)
        if number == warm:  # the first step compiles
            loss.block_until_ready()
            began = time.monotonic()
        if number % EVERY == 0 and jax.process_index() == 0:
            save(number, weights)
            line = {"step": number, "loss": float(loss)}
            with (ARTIFACTS / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"step {number} loss {line['loss']:.3f}", flush=True)
    losses = [float(loss) for loss in losses]  # waits for the device, once
    train_s = time.monotonic() - began
    accuracy = float((scores(weights, test[0]).argmax(1) == test[1]).mean())
    results = {
        "dataset": {"name": "drawn patterns", "synthetic": True},
        "test_accuracy": accuracy,
        "train_loss": losses[:: max(len(losses) // 10, 1)],
        "images_per_s": max(options.steps - warm, 0) * BATCH / train_s,
        "seconds": {"train_s": train_s},
        "world": {"device": f"jax:{jax.default_backend()}", "processes": jax.device_count()},
    }
    if jax.process_index() == 0:
        (ARTIFACTS / "metrics.json").write_text(json.dumps(results, indent=2))
    last = f"loss {losses[-1]:.3f}" if losses else "nothing left to train"
    print(f"jax:{jax.default_backend()} ×{jax.device_count()} · {last} · test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
