"""Sentences that slow findings share: what a step loses, who waits where, and what a rank was seen at."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.laggards import Laggard
from distdiag.analyzers.slowness.pauses import Pauses, pauses_in
from distdiag.analyzers.slowness.rhythm import rhythm_of
from distdiag.analyzers.slowness.sites import Seen, seen_at_work, waiting_at
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

PARTS = {
    "data": "in its data loader",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "checkpoint": "in a checkpoint",
    "other": "between the optimizer and the next forward",
}
ALIKE = 1.5
"""Laggards that are late in one part of the step, none so many times as long as another, are late for one reason."""
SURE = 0.9
"""Share of steps in which a rank is late, above which chance is out of the question."""
MORE_WORK = 1.25
"""Times the samples or backwards of others, for a rank to have more to do than they."""
GROWING = 0.75
"""Of what a laggard is late by, from the first quarter of the steps to the last."""
MOST_TOLD = 4
"""Of many laggards, as evidence."""
BUSY = 0.5
"""Of a rank's own time on a processor, below which it rather waits for something than computes."""


def percent(share: float) -> str:
    """Return a share as ``38 %``."""
    return f"{100 * share:.0f} %"


def gained(gain_ns: float, step_ns: float, *, mean: bool = False) -> str:
    """Return what would be gained: ``a step would take 35 ms instead of 125 ms: 72 % of the job``."""
    left = seconds(max(0.0, step_ns - gain_ns)) + (" on average" if mean else "")
    share = percent(gain_ns / step_ns if step_ns else 0.0)
    return f"a step would take {left} instead of {seconds(step_ns)}: {share} of the job"


def of_pauses(
    run: Run,
    column: str,
    *,
    code: str,
    name: str,
    what: Callable[[Pauses], str],
    summary: Callable[[Pauses], str],
    cause: Callable[[Pauses], str],
    action: Callable[[Pauses], tuple[str, ...]],
    also: Callable[[Pauses], tuple[str, ...]] = lambda _: (),
) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to the pauses in a column of the ledger.

    ``what`` names one pause; its cost is added to the sentence that ``summary`` makes, ``also`` to the evidence.
    """
    for grid in judge(run).roles:
        pauses = pauses_in(grid, column)
        if pauses is None:
            continue
        yield Finding(
            code=code,
            name=name,
            severity=Severity.WARNING,
            summary=f"{summary(pauses)}\nWithout it, "
            f"{gained(pauses.lost_ns / pauses.steps, pauses.total_ns / pauses.steps, mean=True)}.",
            culprits=pauses.ranks,
            victims=tuple(rank for rank in grid.ranks if pauses.ranks and rank not in pauses.ranks),
            step=pauses.worst_step,
            cause=cause(pauses),
            evidence=(
                f"{pauses.paused_steps} of {counted(pauses.steps, 'step')} have {what(pauses)}, the longest of "
                f"{seconds(pauses.longest_ns)}",
                *also(pauses),
                data_in_words(run),
            ),
            action=action(pauses),
            lost_share=pauses.lost_ns / pauses.total_ns,
        )


def of_moving(run: Run, *, code: str, name: str, of_data: bool) -> Iterator[Finding]:
    """Yield one finding per role whose steps wait now for this rank and now for that one."""
    for moving in judge(run).moving:
        if (moving.part == "data") != of_data:
            continue
        fit = moving.explained
        told = "" if fit is None else f"; what was told of tokens explains {percent(fit)} of it"
        slowest = ", ".join(f"rank {rank} in {count}" for rank, count in moving.slowest[:MOST_TOLD])
        yield Finding(
            code=code,
            name=name,
            severity=Severity.WARNING,
            summary=f"{'each step' if moving.every == 1 else f'one step in {moving.every}'} waits "
            f"{seconds(moving.lost_ns * moving.every)} for its slowest rank, now this and now that one\n"
            f"They differ {_place(moving.part).replace('its', 'their')}{told}. With even work, "
            f"{gained(moving.lost_ns, moving.step_ns, mean=moving.every > 1)}.",
            cause=moving.part,
            confidence=Confidence.MEDIUM,
            lost_share=moving.lost_ns / moving.step_ns,
            evidence=(
                f"the slowest rank is late by 10 % of the step or more in {moving.late_steps} of "
                f"{counted(moving.steps, 'step')}; it was {slowest}",
                _parts_in_words(moving.parts_ns, moving.lost_ns),
                data_in_words(run),
            ),
            action=(
                "look at what a step gives to each rank (lengths, sizes, files), and hand it out by what it costs",
                *(() if told else ("say distdiag.step(lengths=[...]), to see how much lengths explain",)),
            ),
        )


def alike(laggards: Iterable[Laggard]) -> list[tuple[Laggard, ...]]:
    """Return the laggards that are late in the same way side by side, the latest first: the ranks of a slow host."""
    found: list[list[Laggard]] = []
    for laggard in laggards:
        for others in found:
            if others[0].part == laggard.part and others[0].late_by_ns < ALIKE * laggard.late_by_ns:
                others.append(laggard)
                break
        else:
            found.append([laggard])
    return [tuple(each) for each in found]


def names_of(laggards: Sequence[Laggard]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of laggards that are alike, and those that wait for them."""
    ranks = tuple(sorted(each.rank for each in laggards))
    late = {*ranks, *laggards[0].also}
    return ranks, tuple(rank for rank in laggards[0].peers if rank not in late)


