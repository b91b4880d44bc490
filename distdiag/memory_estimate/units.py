"""Weights of a stage while it computes: gathered unit by unit, their gradients made, reduced and let go.

The order is FSDP2's (``fully_shard`` on each block and on the whole): a unit's all-gather buffer is copied out as
its backward begins, the next one's is filled meanwhile; the input of a reduce-scatter lives until the next one; what
stands in no block stays gathered from the forward to the end of the backward. ZeRO-3 is taken to do the same with
its modules, but reduces through a bucket and gathers what stands in no block only where it is used.
"""

from dataclasses import dataclass

from distdiag.memory_estimate import share
from distdiag.memory_estimate.layout import Layout, Sharding
from distdiag.memory_estimate.ledger import Item, Ledger
from distdiag.memory_estimate.model import UNKNOWN, Block, Weight
from distdiag.memory_estimate.training import Training


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
            for block in self.blocks:
                self.ledger.hold(Item.GATHERED, self._computing(block.weights))
        if self._fsdp:
            self.ledger.hold(Item.GATHERED, self._computing(self.outside))

    def enter(self, number: int) -> None:
        """Copy a unit out of its all-gather's buffer, and begin to gather the one before it."""
        if not self.sharded or not self.layout.reshard_after_forward:
            return
        if self.ledger.now.get(Item.PREFETCHED, 0) == 0:
            self.ledger.hold(Item.PREFETCHED, self._padded(self.blocks[number].weights))
        self.ledger.hold(Item.GATHERED, self._computing(self.blocks[number].weights))
        self.ledger.clear(Item.PREFETCHED)
        if number > 0:
            self.ledger.hold(Item.PREFETCHED, self._padded(self.blocks[number - 1].weights))

    def leave(self, number: int) -> None:
        """Let a unit go and reduce its gradients."""
        if self.sharded:
            weights = self.blocks[number].weights
            self.ledger.free(Item.GATHERED, self._computing(weights))
            self._reduce(weights)

    def enter_outside(self, weights: tuple[Weight, ...]) -> None:
        """Gather what stands in no block where it is used, unless it is kept."""
        if self.sharded and not self._fsdp:
            self.ledger.hold(Item.GATHERED, self._computing(weights))

    def leave_outside(self, weights: tuple[Weight, ...], *, again: bool = False) -> None:
        """Let it go again and reduce its gradients; ``again``: they are added to what has been reduced."""
        if self.sharded and not self._fsdp:
            self.ledger.free(Item.GATHERED, self._computing(weights))
            self._reduce(weights, again=again)

    def end(self) -> None:
        """Reduce what has been kept to the end of the backward."""
        if self._fsdp:
            self.ledger.free(Item.GATHERED, self._computing(self.outside))
            self._reduce(self.outside)
            self._drop_scattered()

    def make_gradients(self, prefixes: tuple[str, ...], weights: tuple[Weight, ...], *, again: bool = False) -> None:
        """Make the gradients of the weights whose names begin so: temporaries first, then the parameters' own.

        ``again``: this backward has made them before, as that of a tied matrix.
        """
        chosen = [weight for weight in weights if weight.name.startswith(prefixes)] if prefixes else []
        of_one = self.training.precision.gathered if self.sharded else self.training.precision.parameter
        made = share.total(chosen, self.layout) * of_one
        unknown = all(each.name == UNKNOWN for each in chosen)  # one number for tensors that are made one by one
        kept = Item.UNIT_GRADIENTS if self.sharded else Item.GRADIENTS
        if again or (not self.sharded and self.gradients_are_there):  # added to what is there
            self._pass_through(0 if unknown else made)
        elif self.layout.sharding is Sharding.ZERO_2:  # through the bucket, one after another
            largest = max((share.local(each, self.layout) for each in chosen), default=0)
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

    def _shard(self, weights: tuple[Weight, ...]) -> int:
        return sum(share.shard(each, self.layout) for each in weights)

    def _padded(self, weights: tuple[Weight, ...]) -> int:
        """Return the bytes of a unit as one buffer of equal shards."""
        return sum(share.gathered(each, self.layout) for each in weights) * self.training.precision.gathered

    def _computing(self, weights: tuple[Weight, ...]) -> int:
        """Return the bytes of a unit where it computes, as parameters or as their gradients."""
        return share.total(weights, self.layout) * self.training.precision.gathered

    def _reduce(self, weights: tuple[Weight, ...], *, again: bool = False) -> None:
        """Scatter the gradients of a unit."""
        precision = self.training.precision
        if self._fsdp:
            self._drop_scattered()
            self._scattered = self._padded(weights) // precision.gathered * precision.gradient
            self.ledger.hold(Item.BUCKETS, self._scattered)
        made = min(self._computing(weights), self.ledger.now.get(Item.UNIT_GRADIENTS, 0))
        self.ledger.free(Item.UNIT_GRADIENTS, made)
        of_one = (self._fsdp and precision.master) or precision.gradient
        part = self._shard(weights) * of_one
        if self.gradients_are_there or again:
            self._pass_through(part)  # added to the shard's own
        else:
            self.ledger.hold(Item.GRADIENTS, part)

    def _drop_scattered(self) -> None:
        self.ledger.free(Item.BUCKETS, self._scattered)
        self._scattered = 0
