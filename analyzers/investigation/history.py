"""Which side's call does not belong where two streams go apart, from what both did before and how far they were."""

from collections.abc import Sequence
from itertools import pairwise

from distdiag.analyzers.investigation.align import Kind, Stream, Token
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.issued import Issued
from distdiag.analyzers.investigation.loops import Labels, Progress
from distdiag.analyzers.investigation.paths import Frames, parts


def kind_of(d: Divergence, labels: Labels) -> Kind:
    """Return whether the odd ranks issued a call too many or left one out; ``INSTEAD`` where it could be either."""
    if d.kind is not None and d.kind is not Kind.INSTEAD:
        # Both sides went on, and their calls line up again.
        return Kind.INSTEAD if d.kind is Kind.LEFT_OUT and _only_repeats(d) else d.kind
    if d.made is None:
        return Kind.LEFT_OUT
    if d.expected is None:
        return Kind.EXTRA
    to_odd, to_others = known_to_odd(d), known_to_others(d)
    if to_odd and to_others:
        return _both_know(d, others=labels.at(d.expected), odd=labels.at(d.made))
    if to_odd:
        return _one_side_is_in_its_loop(labels, inside=d.expected, outside=d.made, if_done=Kind.LEFT_OUT)
    if to_others:
        return _one_side_is_in_its_loop(labels, inside=d.made, outside=d.expected, if_done=Kind.EXTRA)
    return Kind.INSTEAD


def _only_repeats(d: Divergence) -> bool:
    """Return whether all that the odd ranks did since is what they had done just before, in the same pass.

    Then they may have gone on in a loop that the others left, as well as left out what the others did after it.
    """
    tokens, labels, position = d.stream.tokens, d.stream.labels, d.where.odd
    if not 0 < position < len(tokens) or d.reference.tokens[d.where.reference] == tokens[position]:
        return False
    again, before = tokens[position - 1], d.reference.tokens[: d.where.reference]
    if (again, again) not in pairwise(before):
        return False  # it never came twice in a row, so it is no loop of its own
    same_pass = not labels or labels[position] == labels[position - 1]
    return same_pass and all(token == again for token in tokens[position:])


def _one_side_is_in_its_loop(labels: Labels, *, inside: Issued, outside: Issued, if_done: Kind) -> Kind:
    """Return what to make of a call that both sides know against one that only its maker knows.

    Its maker was through with the loop and went on to what comes after it, or the call stands in the loop and the
    other side does not issue it. The calls alone are the same; where the maker was in its loop tells.
    """
    in_the_loop = Kind.EXTRA if if_done is Kind.LEFT_OUT else Kind.LEFT_OUT
    here, there = labels.at(inside), labels.at(outside)
    if there.ran_out and _is_a_pass_ahead(here, there):
        # Between two passes: who is in the majority is right to be there, another may have left the loop for good.
        return in_the_loop if if_done is Kind.EXTRA else Kind.INSTEAD
    if there.ran_out:
        return if_done
    if 0 < here.forwards <= there.finished or _left_its_data(here, there, outside.path):
        return if_done
    if here.forwards > there.finished and there.unfinished:
        return in_the_loop
    if here.batches > there.batches > 0:
        return in_the_loop  # its data had not come to an end
    return Kind.INSTEAD


def _is_a_pass_ahead(one: Progress, other: Progress) -> bool:
    """Return whether one side is in a later pass over its data: then both had come to the end of the one before."""
    if one.epoch is None or other.epoch is None or one.epoch.loop != other.epoch.loop:
        return False
    return one.epoch.number > other.epoch.number


def _left_its_data(inside: Progress, outside: Progress, path: Frames) -> bool:
    """Return whether a call comes from outside the function that goes over the data, whose data had not ended."""
    mine, other = outside.epoch, inside.epoch
    if mine is None or other is None or (mine.loop, mine.number) != (other.loop, other.number) or mine.ended:
        return False
    callers = mine.loop[:-1]
    # A path below many frames of libraries lacks its outermost ones, and tells nothing of where they lead.
    whole = bool(callers) and path[:1] == callers[:1]
    return whole and mine.taken < other.taken and callers[-1] not in path


