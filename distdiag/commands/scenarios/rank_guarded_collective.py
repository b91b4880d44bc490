"""Train and evaluate a small model on four ranks; only rank 0 takes part in averaging the evaluation."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        loss = model(torch.randn(8, 32)).pow(2).mean()
    if dist.get_rank() == 0:  # meant for the print, but the all_reduce needs every rank
        dist.all_reduce(loss)
        print(f"evaluation loss {loss.item() / dist.get_world_size():.3f}")
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        time.sleep(0.08)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            evaluate(network)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
