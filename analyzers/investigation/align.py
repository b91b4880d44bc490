"""Alignment of two ranks' streams of calls on one group, and where the second leaves the first.

Ranks go on pairing unrelated collectives of equal shape without any error, so comparing call number n with call
number n finds the first divergence too late. Aligned by call site, an extra or a missing call shows as a gap.
"""

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from distdiag.analyzers.investigation.paths import Frames, fork_frame

GAP = 1_500_000
"""Costs are integers, so that equal alignments are equal; a gap on each side must cost more than one changed site."""
OTHER_SIGNATURE = 2_900_000
"""Less than two gaps: one call in the place of another is simpler than one too many and one too few."""
OTHER_SITE = 2_200_000
LABELS = 300_000
"""All labels that differ cost this together: they choose among equal alignments and outweigh nothing else."""
SAME_PROGRAM = 600_000
"""Two streams that align at less than this ran the same program."""
FIRST_BAND = 16
STRETCH = 2_000
"""So many calls around the first real difference are aligned: what went apart for longer does not come together."""


@dataclass(frozen=True, slots=True)
class Token:
    """What tells one call of a stream from another."""

    signature: Hashable
    """What must agree between the members."""
    path: Frames = ()
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The calls of one rank on one group, in order."""

    tokens: Sequence[Token]
    labels: Sequence[tuple[int, ...]] = ()
    """Where in the run each call was made (batches taken, forwards begun); empty where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The cheapest way to pair the calls of two streams."""

    cost: int
    pairs: tuple[tuple[int, int], ...]
    """Positions that belong together, in order; what is left behind the last pair costs nothing."""

    @property
    def same_program(self) -> bool:
        """Return whether nothing but roles and labels differs."""
        return self.cost < SAME_PROGRAM


class Kind(enum.StrEnum):
    """How a rank's stream leaves the reference."""

    EXTRA = "extra"
    LEFT_OUT = "left-out"
    INSTEAD = "instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The first place where a stream leaves the reference for good."""

    reference: int
    """Position of the reference's call there; its length when it has none left."""
    odd: int
    kind: Kind | None
    """None where both streams stop before the alignment can tell."""
    calls: int = 1
    """How many calls are too many or missing."""


def align(reference: Stream, odd: Stream) -> Alignment:
    """Return the cheapest alignment; among equal ones, the one that differs last."""
    costs = _Costs(reference, odd)
    straight = _straight(costs)
    if straight.cost < GAP:
        return straight
    begin, end = _stretch(costs)
    longest = min(max(costs.lengths), end) - begin
    band = FIRST_BAND
    found = _banded(costs, begin, end, band)
    # Whatever leaves the band needs more than ``band`` gaps.
    while found.cost > GAP * band and band < longest:
        band *= 2
        found = _banded(costs, begin, end, band)
    before = [(position, position) for position in range(begin)]
    return Alignment(
        cost=found.cost + sum(costs.pair(i, j) for i, j in before),
        pairs=(*before, *((begin + i, begin + j) for i, j in found.pairs)),
    )


def _stretch(costs: "_Costs") -> tuple[int, int]:
    """Return the positions between which the streams are worth aligning."""
    apart = [costs.pair(position, position) for position in range(min(costs.lengths))]
    hard = next(position for position, cost in enumerate(apart) if cost >= OTHER_SITE)
    first = next(position for position, cost in enumerate(apart) if cost)
    return max(first, hard - STRETCH), hard + STRETCH


class _Costs:
    """Cost of pairing position i of one stream with position j of the other."""

    def __init__(self, reference: Stream, odd: Stream) -> None:
        self.lengths = len(reference.tokens), len(odd.tokens)
        self._left, left_tokens = _numbered(reference.tokens)
        self._right, right_tokens = _numbered(odd.tokens)
        left_frames = {frame for token in left_tokens for frame in token.path}
        right_frames = {frame for token in right_tokens for frame in token.path}
        self._substitution = [
            [_substitution(left, right, left_frames, right_frames) for right in right_tokens] for left in left_tokens
        ]
        self._labels = (reference.labels, odd.labels) if reference.labels and odd.labels else None
        self._label = LABELS // (2 ** (len(reference.labels[0]) + 1) * max(self.lengths)) if self._labels else 0

    def pair(self, i: int, j: int) -> int:
        cost = self._substitution[self._left[i]][self._right[j]]
        if self._labels is not None and self._labels[0][i] != self._labels[1][j]:
            weight = 1
            for ours, theirs in zip(reversed(self._labels[0][i]), reversed(self._labels[1][j]), strict=True):
                if ours != theirs:
                    cost += weight * self._label
                weight *= 2
        return cost


def _numbered(tokens: Sequence[Token]) -> tuple[list[int], list[Token]]:
    numbers: dict[Token, int] = {}
    positions = [numbers.setdefault(token, len(numbers)) for token in tokens]
    return positions, list(numbers)