def _both_know(d: Divergence, *, others: Progress, odd: Progress) -> Kind:
    """Return what to make of two calls that both sides issue elsewhere."""
    if odd.forwards == others.forwards:
        return Kind.LEFT_OUT if _jumped_ahead(d) else _sooner_round(d)
    if odd.forwards < others.forwards:
        # Else it repeats something in a pass that the others have left.
        return Kind.LEFT_OUT if _left_its_loop(d) else Kind.EXTRA
    if others.unfinished or _in_every_pass(d.reference, d.where.reference) or _is_a_pass_ahead(odd, others):
        return Kind.LEFT_OUT  # it began another pass without a call that belongs to each
    return Kind.EXTRA if others.ran_out else Kind.INSTEAD


def _left_its_loop(d: Divergence) -> bool:
    """Return whether the odd ranks' call comes after fewer passes than always before, of those that it comes after."""
    if not (d.stream.labels and d.reference.labels):
        return False
    made = d.stream.tokens[d.where.odd]
    usual, mine = _rounds(d.reference, made, d.where.reference), _rounds(d.stream, made, d.where.odd + 1)
    return len(set(usual)) == 1 and 0 < mine[-1] < usual[0]


def _rounds(stream: Stream, token: Token, until: int) -> list[int]:
    """Return how many passes went before each call like one, since the one before it."""
    labelled = zip(stream.tokens[:until], stream.labels[:until], strict=True)
    at = [0, *(label[-1] for each, label in labelled if each == token)]
    return [later - earlier for earlier, later in pairwise(at)]


def _jumped_ahead(d: Divergence) -> bool:
    """Return whether the odd ranks came from a line above the others' to one below it, all in one function."""
    if min(d.where.odd, d.where.reference) < 1:
        return False
    ours, theirs = d.reference.tokens[d.where.reference].path, d.stream.tokens[d.where.odd].path
    before = d.stream.tokens[d.where.odd - 1].path
    depth = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if depth is None or len(before) <= depth or before[:depth] != ours[:depth]:
        return False
    lines = [parts(path[depth]) for path in (before, ours, theirs)]
    if len({(file, function) for file, _, function in lines}) != 1:
        return False
    came_from, left_out, made = (line for _, line, _ in lines)
    return came_from < left_out < made


def _in_every_pass(stream: Stream, position: int) -> bool:
    """Return whether the pass before the one that a call stands in had the same call."""
    token, passes = stream.tokens[position], [label[-1] for label in stream.labels]
    return any(
        each == token and number == passes[position] - 1 for each, number in zip(stream.tokens, passes, strict=True)
    )


def _sooner_round(d: Divergence) -> Kind:
    """Return the simpler of two stories: skipping ahead to a call, or repeating one; at a tie, skipping."""
    if _only_repeats(d):
        return Kind.INSTEAD
    ours, theirs = d.reference.tokens[d.where.reference], d.stream.tokens[d.where.odd]
    skipped = _distance(d.reference.tokens[: d.where.reference], ours, theirs)
    repeated = _distance(d.stream.tokens[: d.where.odd], theirs, ours)
    extra = repeated is not None and (skipped is None or repeated < skipped)
    return Kind.EXTRA if extra else Kind.LEFT_OUT


def _distance(tokens: Sequence[Token], first: Token, then: Token) -> int | None:
    """Return how many calls after ``first`` there last came ``then``."""
    for start in range(len(tokens) - 1, -1, -1):
        if tokens[start] == first:
            for end in range(start + 1, len(tokens)):
                if tokens[end] == then:
                    return end - start
    return None


def known_to_odd(d: Divergence) -> bool:
    """Return whether the odd ranks issue the others' call elsewhere."""
    tokens, position = d.reference.tokens, d.where.reference
    return position < len(tokens) and _elsewhere(d.stream.tokens, tokens[position], d.where.odd)


def known_to_others(d: Divergence) -> bool:
    """Return whether the others issue the odd ranks' call elsewhere."""
    tokens, position = d.stream.tokens, d.where.odd
    return position < len(tokens) and _elsewhere(d.reference.tokens, tokens[position], d.where.reference)


def _elsewhere(tokens: Sequence[Token], token: Token, position: int) -> bool:
    return any(each == token for n, each in enumerate(tokens) if n != position)
