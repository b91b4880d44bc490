"""What has to be the same on the ranks of a group, compared while a job runs: kinds of reductions, and replicas."""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdiag import events
from distdiag.events import BY_HAND, HYBRID
from distdiag.replicas import Check, Disagreement, compared
from distdiag.thinning import READ_AT_FIRST, READ_EACH

OPEN_KEPT = 1024
"""Reductions of a group of which the kinds of some members are still to come, or were not read."""
Kinds = Mapping[str, tuple[events.Signature, list[int]]]
"""By kind: a signature of it, and the ranks that asked for it."""
STEPS_KEPT = 64
"""Steps of which the checks of some members are still to come."""
OWN_STEPS = 32
"""Replicas whose gradients stay apart may be averaged now and then: for so many steps after they were first seen to
differ, nothing is said of them."""
AVERAGES = 2
"""As often their parameters are averaged where that is a habit."""
OF_THE_PARAMETERS = (0.5, 2.0)
"""Bytes that averaging them may carry, beside the gradients': in a smaller or in a larger type."""
COMPARED = frozenset({"DistributedDataParallel", BY_HAND, HYBRID})
"""Whose members hold the same parameters; other wrappers shard them."""


class ReadReductions:
    """The reductions of one group whose kinds were read, until those of all members are there."""

    __slots__ = ("_members", "_open", "mixed_at")

    def __init__(self, members: int) -> None:
        self._members = members
        self._open: dict[int, dict[str, tuple[events.Signature, list[int]]]] = {}
        self.mixed_at = 0
        """Number of the first reduction seen that members asked for in several kinds."""

    def note(self, rank: int, seq: int, kind: str, signature: events.Signature) -> None:
        """Take the kind of one member's reduction."""
        if 0 < self.mixed_at < seq:
            return  # what follows is its consequence
        kinds = self._open.setdefault(seq, {})
        _, ranks = kinds.setdefault(kind, (signature, []))
        ranks.append(rank)
        if len(kinds) > 1:
            self.mixed_at = seq
        elif len(ranks) >= self._members:
            del self._open[seq]
        elif len(self._open) > OPEN_KEPT:
            del self._open[next(iter(self._open))]

    def mixed(self) -> Kinds:
        """Return who asked for which kind in the first reduction in which they differ."""
        return self._open.get(self.mixed_at, {})


class KindsRead:
    """Says of each reduction of one rank whether its kind was read, as ``distdiag.thinning`` has it."""

    __slots__ = ("_lines", "_of", "_whole")

    def __init__(self) -> None:
        self._whole = True
        self._lines: dict[tuple[object, ...], dict[str, int]] = {}
        """By all that tells signatures apart but the kind: how often each kind was asked for."""
        self._of: dict[int, tuple[dict[str, int], str]] = {}
        """The line of each signature, and its kind."""

    def miss(self) -> None:
        """Note that calls were not seen: which of a line's are the first is not known any more."""
        self._whole = False

    def read(self, number: int, signature: events.Signature) -> str | None:
        """Return the kind of the next reduction, None where it may have been taken over from an earlier call."""
        known = self._of.get(signature.signature)
        if known is None:
            if signature.reduce_op is None:
                return None
            line = self._lines.setdefault(_line(signature), {})
            line.setdefault(signature.reduce_op, 0)
            known = self._of[signature.signature] = line, signature.reduce_op
        line, kind = known
        line[kind] = count = line[kind] + 1
        # Once a line was seen to have several kinds, it is asked each time.
        if len(line) > 1 or number % READ_EACH == 1 or (self._whole and count <= READ_AT_FIRST):
            return kind
        return None


def _line(signature: events.Signature) -> tuple[object, ...]:
    shapes = tuple(map(tuple, signature.shapes))
    return signature.group, signature.path, signature.agree, shapes, signature.module, signature.thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Desync:
    """Replicas of one wrapper that were not equal in the newest step of which all checks are known."""

    wrapper: int
    members: tuple[int, ...]
    names: tuple[str, ...]
    """Of the parameters, in order."""
    by_hand: bool
    """Whether the script averages the gradients by itself."""
    step: int
    """The first in which they were seen to differ."""
    equal_step: int | None
    """The last before it in which all were equal."""
    found: Disagreement


