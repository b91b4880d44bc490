"""What each attempt of a job did: which steps, when, and which checkpoint it went on from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from distdiag.errors import DistdiagError
from distdiag.findings import Verdict
from distdiag.run import Run, load_earlier
from distdiag.run.processes import Members
from distdiag.run.saved import SAVES
from distdiag.settings import ATTEMPT_VARIABLES

MOST_EARLIER = 20
"""Attempts before the newest one that are read."""
MOST_BYTES = 256 << 20
"""Of their logs together, the newest attempt before it always: reading and judging them takes seconds."""
STAGE, UPLOAD, LOAD = "checkpoint stage", "checkpoint upload", "checkpoint load"
GLOBAL_STEP_FACTS = ("global_step", "iteration")
"""Names under which people tell ``distdiag.step`` the number of a step that goes on over restarts."""
FIRST, TOLD, CHECKPOINT, ANEW = "first attempt", "told by the user", "checkpoint", "no checkpoint"
"""How it is known at which step an attempt began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that an attempt wrote."""

    directory: str
    step: int
    """Steps of this attempt that it holds."""
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What the logs of one attempt tell; moments are wall-clock nanoseconds."""

    number: int
    ranks: tuple[int, ...]
    end: Verdict | None
    """What ended it; None where nothing of its logs can be read."""
    start_ns: int
    end_ns: int
    steps: int
    """Steps that all its ranks completed."""
    first_step_ns: int | None
    """When the first of them began."""
    ends_ns: Mapping[int, int]
    """When each step was completed on all ranks; of long logs only the newest are known."""
    saves: tuple[Saved, ...]
    loads: tuple[tuple[str, int], ...]
    """What was loaded before its first step ended, and when, the newest last."""
    told: int | None
    """The number that the user gave its first step."""
    restarts: int | None
    """Which restart it is, as its launcher said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """At which step of the job an attempt began, and how that is known."""

    step: int
    how: str


def attempts_of(run: Run, verdict: Verdict, ended_by: Callable[[Run], Verdict]) -> tuple[Attempt, ...]:
    """Return the newest attempts of a run's job, the oldest of them first and the one that was analysed last.

    ``verdict`` is what ended that one, ``ended_by`` tells it of the others. Frames are let go attempt by attempt.
    """
    return (*(_earlier(members, ended_by) for members in _newest(run.earlier)), _attempt(run.members, run, verdict))


def _newest(earlier: Sequence[Members]) -> list[Members]:
    """Return the attempts that are looked at: reading all of a job that is started anew all the time takes long."""
    newest: list[Members] = []
    left = MOST_BYTES
    for members in reversed(earlier[-MOST_EARLIER:]):
        left -= sum(log.used_bytes for process in members.values() for log in process.files)
        if newest and left < 0:
            break
        newest.insert(0, members)
    return newest


def begun_at(attempts: Sequence[Attempt]) -> list[Begun | None] | str:
    """Return at which step of the job each attempt began, None for those without steps, or why that is unknown.

    Steps count from the beginning of the first attempt whose logs are there, unless users tell their numbers.
    """
    stepped = [attempt for attempt in attempts if attempt.steps]
    if stepped and all(attempt.told is not None for attempt in stepped):
        return [Begun(step=each.told or 0, how=TOLD) if each.steps else None for each in attempts]
    begun: list[Begun | None] = []
    saves: list[Saved] = []
    for attempt in attempts:
        found = _begun(attempt, saves, first=not any(begun)) if attempt.steps else None
        if isinstance(found, str):
            return found
        begun.append(found)
        if found is not None:
            saves += [
                Saved(directory=each.directory, step=found.step + each.step, end_ns=each.end_ns)
                for each in attempt.saves
            ]
    return begun


def _begun(attempt: Attempt, saves: Sequence[Saved], *, first: bool) -> Begun | str:
    """Return where an attempt went on, by the newest checkpoint that it loaded and a former attempt had written."""
    if first:
        return Begun(step=0, how=FIRST)
    for directory, moment in reversed(attempt.loads):
        of_former = [each for each in saves if each.directory == directory and each.end_ns <= moment]
        if of_former:
            return Begun(step=max(of_former, key=lambda each: each.end_ns).step, how=CHECKPOINT)
    if attempt.loads:
        return f"attempt {attempt.number} loaded {attempt.loads[-1][0]}, which no attempt before it was seen to save"
    if not attempt.restarts:
        return f"nothing tells at which step attempt {attempt.number} went on: say distdiag.step(global_step=...)"
    return Begun(step=0, how=ANEW)


def _earlier(members: Members, ended_by: Callable[[Run], Verdict]) -> Attempt:
    try:
        run = load_earlier(members)
    except DistdiagError:
        return _attempt(members, None, None)
    return _attempt(members, run, ended_by(run))


def _attempt(members: Members, run: Run | None, end: Verdict | None) -> Attempt:
    headers = [process.header for process in members.values() if process.header is not None]
    told = [header.settings[name] for header in headers for name in ATTEMPT_VARIABLES if name in header.settings]
    steps = pd.DataFrame() if run is None else run.steps[run.steps["end_ns"].notna()]
    count, ends = (0, {}) if run is None else _completed(steps)
    known = count > 0 and bool(steps["start_ns"].notna().any())
    return Attempt(
        number=max(process.attempt for process in members.values()),
        ranks=tuple(sorted(members)),
        end=end,
        start_ns=min(process.start_ns for process in members.values()),
        end_ns=max(process.end_ns for process in members.values()),
        steps=count,
        first_step_ns=int(steps["start_ns"].min()) if known and int(steps["step"].min()) == 0 else None,
        ends_ns=ends,
        saves=() if run is None else _saves(run.phases),
        loads=() if run is None else _loads(run.phases),
        told=None if run is None else _told(run.steps),
        restarts=max((int(each) for each in told if each.isdecimal()), default=None),
    )


def _completed(steps: pd.DataFrame) -> tuple[int, dict[int, int]]:
    """Return how many steps all ranks completed that do steps, and when each of these was completed."""
    if steps.empty:
        return 0, {}
    count = int(steps.groupby("rank")["step"].max().min()) + 1
    ends = steps[steps["step"] < count].groupby("step")["end_ns"].max()
    return count, {int(step): int(end) for step, end in zip(ends.index.tolist(), ends.tolist(), strict=True)}


def _saves(phases: pd.DataFrame) -> tuple[Saved, ...]:
    """Return the checkpoints that were written whole, with the step at which their content was copied."""
    staged = _ended(phases, (STAGE,))
    saves = {}
    for row in _ended(phases, SAVES).to_dict("records"):
        step, directory = int(row["step"]), str(row["directory"])
        if row["phase"] == UPLOAD:
            copied = staged[(staged["directory"] == directory) & (staged["time_ns"] <= row["time_ns"])]
            step = int(copied["step"].max()) if len(copied) else step
        saves[directory, step] = Saved(directory=directory, step=step, end_ns=int(row["end_ns"]))
    return tuple(saves.values())


def _loads(phases: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    loads = _ended(phases, (LOAD,))
    loads = loads[loads["step"] == 0]
    return tuple((str(name), int(end)) for name, end in zip(loads["directory"], loads["end_ns"], strict=True))


def _ended(phases: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the begins of phases of files that did not fail, with their ends, in the order of these."""
    begins = phases[(phases["edge"] == "begin") & phases["phase"].isin(names) & phases["directory"].notna()]
    ends = phases.loc[(phases["edge"] == "end") & ~phases["failed"], ["rank", "number", "time_ns"]]
    both = begins.merge(ends.rename(columns={"time_ns": "end_ns"}), on=["rank", "number"])
    return both.sort_values(["end_ns", "rank"], kind="stable")


def _told(steps: pd.DataFrame) -> int | None:
    """Return the number that the user gave the first step, where the numbers go on from step to step."""
    for name in GLOBAL_STEP_FACTS:
        said = [
            facts[name] - step
            for facts, step in zip(steps["facts"].tolist(), steps["step"].tolist(), strict=True)
            if isinstance(facts.get(name), int)
        ]
        if said and min(said) == max(said):
            return int(said[0])
    return None
