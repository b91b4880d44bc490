"""What is known of one data-parallel wrapper, and whether its gradients were averaged."""

import weakref
from collections.abc import Mapping
from typing import Any

from distdiag.hooks._checksums import checked
from distdiag.recorder import GroupState

APART_ON_PURPOSE = ("localSGD", "noop")
"""Parts of the names of communication hooks that leave replicas apart, to average them now and then or by hand."""


class Replica:
    """A wrapper with replicas on other ranks."""

    def __init__(self, number: int, wrapper: Any, group: GroupState) -> None:
        self.number = number
        self.wrapper = weakref.ref(wrapper)
        self.group = group
        self.forwards = 0
        self.synchronised = True
        """Whether the last forward that gradients come from arranged for them to be averaged."""
        self.checked_step = -1
        self.forced = 0
        self.force_next = False
        self.collectives = -1
        """Collectives on groups with all its ranks, by the last optimizer's step, or when it was made."""
        self.identities = {id(parameter) for parameter in wrapper.parameters()}
        self.handles: list[Any] = []
        self._groups: list[GroupState] = []
        self._known_groups = -1
        self._trained: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def is_trained_by(self, optimizer: Any) -> bool:
        """Return whether an optimizer changes some of its parameters."""
        known = self._trained.get(optimizer)
        if known is None:
            known = any(id(p) in self.identities for group in optimizer.param_groups for p in group["params"])
            self._trained[optimizer] = known
        return known

    def collectives_among(self, groups: Mapping[Any, GroupState]) -> int:
        """Return how many collectives the groups that hold all its ranks have begun."""
        if self._known_groups != len(groups):
            members = set(self.group.ranks)
            self._known_groups = len(groups)
            self._groups = [each for each in list(groups.values()) if members.issubset(each.ranks)]
        return sum([each.collectives for each in self._groups])

    def why_apart(self, collectives: int) -> str | None:
        """Return why nothing arranged for the gradients at hand to be averaged, None if something did."""
        if self.forwards:
            return None if self.synchronised else "no_sync"
        return "bypassed" if self.collectives == collectives else None


def parameters_of(wrapper: Any) -> list[tuple[str, Any]]:
    """Return the names and parameters that have to be equal on all ranks."""
    return checked(wrapper.module.named_parameters(), wrapper.parameters_to_ignore)


def are_apart_on_purpose(wrapper: Any) -> bool:
    """Return whether replicas may differ: averaged now and then, or changed while a backward still goes on."""
    hooks = [getattr(hook, "__name__", "") for hook, _ in getattr(wrapper, "_comm_hooks", ())]
    if any(part in name for part in APART_ON_PURPOSE for name in hooks):
        return True
    return any(hasattr(parameter, "_in_backward_optimizers") for parameter in wrapper.parameters())
