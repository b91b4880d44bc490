"""Exceptions that a rank caught before it left the others: the program went on, though not where the others did."""

from collections.abc import Collection

from distdiag.analyzers._wording import first_line
from distdiag.analyzers.investigation.deaths import Death
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.rows import newest
from distdiag.run import Run


def caught_by(
    run: Run, ranks: Collection[int], since_ns: int, until_ns: int, others: Collection[int] = ()
) -> tuple[int, str] | None:
    """Return who of some ranks caught what last in a span of time, with its line; None where others did so, too.

    What a call of theirs failed with is what others did to them, whoever caught it.
    """
    during = run.caught[run.caught["time_ns"].between(since_ns, until_ns) & (run.caught["thread"] == "MainThread")]
    during = during[~(during["type"] + ": " + during["message"]).isin(run.calls["error"].dropna())]
    common = set(during[during["rank"].isin(list(others))]["type"])
    mine = during[during["rank"].isin(list(ranks)) & ~during["type"].isin(common)]
    if mine.empty:
        return None
    last = newest(mine)
    site = location(last["frames"][-1]) if len(last["frames"]) else None
    said = first_line(f"{last['type']}: {last['message']}")
    return int(last["rank"]), f"had caught {said}" + ("" if site is None else f" ({short(site)})")


def before_divergence(run: Run, divergence: Divergence) -> str:
    """Return what the odd ranks caught where they left the others; at a tie, either side."""
    odd, others = divergence.odd, divergence.others
    if not divergence.decided:
        odd, others = (*odd, *others), ()
    found = caught_by(run, odd, *divergence.interval_ns, others=others)
    return "" if found is None else f"rank {found[0]} {found[1]}"


def before_death(run: Run, death: Death) -> str:
    """Return what ranks that died had caught since their last calls, if it is not what they died of."""
    calls = run.calls
    earlier = calls[calls["rank"].isin(death.ranks) & (calls["start_ns"] < death.time_ns)]
    since_ns = int(earlier.groupby("rank")["start_ns"].max().min()) if len(earlier) else 0
    found = caught_by(run, death.ranks, since_ns, death.time_ns)
    if found is None or found[1].split()[2] in f"{death.what} {death.came_up_as}":
        return ""
    return f"rank {found[0]} {found[1]}"
