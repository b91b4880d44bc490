"""Replicas whose gradients a script averages by itself: known by what it reduced before the optimizer's step.

Where the members of one group reduced each gradient of an optimizer exactly once, or all of them as one flat tensor,
they add the same gradients to parameters that have to be equal. Where they reduced some of them so and left others out,
these are as parameters beside a wrapper: each rank may be meant to have its own. So are all where ranks exchange
nothing that could hold gradients: they may train each a model of its own. Where a gradient was reduced elsewhere
or twice (shards, experts, an optimizer for a part of the model), nothing is known and nothing told.
"""

import math
import weakref
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from distdiag import events
from distdiag.recorder import GroupState, Interned, Recorder

FIRST_NUMBER = 1 << 16
"""Their numbers stand apart from those of wrappers, which ranks may make in another order."""
FIRST_BESIDE = 1 << 17
LEAST_PARAMETERS = 2
"""The size of a single one may be that of anything else that is summed."""
AVERAGES = ("SUM", "AVG")
FEW_NUMBERS = 16
"""Losses, counts and flags."""

Kind = tuple[tuple[int, ...], str]
"""Shape and type of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """Parameters that the members of a group keep equal, or may have forgotten to."""

    name: str
    """``events.BY_HAND`` or ``events.BESIDE``."""
    number: int
    group: GroupState
    parameters: list[Any]

    def names(self) -> list[str]:
        """Return what tells the parameters apart: an optimizer knows no names."""
        return [f"{place} ({'x'.join(map(str, p.shape)) or 1})" for place, p in enumerate(self.parameters)]


@dataclass(slots=True, kw_only=True)
class Optimizers:
    """The optimizers of a process, in the order in which they were first asked about."""

    recorder: Recorder
    numbers: "weakref.WeakKeyDictionary[Any, int]" = field(default_factory=weakref.WeakKeyDictionary)

    def averaged_by_hand(self, optimizer: Any) -> ByHand | None:
        """Return what an optimizer is about to change, if one group reduced its gradients, or some, in this step."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        number = self.numbers.setdefault(optimizer, FIRST_NUMBER + len(self.numbers))
        if len(parameters) < LEAST_PARAMETERS or any(not _is_plain(p) or p.grad is None for p in parameters):
            return None
        wanted = Counter(_kind(p.grad) for p in parameters)
        counted = list(self.recorder.counted)
        reduced = _reduced(counted)
        whole = [name for name, kinds in reduced.items() if _covers(kinds, wanted)]
        names = whole or [name for name, kinds in reduced.items() if _covers_some(kinds, wanted)]
        groups = list(self.recorder.groups.values())
        group = next((each for each in groups if [each.event.group] == names), None)
        if group is None and not names and all(_is_small(each) for each in counted):
            group = max(groups, key=lambda each: len(each.ranks), default=None)
        if group is None:
            return None
        if whole:
            return ByHand(name=events.BY_HAND, number=number, group=group, parameters=parameters)
        return ByHand(name=events.BESIDE, number=FIRST_BESIDE + number, group=group, parameters=parameters)

    def beside(self, optimizer: Any, wrapped: Iterable[Collection[int]], group: GroupState) -> ByHand | None:
        """Return the parameters that an optimizer changes beside those of wrappers, whose identities are given."""
        known = set().union(*wrapped)
        parameters = [
            p
            for each in optimizer.param_groups
            for p in each["params"]
            if id(p) not in known and p.requires_grad and _is_plain(p)
        ]
        number = FIRST_BESIDE + self.numbers.setdefault(optimizer, FIRST_NUMBER + len(self.numbers))
        found = ByHand(name=events.BESIDE, number=number, group=group, parameters=parameters)
        return found if parameters else None


def _is_plain(parameter: Any) -> bool:
    import torch

    return type(parameter) in (torch.Tensor, torch.nn.Parameter) and not parameter.is_sparse


def _is_small(signature: Interned) -> bool:
    """Return whether a call can neither hold gradients nor what stages or parts of one model give one another."""
    event = signature.event
    few = sum(math.prod(shape) for shape in event.shapes) <= FEW_NUMBERS
    return event.op == "broadcast" or (few and not event.p2p)


def _kind(tensor: Any) -> Kind:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _reduced(counted: Iterable[Interned]) -> dict[str, Counter[Kind]]:
    """Return by group of several ranks what was summed since the last step, and how often."""
    found: dict[str, Counter[Kind]] = {}
    for signature in counted:
        event = signature.event
        if event.op == "all_reduce" and event.reduce_op in AVERAGES and event.dtype is not None:
            kinds = found.setdefault(event.group, Counter())
            for shape in event.shapes:
                kinds[tuple(shape), event.dtype] += signature.calls
    return found


def _covers(reduced: Counter[Kind], wanted: Counter[Kind]) -> bool:
    if all(reduced[kind] == count for kind, count in wanted.items()):
        return True
    dtypes = {dtype for _, dtype in wanted}
    whole = sum(math.prod(shape) * count for (shape, _), count in wanted.items())
    return len(dtypes) == 1 and reduced[(whole,), next(iter(dtypes))] == 1


def _covers_some(reduced: Counter[Kind], wanted: Counter[Kind]) -> bool:
    """Return whether some were reduced, and none twice; which of several of one kind, nobody knows."""
    if any(reduced[kind] > count for kind, count in wanted.items()):
        return False
    return sum(reduced[kind] for kind in wanted if math.prod(kind[0]) > 1) >= LEAST_PARAMETERS


def wrapper_of(known: ByHand, *, time_ns: int, step: int, names: list[str]) -> events.Wrapper:
    """Return the record that says who keeps these parameters equal, or that nobody is known to."""
    return events.Wrapper(
        wrapper=known.number,
        name=known.name,
        group=known.group.event.group,
        size_bytes=sum(p.numel() * p.element_size() for p in known.parameters),
        parameters=names,
        time_ns=time_ns,
        step=step,
    )
