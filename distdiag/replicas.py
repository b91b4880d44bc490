"""When replicas of one model are no longer equal, and which of them differs: one rule for logs and for running jobs."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

DIGEST_BYTES = 4
"""Of each parameter, or block of them, in ``events.Numerics.digests``."""


class Check(NamedTuple):
    """What one rank wrote of its replica before a step."""

    checksum: int
    digests: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Replicas that are not equal."""

    checksums: Mapping[int, int]
    """By rank."""
    odd: tuple[int, ...]
    """Ranks that differ from what a strict majority of all members holds."""
    differing: tuple[int, ...]
    """Positions of the parameters that differ."""
    parameters: int
    """How many there are."""


def compared(checks: Mapping[int, Check], members: int) -> Disagreement | None:
    """Return how the checks of one step differ, None where they do not; ``members`` is the number of replicas."""
    checksums = {rank: check.checksum for rank, check in checks.items()}
    if len(set(checksums.values())) < 2:
        return None
    digests = [check.digests for check in checks.values()]
    parameters = max(map(len, digests)) // DIGEST_BYTES
    return Disagreement(
        checksums=checksums,
        odd=minority(checksums, members),
        differing=tuple(at for at in range(parameters) if len({_digest(each, at) for each in digests}) > 1),
        parameters=parameters,
    )


def minority(values: Mapping[int, Hashable], members: int | None = None) -> tuple[int, ...]:
    """Return the ranks that differ from what a strict majority of all ``members`` holds; none where there is none."""
    counts = Counter(values.values()).most_common(1)
    if not counts or 2 * counts[0][1] <= (len(values) if members is None else members):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != counts[0][0]))


def name_of(names: tuple[str, ...], disagreement: Disagreement) -> str:
    """Return the name of the first parameter that differs, as far as it is known."""
    position = disagreement.differing[0] if disagreement.differing else 0
    return names[position] if position < len(names) else f"number {position}"


def _digest(digests: bytes, position: int) -> bytes:
    return digests[DIGEST_BYTES * position : DIGEST_BYTES * (position + 1)]
