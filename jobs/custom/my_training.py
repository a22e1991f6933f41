"""A custom training, on one core, on all cores, on GPUs or on the CPU: payload/README.md describes `backend` and `run`."""

import torch
from torch import nn


def main(backend, run):
    torch.manual_seed(run.config.seed)  # the same weights in every process
    x = torch.randn(4096, 8)
    data = torch.utils.data.TensorDataset(x, (x[:, :1] > x[:, 1:2] ** 2).float())
    model = nn.Sequential(nn.Linear(8, run.options["width"]), nn.Tanh(), nn.Linear(run.options["width"], 1))
    network = backend.wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=run.config.lr)
    step = 0
    for epoch in range(1, run.config.epochs + 1):
        for batch, labels in run.data_loader(data, run.options["batch_size"], epoch=epoch):
            loss = nn.functional.binary_cross_entropy_with_logits(network(batch), labels)
            optimizer.zero_grad()
            backend.backward(loss)
            mean_loss = backend.step(optimizer, also=loss.detach())
            backend.sync()
            step += 1
        run.report(step, loss=mean_loss.item())
        run.say(f"epoch {epoch}/{run.config.epochs}  loss {mean_loss.item():.3f}")
    return {"train_loss": mean_loss.item()}
