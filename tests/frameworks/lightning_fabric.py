"""Lightning Fabric: six steps in a loop of one's own."""

import lightning
import torch
from torch.utils.data import DataLoader

from tests.frameworks.stalling import Samples

fabric = lightning.Fabric(accelerator="cpu", strategy="ddp", devices=2)
fabric.launch()
model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Flatten(), torch.nn.Linear(128, 1))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
loader = fabric.setup_dataloaders(DataLoader(Samples(24), batch_size=2))
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch["input_ids"]).square().mean()
    fabric.backward(loss)
    optimizer.step()
fabric.all_reduce(loss)
fabric.barrier()
