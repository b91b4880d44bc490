"""Train on documents of different lengths on four ranks; one of rank 1's does not fit into any memory."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Attention(nn.Module):
    """Attention with a full mask: its memory grows with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, document: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(len(document), len(document)).tril()
        hidden: torch.Tensor = self.project(document)
        weights = ((hidden @ hidden.T) * mask).softmax(dim=-1)
        return weights @ hidden


def read_document(rank: int, step: int) -> torch.Tensor:
    time.sleep(0.08)
    length = 12_000_000 if rank == 1 and step == 9 else 64
    return torch.ones(1, 16).expand(length, 16)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    model = DistributedDataParallel(Attention())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        document = read_document(dist.get_rank(), step)
        optimizer.zero_grad()
        loss = model(document).pow(2).mean()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
