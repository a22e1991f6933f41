"""Twelve small programs, six in each framework, with what `tpujob check` has to say of each for one chip of a v5e."""

from __future__ import annotations

from dataclasses import dataclass

TORCH = """\
import torch, torch_xla
from torch import nn
device = torch_xla.device()
torch.manual_seed(1)

def train(model, batches, optimizer=None, after=lambda loss: None):
    model = model.to(device)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        after(loss)
"""
JAX = """\
import jax, jax.numpy as jnp

def loss_of(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

@jax.jit
def train_step(w, x):
    return w - 0.01 * jax.grad(loss_of)(w, x)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and what a check says: `says` are words of its lines."""

    name: str
    source: str
    verdict: str
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()  # what it must not say
    accelerator: str = "v5litepod-1"
    ci: bool = False


RECOMPILED, READS = "a new program is compiled", "reads from the device in each step"

CASES = (
    Case("torch_fits", TORCH + "train(nn.Linear(256, 128), (torch.ones(32, 256) for _ in range(6)))\n",
        "fits", silent=(RECOMPILED, READS), ci=True),
    # 15.875 GiB, of 15.75.
    Case("torch_a_little_too_large", TORCH + """
y = torch.ones(65536, 8, device=device) @ torch.ones(8, 65024, device=device)
torch_xla.sync()
""", "does not fit", ("0.1", "too much", "65536,65024")),
    Case("torch_far_too_large", TORCH + """
x = torch.ones(262144, 8, device=device)
y = (x @ x.T).softmax(-1)
torch_xla.sync()
""", "does not fit", ("too much", "262144")),
    Case("torch_odd_last_batch", TORCH + """
train(nn.Linear(256, 128), (torch.ones(32 if step < 5 else 7, 256) for step in range(6)))
""", "fits", (RECOMPILED, "f32[32,256]", "f32[7,256]")),
    Case("torch_item_in_the_loop", TORCH + """
train(nn.Linear(256, 128), (torch.ones(32, 256) for _ in range(6)), after=lambda loss: print(loss.item()))
""", "fits", (READS,)),
    Case("torch_gradient_accumulation_in_bf16", TORCH + """
model = nn.Linear(256, 128, dtype=torch.bfloat16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    model(torch.ones(32, 256, dtype=torch.bfloat16, device=device)).square().mean().backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
    torch_xla.sync()
""", "fits"),
    Case("jax_fits", JAX + """
w = jnp.ones((256, 128))
for _ in range(6):
    w = train_step(w, jnp.ones((32, 256)))
w.block_until_ready()
""", "fits", silent=(RECOMPILED, READS), ci=True),
    Case("jax_too_large", """\
import jax, jax.numpy as jnp

@jax.jit
def train_step(w, x):
    return w * 0.99, x @ w

w = jnp.ones((8, 131072))
for _ in range(6):
    w, predicted = train_step(w, jnp.ones((65536, 8)))
""", "does not fit", ("too much", "train_step", "65536,131072"), ci=True),
    Case("jax_growing_sequence", JAX + """
w = jnp.ones((256, 128))
for step in range(8):
    w = train_step(w, jnp.ones((8 + step, 256)))
""", "fits", (RECOMPILED, "in each step", "padded")),
    Case("jax_float_in_the_loop", """\
import jax, jax.numpy as jnp

@jax.jit
def train_step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.01 * gradient, loss

w = jnp.ones((256, 128))
for _ in range(6):
    w, loss = train_step(w, jnp.ones((32, 256)))
    print(float(loss))
""", "fits", (READS,)),
    Case("jax_sharded_over_eight", JAX + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), ("data",))
w = jax.device_put(jnp.ones((512, 2048)), NamedSharding(mesh, P()))
x = jax.device_put(jnp.ones((8 * 64, 512)), NamedSharding(mesh, P("data")))
for _ in range(6):
    w = train_step(w, x)
print(len(jax.devices()), "devices")
""", "fits", ("arguments 4.12 MiB",), accelerator="v5litepod-8"),
    Case("jax_calls_what_only_a_cpu_has", """\
import jax, jax.numpy as jnp

@jax.jit
def train_step(a):
    return jnp.linalg.eig(a)[0].real[:, None] * a

a = jnp.eye(16)
for _ in range(6):
    a = train_step(a)
a.block_until_ready()
""", "not judged", ("cannot be compiled for a TPU", "geev")),
)  # fmt: skip
