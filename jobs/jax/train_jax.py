"""A small network with JAX: the batch is sharded over all cores of all hosts, the weights are replicated."""

import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS, BATCH, WIDTH = 300, 512, 128


def draw(random, patterns, count):
    labels = random.integers(0, 10, count)
    return (patterns[labels] + random.normal(0, 1.5, (count, 784))).astype(np.float32), labels


def scores(weights, images):
    return jnp.maximum(images @ weights["in"], 0) @ weights["out"]


def loss_of(weights, images, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, images)), labels[:, None], 1).mean()


@jax.jit
def step(weights, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients), loss


def main():
    if int(os.environ.get("TPUJOB_WORKERS", "1")) > 1:
        jax.distributed.initialize()  # on TPU VMs it discovers the other hosts
    mesh = Mesh(np.array(jax.devices()), ("cores",))
    dealt_out, everywhere = NamedSharding(mesh, PartitionSpec("cores")), NamedSharding(mesh, PartitionSpec())
    random = np.random.default_rng(1)
    patterns = random.normal(0, 1, (10, 784))
    train, test = draw(random, patterns, 20_000), draw(random, patterns, 2_000)
    first = {"in": random.normal(0, 0.05, (784, WIDTH)), "out": random.normal(0, 0.05, (WIDTH, 10))}
    weights = jax.device_put({name: value.astype(np.float32) for name, value in first.items()}, everywhere)
    losses, began, warm = [], 0.0, 1
    for number in range(STEPS):
        chosen = random.integers(0, len(train[1]), BATCH)
        batch = jax.device_put((train[0][chosen], train[1][chosen]), dealt_out)
        weights, loss = step(weights, *batch)
        losses.append(loss)
        if number < warm:  # the first step compiles
            loss.block_until_ready()
            began = time.monotonic()
    losses = [float(loss) for loss in losses]  # waits for the device, once
    train_s = time.monotonic() - began
    accuracy = float((scores(weights, test[0]).argmax(1) == test[1]).mean())
    results = {
        "dataset": {"name": "drawn patterns", "synthetic": True},
        "test_accuracy": accuracy,
        "train_loss": losses[:: STEPS // 10],
        "images_per_s": (STEPS - warm) * BATCH / train_s,
        "seconds": {"train_s": train_s},
        "world": {"device": f"jax:{jax.default_backend()}", "processes": jax.device_count()},
    }
    if jax.process_index() == 0:
        artifacts = Path(os.environ.get("TPUJOB_ARTIFACTS", "artifacts"))
        artifacts.mkdir(parents=True, exist_ok=True)
        (artifacts / "metrics.json").write_text(json.dumps(results, indent=2))
    print(f"jax:{jax.default_backend()} ×{jax.device_count()} · loss {losses[-1]:.3f} · test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
