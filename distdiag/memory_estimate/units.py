"""Weights of a stage while it computes: gathered unit by unit, their gradients made, reduced and let go.

The order is FSDP2's (``fully_shard`` on each block and on the whole): a unit's all-gather buffer is copied out as
its backward begins, the next one's is filled meanwhile; the input of a reduce-scatter lives until the next one; what
stands in no block stays gathered from the forward to the end of the backward. ZeRO-3 is taken to do the same with
its modules, but reduces through a bucket and gathers what stands in no block only where it is used.
"""

from dataclasses import dataclass

from distdiag.memory_estimate import sharding
from distdiag.memory_estimate.layout import Layout, Sharding
from distdiag.memory_estimate.ledger import Item, Ledger
from distdiag.memory_estimate.model import UNKNOWN, Block, Weight
from distdiag.memory_estimate.training import Training

ROOT = -1
"""Number of the unit that holds what stands in no block."""


@dataclass(slots=True, kw_only=True)
class Units:
    """The blocks that one backward passes, and what stands beside them, as units that may be gathered."""

    ledger: Ledger
    layout: Layout
    training: Training
    blocks: tuple[Block, ...]
    outside: tuple[Weight, ...]
    accumulates: bool
    """Gradients of an earlier micro-batch are there."""
    _scattered: int = 0

    @property
    def sharded(self) -> bool:
        """Whether parameters have to be gathered."""
        return self.layout.sharding.stage == 3

    @property
    def _fsdp(self) -> bool:
        return self.layout.sharding is Sharding.FSDP

    @property
    def gradients_are_there(self) -> bool:
        """Whether the backward finds gradients: an earlier micro-batch's, or a buffer that exists from the start."""
        precision = self.training.precision
        summed_apart = precision.gradient > precision.parameter and not self._fsdp
        in_buckets = self.training.bucket_views and self.layout.shards > 1 and self.layout.sharding.stage <= 1
        return self.accumulates or summed_apart or in_buckets

    def begin(self) -> None:
        """Gather what stays gathered during the whole backward."""
        if not self.sharded:
            return
        if not self.layout.reshard_after_forward:
            for number in range(len(self.blocks)):
                self._gather(number)
        if self._fsdp:
            self._gather(ROOT)

    def enter(self, number: int) -> None:
        """Copy a unit out of its all-gather's buffer, and begin to gather the one before it."""
        if not self.sharded or not self.layout.reshard_after_forward:
            return
        if self.ledger.now.get(Item.PREFETCHED, 0) == 0:
            self.ledger.hold(Item.PREFETCHED, self._padded(number))
        self._gather(number)
        self.ledger.clear(Item.PREFETCHED)
        if number > 0:
            self.ledger.hold(Item.PREFETCHED, self._padded(number - 1))

    def leave(self, number: int) -> None:
        """Let a unit go and reduce its gradients."""
        if self.sharded:
            self._ungather(number)
            self._reduce(number)

    def enter_outside(self) -> None:
        """Gather what stands in no block, where it is not kept."""
        if self.sharded and not self._fsdp:
            self._gather(ROOT)

    def leave_outside(self) -> None:
        """Let it go again."""
        if self.sharded and not self._fsdp:
            self._ungather(ROOT)
            self._reduce(ROOT)

    def end(self) -> None:
        """Reduce what has been kept to the end of the backward."""
        if self._fsdp:
            self._ungather(ROOT)
            self._reduce(ROOT)
            self._drop_scattered()

    def make_gradients(self, prefixes: tuple[str, ...], weights: tuple[Weight, ...], *, again: bool = False) -> None:
        """Make the gradients of the weights whose names begin so: temporaries first, then the parameters' own.

        ``again``: this backward has made them before, as that of a tied matrix.
        """
        chosen = [weight for weight in weights if weight.name.startswith(prefixes)] if prefixes else []
        of_one = self.training.precision.compute if self.sharded else self.training.precision.parameter
        made = sharding.total(chosen, self.layout) * of_one
        unknown = all(each.name == UNKNOWN for each in chosen)  # one number for tensors that are made one by one
        kept = Item.UNIT_GRADIENTS if self.sharded else Item.GRADIENTS
        if again or (not self.sharded and self.gradients_are_there):  # added to what is there
            self._pass_through(0 if unknown else made)
        elif self.layout.sharding is Sharding.ZERO_2:  # through the bucket, one after another
            largest = max((sharding.local(each, self.layout) for each in chosen), default=0)
            self._pass_through(0 if unknown else largest * of_one)
            self.ledger.hold(Item.GRADIENTS, self._shard(tuple(chosen)) * self.training.precision.gradient)
        elif unknown:
            self.ledger.hold(kept, made)
        else:
            self.ledger.hold(Item.TEMPORARIES, made)
            self.ledger.move(Item.TEMPORARIES, kept, made)

    def _pass_through(self, size: int) -> None:
        self.ledger.hold(Item.TEMPORARIES, size)
        self.ledger.free(Item.TEMPORARIES, size)

    def _unit(self, number: int) -> tuple[Weight, ...]:
        return self.outside if number == ROOT else self.blocks[number].weights

    def _shard(self, weights: tuple[Weight, ...]) -> int:
        return sum(sharding.shard(each, self.layout) for each in weights)

    def _padded(self, number: int) -> int:
        """Return the bytes of a unit as one buffer of equal shards."""
        elements = sum(sharding.gathered(each, self.layout) for each in self._unit(number))
        return elements * self.training.precision.compute

    def _computing(self, number: int) -> int:
        """Return the bytes of a unit in the format of the computation, as parameters or as their gradients."""
        return sharding.total(self._unit(number), self.layout) * self.training.precision.compute

    def _gather(self, number: int) -> None:
        self.ledger.hold(Item.GATHERED, self._computing(number))

    def _ungather(self, number: int) -> None:
        self.ledger.free(Item.GATHERED, self._computing(number))

    def _reduce(self, number: int) -> None:
        """Scatter the gradients of a unit."""
        precision = self.training.precision
        if self._fsdp:
            self._drop_scattered()
            self._scattered = self._padded(number)
            self.ledger.hold(Item.BUCKETS, self._scattered)
        made = min(self._computing(number), self.ledger.now.get(Item.UNIT_GRADIENTS, 0))
        self.ledger.free(Item.UNIT_GRADIENTS, made)
        of_one = (self._fsdp and precision.master) or precision.gradient
        part = self._shard(self._unit(number)) * of_one
        self.ledger.hold(Item.GRADIENTS, part)
        if self.accumulates:
            self.ledger.free(Item.GRADIENTS, part)

    def _drop_scattered(self) -> None:
        self.ledger.free(Item.BUCKETS, self._scattered)
        self._scattered = 0