def whole_hosts(run: Run, ranks: Sequence[int]) -> str:
    """Return the hosts whose ranks are these, all of them: `` (host node1)``; nothing for a single rank."""
    hosts: dict[str, set[int]] = {}
    for rank, host in zip(run.headers["rank"], run.headers["host"], strict=True):
        hosts.setdefault(str(host), set()).add(int(rank))
    theirs = {host: members for host, members in hosts.items() if not members.isdisjoint(ranks)}
    if len(ranks) < 2 or len(theirs) == len(hosts) or set().union(*theirs.values()) != set(ranks):
        return ""
    return f" (host{'s' if len(theirs) > 1 else ''} {', '.join(sorted(theirs))})"


def share_of(laggard: Laggard) -> float | None:
    """Return what a laggard costs, of the job's time: no more than it is late by, whatever others are."""
    per_step = laggard.late_by_ns * (len(laggard.late_steps) / laggard.steps if laggard.seldom else 1.0)
    return min(laggard.gain_ns, per_step) / laggard.step_ns if laggard.step_ns else None


def everyone_waits(run: Run, laggard: Laggard, ranks: Sequence[int]) -> str:
    """Return how long others wait for ranks, and how often: ``everyone waits 50 ms per step for rank 1``."""
    who = f"{named(ranks)}{whole_hosts(run, ranks)}"
    if not laggard.seldom:
        return f"everyone waits {seconds(laggard.late_by_ns)} per step for {who}"
    often, rhythm = f"{len(laggard.late_steps)} of {counted(laggard.steps, 'step')}", rhythm_of(laggard.late_steps)
    if rhythm is not None and rhythm.every == 1:
        often += f", {'all' if rhythm.exact else 'nearly all'} from step {rhythm.first} to {rhythm.last}"
    elif rhythm is not None:
        often += f", one in {rhythm.every}"
    return f"everyone waits {seconds(laggard.late_by_ns)} for {who} in {often}"


def without(laggard: Laggard, ranks: Sequence[int]) -> str:
    """Return what would be gained without laggards, those included that another finding names."""
    also = [rank for rank in laggard.also if rank not in ranks]
    them = ("it" if len(ranks) == 1 else "them") + (f" and {named(also)}" if also else "")
    return f"without {them} {gained(laggard.gain_ns, laggard.step_ns, mean=laggard.seldom)}"


def where(laggard: Laggard, seen: Seen | None) -> str:
    """Return where a laggard loses its time: ``in backward (train.py:31)``."""
    return _place(laggard.part) + (
        f" ({short(seen.site)} in {seen.times} of {seen.looks} looks)" if seen is not None else ""
    )


def _place(part: str | None) -> str:
    return PARTS[part] if part is not None else "all over its step"


