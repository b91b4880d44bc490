"""A data set whose samples do not come on one rank, if ``STALL_RANK`` says so."""

import os
import time

import torch
from torch.utils.data import Dataset

STALLS_AT = 9
"""Index from which on samples do not come: some batches have come by then, on any shuffle."""
FOREVER_SECONDS = 600


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens, the same for an index everywhere."""

    def __init__(self, count: int = 64, length: int = 16, vocabulary: int = 100) -> None:
        self._count, self._length, self._vocabulary = count, length, vocabulary
        self._read = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self._read += 1
        if self._read > STALLS_AT and os.environ["RANK"] == os.environ.get("STALL_RANK"):
            wait_for_storage()
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, self._vocabulary, (self._length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def wait_for_storage() -> None:
    """Be what a dead file server is."""
    time.sleep(FOREVER_SECONDS)
