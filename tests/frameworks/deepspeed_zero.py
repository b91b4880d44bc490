"""DeepSpeed: six steps of ZeRO at a stage: ``deepspeed_zero.py 1 | 2 | 3``, with ``DS_ACCELERATOR=cpu``."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.frameworks.stalling import Samples

deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Flatten(), torch.nn.Linear(128, 1))
settings = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
    "zero_optimization": {"stage": int(sys.argv[1])},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=settings)
samples = Samples(24)
for batch in DataLoader(samples, batch_size=2, sampler=DistributedSampler(samples)):
    loss = engine(batch["input_ids"]).square().mean()
    engine.backward(loss)
    engine.step()
dist.barrier()
dist.destroy_process_group()
