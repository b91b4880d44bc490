"""Train on four ranks and average a loss per layer; the last rank has one layer less to report."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def average_layer_losses(layers: int) -> torch.Tensor:
    losses = torch.rand(layers)
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    last = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        time.sleep(0.08)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            average_layer_losses(14 if last else 15)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
