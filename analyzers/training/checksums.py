"""Where replicas were checked, and where they first were not equal."""

from dataclasses import dataclass

from distdiag.analyzers.training.nonfinite import first_nonfinite
from distdiag.analyzers.training.peers import DataParallel, data_parallel, minority, of_wrapper
from distdiag.analyzers.training.records import numerics_of
from distdiag.run import Run

DIGEST_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Desync:
    """Replicas of one group that are not equal."""

    group: DataParallel
    step: int
    """First step before whose update they were seen to differ."""
    equal_step: int | None
    """Last step before it at which they were checked, and equal."""
    checksums: dict[int, int]
    odd: tuple[int, ...]
    """Ranks that differ from a strict majority."""
    differing: tuple[int, ...]
    """Positions of the parameters that differ, of ``parameters``."""
    parameters: int


def desyncs(run: Run) -> list[Desync]:
    """Return the first disagreement of each group of replicas, the earliest first."""
    found = [desync for group in data_parallel(run) if not group.shards for desync in _of_group(run, group)]
    return sorted(found, key=lambda each: (each.step, each.group.members, each.group.wrapper))


def equal_after(run: Run, group: DataParallel, step: int) -> bool:
    """Return whether all members were checked in some later step, and equal in the first such."""
    rows = of_wrapper(numerics_of(run), group)
    rows = rows[rows["checksum"].notna() & (rows["step"] > step)]
    counts = rows.groupby("step")["rank"].nunique()
    whole = counts[counts == len(group.members)].index
    return len(whole) > 0 and rows[rows["step"] == whole.min()]["checksum"].nunique() == 1


def _of_group(run: Run, group: DataParallel) -> list[Desync]:
    rows = of_wrapper(numerics_of(run), group)
    rows = rows[rows["checksum"].notna()].drop_duplicates(["rank", "step"])
    spoiled = first_nonfinite(run, group.members)
    if spoiled is not None:
        rows = rows[rows["step"] <= spoiled]  # not-a-number has many forms, and who has which says nothing
    per_step = rows.groupby("step").agg(ranks=("rank", "nunique"), values=("checksum", "nunique"))
    compared = per_step[per_step["ranks"] > 1]
    apart = compared[compared["values"] > 1]
    if apart.empty:
        return []
    step = int(apart.index.min())
    equal = compared[(compared["values"] == 1) & (compared.index < step)].index
    at_step = rows[rows["step"] == step]
    checksums = {int(rank): int(value) for rank, value in zip(at_step["rank"], at_step["checksum"], strict=True)}
    digests = {int(rank): bytes(value) for rank, value in zip(at_step["rank"], at_step["digests"], strict=True)}
    parameters = max(map(len, digests.values())) // DIGEST_BYTES
    return [
        Desync(
            group=group,
            step=step,
            equal_step=int(equal.max()) if len(equal) else None,
            checksums=checksums,
            odd=minority(checksums),
            differing=tuple(
                position
                for position in range(parameters)
                if len({d[DIGEST_BYTES * position : DIGEST_BYTES * (position + 1)] for d in digests.values()}) > 1
            ),
            parameters=parameters,
        )
    ]
