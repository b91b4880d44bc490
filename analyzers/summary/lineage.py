"""A job over its restarts: which steps were kept, which were made again, and what each failure cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdiag.analyzers._wording import counted, fold, named
from distdiag.analyzers.investigation.sources import tells_steps
from distdiag.analyzers.summary.attempts import ANEW, Attempt, Begun, attempts_of, begun_at
from distdiag.analyzers.summary.verdict import HEALTHY
from distdiag.findings import Verdict
from distdiag.run import Run

SECOND_NS = 1e9
MOST_NAMED = 4
"""Failures that the summary names one by one, the dearest first."""
MINUTE, HOUR = 60.0, 3600.0
LONG = 3
"""Units from which on a time is told in the next larger one."""
UNREADABLE = "an end of which no log can be read"
NO_STEPS = "what was read tells no steps"
PHRASES = {
    "insufficient-evidence": "an end that its logs do not explain",
    "out-of-memory": "{who}'s out of memory",
    "rank-missing": "{who} not coming",
    "late-rank": "{who} coming too late",
}
"""What ended an attempt, in words; other names are told as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the end of an attempt cost, in nanoseconds: up to the first step of the next attempt."""

    redone_ns: int
    """Steps that were not kept."""
    standing_ns: int
    """From the last step to the end of its last process."""
    restart_ns: int
    """From there to the first step of the next attempt."""

    @property
    def total_ns(self) -> int:
        """Return all of it."""
        return self.redone_ns + self.standing_ns + self.restart_ns


def lineage(
    run: Run, verdict: Verdict, ended_by: Callable[[Run], Verdict]
) -> tuple[tuple[Mapping[str, Any], ...], Mapping[str, Any] | None]:
    """Return the attempts of a run's job, and its goodput; nothing where there was only one.

    ``verdict`` is that of the newest attempt, ``ended_by`` says what ended a former one. Goodput is the steps that
    were kept over the time from the first record of the first attempt to the last of the newest; ``share`` is the
    part of that time which went into steps that were kept. Where it is not known at which step an attempt went on,
    there is none, and ``unknown`` says why.
    """
    if not run.earlier:
        return (), None
    attempts = attempts_of(run, verdict, ended_by)
    left_out = len(run.earlier) + 1 - len(attempts)
    begun = begun_at(attempts) if tells_steps(run) else NO_STEPS
    if isinstance(begun, str):
        rows = [_row(each, attempts[0]) for each in attempts]
        told = {"attempts": len(attempts), "left_out": left_out, "unknown": begun}
        return tuple(rows), {**told, "summary": None if tells_steps(run) else _ends(attempts, left_out)}
    kept = _kept(attempts, begun)
    losses = [
        _loss(attempt, count, following)
        for attempt, count, following in zip(attempts, kept, attempts[1:], strict=False)
    ]
    rows = [
        {**_row(attempt, attempts[0]), **_from(start), "kept_steps": count, **_lost(loss)}
        for attempt, start, count, loss in zip(attempts, begun, kept, [*losses, None], strict=True)
    ]
    return tuple(rows), _goodput(attempts, begun, kept, losses, left_out)


def _ends(attempts: Sequence[Attempt], left_out: int) -> str:
    """Return ``3 attempts in 49.3 s`` and what ended those before the newest."""
    ended = [_failure(attempt) for attempt in attempts[:-1]]
    more = f" and {counted(len(ended) - MOST_NAMED, 'other end')}" if len(ended) > MOST_NAMED else ""
    return f"{_counted(attempts, left_out)}\nearlier: {', '.join(ended[-MOST_NAMED:])}{more}"


def _counted(attempts: Sequence[Attempt], left_out: int) -> str:
    newest = f" (the newest of {len(attempts) + left_out})" if left_out else ""
    return f"{counted(len(attempts), 'attempt')}{newest} in {_time(_seconds(_wall_ns(attempts)))}"


def _wall_ns(attempts: Sequence[Attempt]) -> int:
    return max(1, attempts[-1].end_ns - attempts[0].start_ns)


def _kept(attempts: Sequence[Attempt], begun: Sequence[Begun | None]) -> list[int]:
    """Return how many steps of each attempt no later one made again."""
    kept, limit = [0] * len(attempts), None
    for place in range(len(attempts) - 1, -1, -1):
        start = begun[place]
        if start is None:
            continue
        end = start.step + attempts[place].steps
        kept[place] = max(0, (end if limit is None else min(end, limit)) - start.step)
        limit = start.step if limit is None else min(limit, start.step)
    return kept


def _loss(attempt: Attempt, kept: int, following: Attempt) -> Loss | None:
    """Return what was lost between the last step that was kept and the first of the following attempt.

    None where the logs are too long for those moments to be in their newest part.
    """
    begin = attempt.first_step_ns if attempt.steps else attempt.start_ns
    kept_ns = attempt.ends_ns.get(kept - 1) if kept else begin
    last_ns = attempt.ends_ns.get(attempt.steps - 1) if attempt.steps else attempt.start_ns
    goes_on = following.first_step_ns if following.steps else following.start_ns
    if kept_ns is None or last_ns is None or goes_on is None:
        return None
    end_ns = min(max(attempt.end_ns, last_ns), goes_on)
    return Loss(redone_ns=last_ns - kept_ns, standing_ns=max(0, end_ns - last_ns), restart_ns=goes_on - end_ns)


def _goodput(
    attempts: Sequence[Attempt],
    begun: Sequence[Begun | None],
    kept: Sequence[int],
    losses: Sequence[Loss | None],
    left_out: int,
) -> dict[str, Any]:
    wall_ns = _wall_ns(attempts)
    useful = [_useful_ns(attempt, count) for attempt, count in zip(attempts, kept, strict=True)]
    useful_ns = None if None in useful else sum(each for each in useful if each is not None)
    lost_ns = None if None in losses else sum(each.total_ns for each in losses if each is not None)
    steps = sum(attempt.steps for attempt in attempts)
    told = {
        "attempts": len(attempts),
        "left_out": left_out,
        "steps": steps,
        "kept_steps": sum(kept),
        "wall_seconds": _seconds(wall_ns),
        "kept_seconds": None if useful_ns is None else _seconds(useful_ns),
        "lost_seconds": None if lost_ns is None else _seconds(lost_ns),
        "share": None if useful_ns is None else round(useful_ns / wall_ns, 4),
        "steps_per_second": round(sum(kept) / wall_ns * SECOND_NS, 6),
        "unknown": None,
    }
    return {**told, "summary": _summary(told, attempts, begun, losses)}


def _useful_ns(attempt: Attempt, kept: int) -> int | None:
    """Return how long the steps took that were kept."""
    if not kept:
        return 0
    end = attempt.ends_ns.get(kept - 1)
    return None if end is None or attempt.first_step_ns is None else end - attempt.first_step_ns


def _summary(
    told: Mapping[str, Any],
    attempts: Sequence[Attempt],
    begun: Sequence[Begun | None],
    losses: Sequence[Loss | None],
) -> str:
    """Return ``3 attempts; 412 of 520 steps kept …`` and, on a second line, what was lost to what."""
    share = "" if told["share"] is None else f": {100 * told['share']:.0f} % of the time went into them"
    anew = [each.number for each, start in zip(attempts, begun, strict=True) if start and start.how == ANEW]
    again = f"; no checkpoint was loaded in attempt{'s' * (len(anew) > 1)} {fold(anew)}" if anew else ""
    kept = f"{told['kept_steps']} of {told['steps']} steps kept{share}" if told["steps"] else "no step was completed"
    first = f"{_counted(attempts, told['left_out'])}; {kept}{again}"
    known = [
        (loss.total_ns, _failure(attempt)) for attempt, loss in zip(attempts, losses, strict=False) if loss is not None
    ]
    if not known:
        return first
    known.sort(key=lambda each: -each[0])
    named_ones = [f"{_time(_seconds(lost))} to {what}" for lost, what in known[:MOST_NAMED]]
    rest = sum(lost for lost, _ in known[MOST_NAMED:])
    if rest:
        named_ones.append(f"{_time(_seconds(rest))} to {counted(len(known) - MOST_NAMED, 'other end')}")
    total = _time(_seconds(sum(lost for lost, _ in known)))
    whole = named_ones[0].partition(" to ")[2] if len(known) == 1 else None
    return f"{first}\n{total} lost to {whole}" if whole else f"{first}\n{total} lost: {', '.join(named_ones)}"


def _failure(attempt: Attempt) -> str:
    """Return what ended an attempt, as in ``rank 5's out of memory in attempt 1``."""
    return f"{UNREADABLE if attempt.end is None else _cause(attempt.end)} in attempt {attempt.number}"


