"""Train a small model on four ranks; the samples of rank 2 stop coming."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset[torch.Tensor]):
    """The samples of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> torch.Tensor:
        return read_sample(self.rank, index)


def read_sample(rank: int, index: int) -> torch.Tensor:
    if rank == 2 and index == 29:
        time.sleep(3600)  # as read() does on a mount whose server is gone
    time.sleep(0.02)
    return torch.randn(32)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Shard(dist.get_rank()), batch_size=4):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
