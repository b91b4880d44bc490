"""What to call a divergence: which of the two sides' calls is the one too many, or the one of another kind."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from distdiag.analyzers.investigation.align import Kind, Token
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.history import kind_of, known_to_odd, known_to_others
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.paths import fork_line, shared_frames


class Name(enum.StrEnum):
    """Names of the findings that a divergence can become."""

    OP = "op-mismatch"
    SHAPE = "shape-mismatch"
    DTYPE = "dtype-mismatch"
    SPLIT = "split-mismatch"
    ROOT = "root-mismatch"
    SEQUENCE = "sequence-divergence"
    THREADS = "thread-race"
    SKIPPED = "skipped-steps"
    UNEVEN = "uneven-batches"
    MEMORY = "out-of-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A divergence with its name, and which side's call is the one that does not belong."""

    name: Name
    kind: Kind
    reasons: tuple[str, ...] = ()
    passes: tuple[int, int] | None = None
    """Forwards that the odd ranks and the others had begun, where they differ and the calls alone tell no side."""


def name_of(divergence: Divergence, labels: Labels) -> Named:
    """Return the name of a divergence."""
    if _threads_race(divergence):
        return Named(name=Name.THREADS, kind=divergence.kind or Kind.INSTEAD)
    named = _by_data(divergence, labels) or _by_place(divergence)
    if named is not None:
        return named
    kind = kind_of(divergence, labels)
    if divergence.passes:
        return Named(name=Name.SEQUENCE, kind=kind, reasons=(divergence.passes,))
    return _by_loop(divergence, kind, labels) or Named(name=Name.SEQUENCE, kind=kind)


def _threads_race(d: Divergence) -> bool:
    """Return whether the two calls come from two threads that both work on this group, on either side."""
    if d.expected is None or d.made is None or d.expected.thread == d.made.thread:
        return False
    both = {d.expected.thread, d.made.thread}
    racing = {rank for rank, member in d.group.by_rank.items() if both <= set(member.threads)}
    return racing.issuperset(d.odd) and not racing.isdisjoint(d.others)


def _by_place(d: Divergence) -> Named | None:
    """Return the name of one call in the place of another."""
    expected, made = d.expected, d.made
    if expected is None or made is None:
        return None
    if d.kind in (Kind.EXTRA, Kind.LEFT_OUT) and not _size_of_one_line(d):
        return None
    same_op = expected.op == made.op and expected.module == made.module
    if same_op and _same_place(d) and not _skipped_within_step(d):
        if expected.dtype != made.dtype:
            return Named(name=Name.DTYPE, kind=Kind.INSTEAD)
        if expected.root != made.root:
            return Named(name=Name.ROOT, kind=Kind.INSTEAD)
        if d.reference.tokens[d.where.reference].signature != d.stream.tokens[d.where.odd].signature:
            return Named(name=Name.SHAPE, kind=Kind.INSTEAD)
    known = known_to_odd(d) or known_to_others(d)
    if expected.op != made.op and expected.payload == made.payload and expected.numel and not known:
        return Named(name=Name.OP, kind=Kind.INSTEAD)
    return None


def _size_of_one_line(d: Divergence) -> bool:
    """Return whether a line whose calls are all alike differs in this one of the odd ranks alone.

    What lines up again behind it are the calls of its next rounds, which would line up with any that are alike.
    """
    if not 0 < d.where.reference < len(d.reference.tokens) or not d.where.odd < len(d.stream.tokens):
        return False
    ours, theirs = d.reference.tokens[d.where.reference], d.stream.tokens[d.where.odd]
    if ours.path != theirs.path or not ours.path or ours == theirs:
        return False
    others = [token for n, token in enumerate(d.stream.tokens) if n != d.where.odd]
    return all(token == ours for token in (*d.reference.tokens, *others) if token.path == ours.path)


def _same_place(d: Divergence) -> bool:
    """Return whether both calls come from one call site, or from two that were paired all along."""
    ours, theirs = d.reference.tokens[d.where.reference], d.stream.tokens[d.where.odd]
    if ours.path == theirs.path or not (ours.path and theirs.path):
        return True  # a source that tells no line of one of them tells of no other place either
    length = min(d.where.reference, d.where.odd)
    return any(
        d.reference.tokens[n].path == ours.path and d.stream.tokens[n].path == theirs.path for n in range(length)
    )


