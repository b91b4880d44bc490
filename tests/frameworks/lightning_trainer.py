"""Lightning's Trainer: six steps and a validation."""

from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from tests.frameworks.stalling import Samples


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Flatten(), torch.nn.Linear(128, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch["input_ids"]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", self.layers(batch["input_ids"]).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(Model(), DataLoader(Samples(24), 4), DataLoader(Samples(8), 4))
