"""MNIST with Keras on all cores of a TPU host: TPUClusterResolver finds the TPU by TPU_NAME, TPUStrategy uses its cores.

It writes a line of figures and a backup after every epoch, and resumes from the backup that it finds.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH = 512
ARTIFACTS = Path(os.environ.get("TPUJOB_ARTIFACTS", "artifacts"))


def choose_strategy():
    if os.environ.get("PJRT_DEVICE") != "TPU":
        print("no TPU here: the default strategy, on the CPU", flush=True)
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()  # reads TPU_NAME; raises an error if there is no TPU
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def load_data():
    """Return MNIST, or ten noisy patterns without a network; the results name the data set."""
    try:
        train, test = tf.keras.datasets.mnist.load_data()
        return "mnist", train, test
    except Exception as error:  # Keras raises a plain Exception when it cannot download
        print(f"MNIST cannot be downloaded ({error}): training on drawn patterns, not on real images", flush=True)
    random = np.random.default_rng(1)
    patterns = random.integers(0, 256, (10, 28, 28))

    def draw(count):
        labels = random.integers(0, 10, count)
        return np.clip(patterns[labels] + random.normal(0, 120, (count, 28, 28)), 0, 255).astype(np.uint8), labels

    return "synthetic", draw(10_000), draw(2_000)


class Figures(tf.keras.callbacks.Callback):
    """Appends the figures of each epoch to metrics.jsonl, in which tpujob looks for them."""

    def on_epoch_end(self, epoch, logs=None):
        with (ARTIFACTS / "metrics.jsonl").open("a") as file:
            file.write(
                json.dumps({"step": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}}) + "\n"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    strategy = choose_strategy()
    name, train, test = load_data()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((28, 28)),
                tf.keras.layers.Rescaling(1 / 255),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(options.lr), loss=loss, metrics=["accuracy"], steps_per_execution=10
        )
    batches = tf.data.Dataset.from_tensor_slices(train).cache().shuffle(10_000, seed=1)
    batches = batches.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    began = time.monotonic()
    resumed = tf.keras.callbacks.BackupAndRestore(ARTIFACTS / "backup", delete_checkpoint=False)
    history = model.fit(batches, epochs=options.epochs, verbose=2, callbacks=[resumed, Figures()])
    train_s = time.monotonic() - began
    _, accuracy = model.evaluate(*test, batch_size=BATCH, verbose=2)
    results = {
        "dataset": {"name": name, "synthetic": name == "synthetic"},
        "test_accuracy": accuracy,
        "train_loss": history.history.get("loss", []),
        "seconds": {"train_s": train_s},
        "world": {"device": strategy.__class__.__name__, "processes": strategy.num_replicas_in_sync},
    }
    (ARTIFACTS / "metrics.json").write_text(json.dumps(results, indent=2))
    print(f"{strategy.num_replicas_in_sync} replicas · {name} · test accuracy {100 * accuracy:.2f} % · {train_s:.1f} s")


if __name__ == "__main__":
    main()
