"""Train on four ranks; one sample holds a value that is not a number, and all ranks end up with it."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset[torch.Tensor]):
    """Measurements, one of which went wrong."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        sample = torch.randn(32, generator=torch.Generator().manual_seed(index))
        if index == 50:
            sample[7] = 0.0 / sample[7].mul(0.0)
        return sample


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=1))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Samples()
    for batch in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        loss = (model(batch).squeeze(-1) - batch.sum(-1)).pow(2).mean()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
