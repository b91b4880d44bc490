"""What lies in memory over the time of a step, by item, and how it was at the peak."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Item(StrEnum):
    """A line of the estimate."""

    PARAMETERS = "parameters"
    MASTER = "master weights"
    MOMENTS = "optimizer states"
    GRADIENTS = "gradients"
    GATHERED = "gathered parameters"
    PREFETCHED = "all-gather buffer"
    UNIT_GRADIENTS = "gathered unit's gradients"
    BUCKETS = "communication buffers"
    BORDERS = "pipeline buffers"
    CASTS = "cast weights"
    ACTIVATIONS = "activations"
    SCORES = "attention scores"
    LOGITS = "logits and loss"
    LOGIT_GRADIENTS = "gradients of logits"
    ATTENTION_TEMPORARIES = "attention temporaries"
    TEMPORARIES = "backward temporaries"
    STEP = "optimizer temporaries"
    CONTEXT = "device context"
    FRAGMENTATION = "fragmentation margin"


STATES = (Item.PARAMETERS, Item.MASTER, Item.MOMENTS, Item.GRADIENTS)
"""What is there whatever the batch: the model states of the ZeRO paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most was in memory."""

    moment: str
    items: Mapping[Item, int]

    @property
    def total(self) -> int:
        """Return the bytes of all items."""
        return sum(self.items.values())


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Bytes by item while a step is played through; the peak is kept, of equal ones the last."""

    now: dict[Item, int] = field(default_factory=dict)
    moment: str = ""
    total: int = 0
    peak: Peak = field(default_factory=lambda: Peak(moment="", items={}))
    _most: int = -1

    def hold(self, item: Item, size: int) -> None:
        """Put ``size`` bytes into memory."""
        self.now[item] = self.now.get(item, 0) + size
        self.total += size
        self._look()

    def free(self, item: Item, size: int) -> None:
        """Take ``size`` bytes out again."""
        self.now[item] = self.now.get(item, 0) - size
        self.total -= size

    def clear(self, item: Item) -> int:
        """Take all of an item out, and return how much that was."""
        size = self.now.get(item, 0)
        self.free(item, size)
        return size

    def move(self, source: Item, target: Item, size: int) -> None:
        """Count ``size`` bytes as another item from now on."""
        self.now[source] = self.now.get(source, 0) - size
        self.now[target] = self.now.get(target, 0) + size

    def _look(self) -> None:
        if self.total >= self._most:
            self._most = self.total
            self.peak = Peak(moment=self.moment, items=dict(self.now))