def _substitution(left: Token, right: Token, left_frames: set[str], right_frames: set[str]) -> int:
    if left.signature != right.signature:
        return OTHER_SIGNATURE
    if left.module != right.module:
        return OTHER_SITE
    if left.path == right.path:
        return 0
    ours, theirs = fork_frame(left.path, right.path), fork_frame(right.path, left.path)
    # The two arms of an ``if rank == 0`` are roles: neither line ever runs on the other rank.
    return OTHER_SITE if ours in right_frames or theirs in left_frames else 0


def _straight(costs: _Costs) -> Alignment:
    """Pair call n with call n."""
    length = min(costs.lengths)
    return Alignment(
        cost=sum(costs.pair(position, position) for position in range(length)),
        pairs=tuple((position, position) for position in range(length)),
    )


_PAIR, _SKIP_LEFT, _SKIP_RIGHT = 0, 1, 2


def _banded(costs: _Costs, begin: int, end: int, band: int) -> Alignment:
    """Fill the band of the table around the diagonal and walk back from the cheapest end."""
    rows, columns = (min(length, end) - begin for length in costs.lengths)
    width = 2 * band + 1
    far = GAP * (rows + columns + 1) * 2
    previous: list[int] = []
    moves: list[bytearray] = []
    ends: list[tuple[int, int, int]] = []
    for i in range(rows + 1):
        current, row_moves = [far] * width, bytearray(width)
        for offset in range(max(0, band - i), min(width, columns - i + band + 1)):
            j = i + offset - band
            best, move = (0, _PAIR) if i == j == 0 else (far, _PAIR)
            if i and j:
                best = previous[offset] + costs.pair(begin + i - 1, begin + j - 1)
            if i and offset + 1 < width and previous[offset + 1] + GAP <= best:
                best, move = previous[offset + 1] + GAP, _SKIP_LEFT
            if j and offset and current[offset - 1] + GAP <= best:
                best, move = current[offset - 1] + GAP, _SKIP_RIGHT
            current[offset], row_moves[offset] = best, move
            if i == rows or j == columns:
                ends.append((best, -(i + j), i))
        previous = current
        moves.append(row_moves)
    cost, _, i = min(ends)
    j = -min(ends)[1] - i
    return Alignment(cost=cost, pairs=_walk_back(moves, band, i, j))


def _walk_back(moves: list[bytearray], band: int, i: int, j: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    while i or j:
        move = moves[i][j - i + band]
        if move == _PAIR:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif move == _SKIP_LEFT:
            i -= 1
        else:
            j -= 1
    return tuple(reversed(pairs))


def departure(reference: Stream, odd: Stream, alignment: Alignment) -> Departure | None:
    """Return where ``odd`` leaves ``reference``, or None where they differ in roles only.

    A shift that is undone before anything has to agree is no departure: mispaired calls of equal signature run on.
    """
    unequal = _first_unequal(reference, odd)
    for (i, j), (last_i, last_j) in zip(alignment.pairs, ((-1, -1), *alignment.pairs), strict=False):
        ours, theirs = reference.tokens[i], odd.tokens[j]
        if i - j != last_i - last_j and last_i == last_j and _counts(alignment, last_i + 1, unequal):
            kind = Kind.LEFT_OUT if i - j > 0 else Kind.EXTRA
            return Departure(reference=last_i + 1, odd=last_j + 1, kind=kind, calls=abs(i - j))
        if i == j and (ours.signature != theirs.signature or ours.module != theirs.module):
            return Departure(reference=i, odd=j, kind=Kind.INSTEAD)
    last_i, last_j = alignment.pairs[-1] if alignment.pairs else (-1, -1)
    if last_i == last_j and unequal == last_i + 1:
        first = line_left(reference, odd, last_i + 1)
        return Departure(reference=first, odd=first, kind=None)
    return None


def line_left(reference: Stream, odd: Stream, position: int) -> int:
    """Return where the calls begin that lead up to ``position`` and come from a line that one side alone has.

    A line of its own on each side is a role; one that the other side has, too, but not here, is another way.
    """
    left = {frame for token in reference.tokens for frame in token.path}
    right = {frame for token in odd.tokens for frame in token.path}
    while position:
        ours, theirs = reference.tokens[position - 1].path, odd.tokens[position - 1].path
        mine, its = fork_frame(ours, theirs), fork_frame(theirs, ours)
        if mine is None or its is None or (mine in right) == (its in left):
            break
        position -= 1
    return position


def _first_unequal(reference: Stream, odd: Stream) -> int | None:
    """Return the first position at which what must agree does not, paired as the backend paired it."""
    for position, (ours, theirs) in enumerate(zip(reference.tokens, odd.tokens, strict=False)):
        if ours.signature != theirs.signature:
            return position
    return None


def _counts(alignment: Alignment, start: int, unequal: int | None) -> bool:
    """Return whether a shift that begins at ``start`` lasts to the stop, or to where something had to agree."""
    for i, j in alignment.pairs:
        if min(i, j) < start:
            continue
        if unequal is not None and min(i, j) > unequal:
            return True
        if i == j:
            return False
    return True
