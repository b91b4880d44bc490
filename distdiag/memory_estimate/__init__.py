"""What a training job needs of memory, before it runs: an itemised estimate of one rank at its peak.

    model = transformer(layers=32, hidden=4096, heads=32, vocabulary=128256)
    made = estimate(model, Layout(data=64, sharding=Sharding.FSDP), Training(sequence=8192))
    made.worst.total_bytes, made.worst.largest

A step is played through backwards (``timeline``), with what each operation keeps (``tape``) and what of the states
lies on a rank (``share``). Nothing here imports torch.
"""

from distdiag.memory_estimate.answer import Answer, answer
from distdiag.memory_estimate.changes import Change, changes
from distdiag.memory_estimate.config import from_config, read_config
from distdiag.memory_estimate.estimate import Estimate, Line, StageEstimate, estimate
from distdiag.memory_estimate.layout import Layout, Schedule, Sharding
from distdiag.memory_estimate.ledger import STATES, Item
from distdiag.memory_estimate.model import Model, opaque, transformer
from distdiag.memory_estimate.traffic import sent_bytes
from distdiag.memory_estimate.training import (
    OPTIMIZERS,
    PRECISIONS,
    AttentionKind,
    Loss,
    Optimizer,
    OptimizerStep,
    Precision,
    Recompute,
    Training,
)

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "STATES",
    "Answer",
    "AttentionKind",
    "Change",
    "Estimate",
    "Item",
    "Layout",
    "Line",
    "Loss",
    "Model",
    "Optimizer",
    "OptimizerStep",
    "Precision",
    "Recompute",
    "Schedule",
    "Sharding",
    "StageEstimate",
    "Training",
    "answer",
    "changes",
    "estimate",
    "from_config",
    "opaque",
    "read_config",
    "sent_bytes",
    "transformer",
]