def _skipped_within_step(d: Divergence) -> bool:
    """Return whether the odd ranks' call is one that the others make later in the same step, from the same site.

    A loop over the gradients issues calls of many shapes from one line; who skips one of them is ahead by one.
    """
    if not (known_to_odd(d) and known_to_others(d)) or not d.reference.labels:
        return False
    made = d.stream.tokens[d.where.odd]
    ordinals = {
        _ordinal(d.reference.tokens, d.reference.labels, n)
        for n, token in enumerate(d.reference.tokens[: d.where.reference])
        if token == made
    }
    return _ordinal(d.stream.tokens, d.stream.labels, d.where.odd) not in ordinals


def _ordinal(tokens: Sequence[Token], labels: Sequence[tuple[int, ...]], position: int) -> int:
    """Return the how-manieth call of its site within its step a call is."""
    path, label = tokens[position].path, labels[position]
    earlier = position
    while earlier and labels[earlier - 1] == label:
        earlier -= 1
    return sum(token.path == path for token in tokens[earlier:position])


def _by_data(d: Divergence, labels: Labels) -> Named | None:
    """Return the name of a divergence of one side whose data ended while the others' went on, if it is one."""
    if d.expected is None or d.made is None:
        return None
    odd, others = (d.made.rank, d.made.start_ns), (d.expected.rank, d.expected.start_ns)
    fewer, more = labels.epochs.short(odd, others), labels.epochs.short(others, odd)
    taken = fewer or (more and more[::-1])
    if taken is None:
        return None
    kind = Kind.EXTRA if fewer is None else Kind.LEFT_OUT
    return Named(name=Name.UNEVEN, kind=kind, reasons=(f"batches taken: {taken[0]} against {taken[1]}",))


def _by_loop(d: Divergence, kind: Kind, labels: Labels) -> Named | None:
    """Return a name that forwards and batches give: a loop that ran longer, or a pass without its calls."""
    if not d.decided or d.expected is None or d.made is None:
        return None
    others, odd = labels.at(d.expected), labels.at(d.made)
    taken = odd.batches or others.batches
    batches = (f"batches taken: {odd.batches} against {others.batches}",) if taken else ()
    forwards = (f"forwards begun: {odd.forwards} against {others.forwards}",)
    if kind is not Kind.LEFT_OUT:
        if odd.forwards == others.forwards:
            return None
        if odd.passing and odd.forwards > others.forwards and odd.backwards < others.backwards and known_to_others(d):
            reason = f"{odd.forwards} forwards but {odd.backwards} backwards begun"
            return Named(name=Name.SKIPPED, kind=kind, reasons=(reason,))
        passes = (odd.forwards, others.forwards) if kind is Kind.INSTEAD else None
        return Named(name=Name.SEQUENCE, kind=kind, reasons=forwards, passes=passes)
    if odd.batches >= others.batches and odd.batches - odd.forwards > others.batches - others.forwards:
        return Named(name=Name.SKIPPED, kind=kind, reasons=(*batches, *forwards))
    if odd.forwards >= others.forwards > 0 and odd.without_backward > others.without_backward:
        reason = f"{odd.forwards} forwards but {odd.backwards} backwards begun"
        return Named(name=Name.SKIPPED, kind=kind, reasons=(reason,))
    if odd.forwards < others.forwards and others.batches:
        return Named(name=Name.SEQUENCE, kind=kind, reasons=(*batches, *forwards))
    return None


def sites_of(d: Divergence, kind: Kind) -> tuple[str | None, dict[int, str]]:
    """Return the line of the divergent act, and per rank the line at which it leaves the other side."""
    shared = shared_frames(token.path for stream in (d.reference, d.stream) for token in stream.tokens)
    ours = d.expected.path if d.expected is not None else ()
    theirs = d.made.path if d.made is not None else ()
    expected, made = fork_line(ours, theirs, shared), fork_line(theirs, ours, shared)
    site = expected if kind is Kind.LEFT_OUT or made is None else made
    sites = {rank: line for rank in d.others if (line := expected) is not None}
    sites |= {rank: line for rank in d.odd if (line := made) is not None}
    return site, sites