def seen_of(run: Run, laggard: Laggard) -> Seen | None:
    """Return the line at which a laggard was mostly seen."""
    return seen_at_work(run, laggard.rank, from_step=laggard.first_step)


def waits(run: Run, laggards: Sequence[Laggard]) -> str:
    """Return who waits for laggards, and where: ``ranks 0,2 wait for it in all_reduce (train.py:33)``."""
    _, victims = names_of(laggards)
    found = waiting_at(run, victims, from_step=laggards[0].first_step)
    place = "" if found is None else f" in {found[0]} ({short(found[1])})"
    them = "it" if len(laggards) == 1 else "them"
    return f"{named(victims)} {verb(victims, 'waits', 'wait')} for {them}{place}"


def more_work(run: Run, laggards: Sequence[Laggard]) -> tuple[str, float, float] | None:
    """Return of what the latest of laggards has more in a step, ``samples`` or ``backwards``: its number, the usual."""
    ended = run.batches[(run.batches["edge"] == "end") & run.batches["samples"].notna()]
    samples = ended.groupby(["rank", "step"])["samples"].sum().astype("float64").groupby("rank").median()
    backwards = run.steps[run.steps["backwards"].notna()].groupby("rank")["backwards"].median().astype("float64")
    _, victims = names_of(laggards)
    for what, usual in (("backwards", backwards), ("samples", samples)):
        own, others = usual.get(laggards[0].rank), usual[usual.index.isin(victims)]
        if own is not None and len(others) and float(own) >= MORE_WORK * max(1.0, float(others.median())):
            return what, float(own), float(others.median())
    return None


def evidence_of(run: Run, laggards: Sequence[Laggard]) -> tuple[str, ...]:
    """Return the numbers behind laggards, each of the latest one of several."""
    laggard = laggards[0]
    late = (
        f"rank {each.rank} is late in {len(each.late_steps)} of {counted(each.steps, 'step')}, "
        f"by {seconds(each.late_by_ns)} in the middle one{' of them' if each.seldom else ''}"
        for each in laggards[:MOST_TOLD]
    )
    return (
        *late,
        *_course(laggard),
        _parts_in_words(laggard.parts_ns, laggard.late_by_ns),
        f"the others waited {seconds(sum(each.caused_ns for each in laggards))} for "
        f"{'it' if len(laggards) == 1 else 'them'} in all",
        *_processor(laggard),
        data_in_words(run),
    )


def _course(laggard: Laggard) -> tuple[str, ...]:
    """Say that a laggard gets slower and slower, where it does."""
    first, last = laggard.course_ns
    if last - first < GROWING * laggard.late_by_ns or laggard.seldom:
        return ()
    said = f"by {seconds(max(0.0, first))} in the first quarter of the steps, by {seconds(last)} in the last"
    return (f"rank {laggard.rank} becomes slower and slower: {said}",)


def _parts_in_words(parts_ns: Mapping[str, float], late_by_ns: float) -> str:
    longest = sorted(parts_ns.items(), key=lambda each: (-each[1], each[0]))
    told = ", ".join(f"{name} {seconds(excess)}" for name, excess in longest if excess >= 0.05 * late_by_ns)
    return f"longer than its peers' by: {told}"


def confidence_of(run: Run, laggard: Laggard) -> Confidence:
    """Return how sure a laggard is."""
    doubtful = len(laggard.late_steps) < SURE * laggard.steps or len(laggard.peers) < 2 or not run.quality.whole
    return Confidence.MEDIUM if doubtful else Confidence.HIGH


def _processor(laggard: Laggard) -> tuple[str, ...]:
    """Tell how much of its own time the process was on a processor, where that was recorded."""
    if laggard.cpu_ns != laggard.cpu_ns or not laggard.own_ns:  # NaN: not recorded
        return ()
    text = f"the process of rank {laggard.rank} used {seconds(laggard.cpu_ns)} of processor time a step"
    if laggard.cpu_ns < BUSY * laggard.own_ns:
        return (f"{text}: most of its own {seconds(laggard.own_ns)} it waits for something, or for a processor",)
    return (f"{text}, so it computes",)
