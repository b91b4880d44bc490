"""The attempts of a job that came before the one that is analysed, as far as their logs lie beside it."""

from collections.abc import Mapping, Sequence

from distdiag.run.launch import Launch, Process

Members = Mapping[int, Process]
"""The processes of one attempt by rank."""


def earlier_of(processes: Sequence[Process], launch: Launch) -> tuple[Members, ...]:
    """Return the attempts of the same job before ``launch``, the oldest first.

    A launcher that starts a job anew may take another port, so that only the job's own name is the same. Ranks that
    several processes claim make it uncertain which attempt a log is of: then there are none.
    """
    if not launch.members or launch.doubled:
        return ()
    members = {_key(process) for process in launch.members.values()}
    began = min(process.start_ns for process in launch.members.values())
    former = [
        process
        for process in processes
        if _key(process) not in members
        and process.supported
        and process.rank is not None
        and 0 < process.start_ns < began
        and same_job(process.run, launch.run)
    ]
    return _attempts(sorted(former, key=lambda process: (process.start_ns, process.stem)))


def _attempts(ordered: Sequence[Process]) -> tuple[Members, ...]:
    """Part processes where a rank begins for the second time, or one of another number when all others had ended."""
    attempts: list[dict[int, Process]] = []
    for process in ordered:
        rank = process.rank or 0
        present = attempts[-1] if attempts else {}
        others = [each.attempt for each in present.values()]
        over = max((each.end_ns for each in present.values()), default=0) < process.start_ns
        if not present or rank in present or (over and process.attempt not in others):
            attempts.append({})
        attempts[-1][rank] = process
    return tuple(dict(sorted(attempt.items())) for attempt in attempts)


def same_job(one: str | None, other: str | None) -> bool:
    """Return whether two launches bear the name of one job: ``job@address``, the job left out where it has no name."""
    if one == other:
        return True
    names = {(name or "").partition("@")[0] if "@" in (name or "") else "" for name in (one, other)}
    return len(names) == 1 and names != {""}


def _key(process: Process) -> tuple[str, int]:
    return process.stem, process.attempt