class _Replicas:
    """The replicas of one wrapper, or those whose gradients the script averages by itself."""

    def __init__(self, wrapper: int, members: tuple[int, ...], size_bytes: int, *, by_hand: bool) -> None:
        self.wrapper, self.members, self.size_bytes, self.by_hand = wrapper, members, size_bytes, by_hand
        self.desync: Desync | None = None
        self._names: tuple[str, ...] | None = None
        self._named_alike = True
        self._checks: dict[int, dict[int, Check]] = {}
        self._gradients: dict[int, set[int | None]] = {}
        """Checksums of the averaged gradients, by step: those of replicas are the same."""
        self._equal_steps: deque[int] = deque(maxlen=STEPS_KEPT)
        self._apart_at: int | None = None
        """The newest step whose gradients stayed apart."""
        self._newest = self._averaged = 0

    def learn(self, names: tuple[str, ...]) -> None:
        """Take the names of one member's parameters."""
        self._names = names if self._names is None else self._names
        self._named_alike &= names == self._names

    def told(self) -> Desync | None:
        """Return how they are not equal, with what was known before: logs of ranks are read one after the other."""
        if self.desync is None or (self.by_hand and not self._named_alike) or self._may_be_meant():
            return None
        before = max((step for step in self._equal_steps if step < self.desync.step), default=None)
        return dataclasses.replace(self.desync, equal_step=before)

    def _may_be_meant(self) -> bool:
        """Return whether ranks make steps of their own between averages of their parameters, or may yet do so."""
        if self.desync is None or self._apart_at is None:
            return False
        habit = AVERAGES <= self._averaged < self._newest
        return habit or self._newest - self.desync.step < OWN_STEPS

    def keep_apart(self, step: int) -> None:
        """Take it that an optimizer's step used the gradients of one member alone."""
        self._apart_at = step

    def end_step(self, step: int, summed_bytes: int) -> None:
        """Take a step of the first member, with what was summed over all of them."""
        self._newest = step
        least, most = OF_THE_PARAMETERS
        self._averaged += (
            step == self._apart_at and 0 < least * self.size_bytes <= summed_bytes <= most * self.size_bytes
        )

    def note(self, rank: int, step: int, check: Check, gradients: int | None) -> None:
        """Take the check of one member."""
        checks = self._checks.setdefault(step, {})
        checks[rank] = check
        whole = len(checks) == len(self.members)
        averaged = self._gradients.setdefault(step, set())
        averaged.add(gradients)
        # Those of a script's own are meant to be equal where the gradients of all are known, and are.
        if not self.by_hand or (whole and len(averaged) == 1 and None not in averaged):
            self._compare(step, checks, whole=whole)
        if whole or len(self._checks) > STEPS_KEPT:
            done = step if whole else next(iter(self._checks))
            del self._checks[done], self._gradients[done]

    def _compare(self, step: int, checks: dict[int, Check], *, whole: bool) -> None:
        found = compared(checks, len(self.members))
        if found is not None and (self.desync is None or step <= self.desync.step):
            self.desync = Desync(
                wrapper=self.wrapper,
                members=self.members,
                names=self._names or (),
                by_hand=self.by_hand,
                step=step,
                equal_step=None,
                found=found,
            )
        elif found is None and whole:
            self._equal_steps.append(step)
            if self.desync is not None and step > self.desync.step:
                self.desync = None


class LiveReplicas:
    """The replicas of a job, put together from what its ranks write."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], _Replicas] = {}
        """By rank and number of the wrapper."""
        self._all: dict[tuple[int, str, tuple[int, ...]], _Replicas] = {}
        self._firsts: dict[int, list[_Replicas]] = {}
        self._spoiled: dict[int, int] = {}
        """First step of a rank in which something was not finite: such values have many forms."""

    def learn(self, rank: int, record: events.Wrapper, members: tuple[int, ...]) -> None:
        """Take a member's record of a wrapper."""
        if record.name not in COMPARED or len(members) < 2:
            return
        key = record.wrapper, record.group, members
        known = self._all.get(key)
        if known is None:
            by_hand = record.name == BY_HAND
            known = self._all[key] = _Replicas(record.wrapper, members, record.size_bytes, by_hand=by_hand)
            self._firsts.setdefault(members[0], []).append(known)
        known.learn(tuple(record.parameters))
        self._of[rank, record.wrapper] = known

    def note(self, rank: int, record: events.Numerics) -> None:
        """Take what a rank wrote of the numbers of a step."""
        if record.nonfinite:
            self._spoiled[rank] = min(record.step, self._spoiled.get(rank, record.step))
        replicas = self._of.get((rank, record.wrapper or 0))
        if replicas is not None and record.unsynchronised is not None:
            replicas.keep_apart(record.step)
        if replicas is not None and record.checksum is not None:
            replicas.note(rank, record.step, Check(record.checksum, record.digests), record.gradients)

    def first_of(self, rank: int) -> Sequence[_Replicas]:
        """Return the replicas whose first member a rank is."""
        return self._firsts.get(rank, ())

    def desyncs(self) -> list[Desync]:
        """Return what is not equal and was before anything was not finite, the earliest first."""
        found = [told for each in self._all.values() if (told := each.told()) is not None]
        clean = [each for each in found if all(each.step <= self._spoiled.get(r, each.step) for r in each.members)]
        return sorted(clean, key=lambda each: (each.step, each.members, each.wrapper))