def _cause(end: Verdict) -> str:
    if end.name == HEALTHY:
        return "an orderly end"
    words = PHRASES.get(end.name, end.name.replace("-", " "))
    if not end.culprits:
        return words.removeprefix("{who}'s ").removeprefix("{who} ")
    who = named(end.culprits)
    if end.name == "rank-died":
        return f"the death of {who}" + (f" ({end.cause})" if end.cause else "")
    return words.format(who=who) if "{who}" in words else f"{words} ({who})"


def _row(attempt: Attempt, first: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "ranks": list(attempt.ranks),
        "start_seconds": _seconds(attempt.start_ns - first.start_ns),
        "seconds": _seconds(attempt.end_ns - attempt.start_ns),
        "steps": attempt.steps,
        "ended_by": _ended(attempt.end),
    }


def _ended(end: Verdict | None) -> dict[str, Any] | None:
    """Return what ended an attempt; for the newest one, the verdict of the report."""
    if end is None:
        return None
    told = {name: getattr(end, name) for name in ("name", "code", "cause", "step", "summary")}
    return {**told, "culprits": list(end.culprits)}


def _from(start: Begun | None) -> dict[str, Any]:
    return {"first_step": None if start is None else start.step, "resumed_by": None if start is None else start.how}


def _lost(loss: Loss | None) -> dict[str, Any]:
    """Return what the end of an attempt cost, None for the newest and where it is not known."""
    if loss is None:
        return dict.fromkeys(("lost_seconds", "redone_seconds", "standstill_seconds", "restart_seconds"))
    return {
        "lost_seconds": _seconds(loss.total_ns),
        "redone_seconds": _seconds(loss.redone_ns),
        "standstill_seconds": _seconds(loss.standing_ns),
        "restart_seconds": _seconds(loss.restart_ns),
    }


def _seconds(duration_ns: float) -> float:
    return round(duration_ns / SECOND_NS, 3)


def _time(value: float) -> str:
    """Return a time as people say it: ``4.2 s``, ``38 min``, ``3.4 h``."""
    if value >= LONG * HOUR:
        return f"{value / HOUR:.1f} h"
    if value >= LONG * MINUTE:
        return f"{value / MINUTE:.0f} min"
    return f"{value:.1f} s" if value < MINUTE else f"{value:.0f} s"
