"""Own logs that lie in several folders: parts of one run, one folder for each host, rank or attempt, or several runs.

Folders hold one run where they bear the name of one launch and either have other ranks at the same time, or the same
ranks at another attempt. Copies of the same logs count once. A name alone tells nothing: launchers give most jobs of
a host the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distdiag.errors import DistdiagError
from distdiag.importers._ranks import attempt_in_path
from distdiag.journal.segments import place_of, segments_of
from distdiag.launch_names import START_TOGETHER_NS
from distdiag.run.launch import Process, choose, processes_of
from distdiag.run.logfiles import discover, discover_files
from distdiag.run.processes import ranks_of, same_job

MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The logs of one folder that belong to one run."""

    folder: Path
    files: tuple[Path, ...]
    """None of a packed run."""
    identities: frozenset[tuple[str, int, int]] = frozenset()
    """Host, process and beginning of each process."""
    run: str | None = None
    ranks: frozenset[int] = frozenset()
    world: int | None = None
    attempt: int = 0
    numbered: bool = False
    """Whether its folder bears the number of the attempt."""
    start_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """The folders of one run, the oldest part first."""

    parts: tuple[Part, ...]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return its folders, sorted."""
        return tuple(sorted({part.folder for part in self.parts}))

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all its files, older parts first."""
        return tuple(file for part in self.parts for file in part.files)

    @property
    def start_ns(self) -> int:
        """Return when its newest part began."""
        return max(part.start_ns for part in self.parts)


def named(paths: Sequence[Path]) -> str:
    """Return some paths in words."""
    return " and ".join(map(str, paths[:MOST_NAMED])) + (" …" if len(paths) > MOST_NAMED else "")


class SeveralRunsError(DistdiagError):
    """A folder holds the logs of several runs, of which a report can tell one only."""

    def __init__(self, paths: Sequence[Path], runs: Sequence[OwnRun]) -> None:
        names = [str(run.folders[0]) for run in runs]
        shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        self.where = named(paths)
        holds = "holds" if len(paths) == 1 else "hold"
        super().__init__(
            f"{self.where} {holds} the logs of {len(runs)} runs: {shown}", f"pass one of them; the newest is {names[0]}"
        )
        self.runs = tuple(runs)
        """The newest first."""


def runs_of(folders: Mapping[Path, Sequence[Path]], root: Path) -> list[OwnRun]:
    """Return the runs whose own logs lie in some folders, the newest first; of a single folder they are not read."""
    if len(folders) == 1:
        return [OwnRun(parts=(Part(folder=folder, files=_once(folder, files)),)) for folder, files in folders.items()]
    parts = sorted(
        (_part(folder, _once(folder, files), root) for folder, files in folders.items()),
        key=lambda part: (part.start_ns, part.folder),
    )
    runs: list[list[Part]] = []
    for part in _without_copies(parts):
        run = next((run for run in reversed(runs) if _belongs(part, run)), None)
        if run is None:
            runs.append([part])
        else:
            run.append(part)
    return sorted((OwnRun(parts=tuple(run)) for run in runs), key=lambda run: (-run.start_ns, run.folders))


def _part(folder: Path, files: tuple[Path, ...], root: Path) -> Part:
    processes = ranks_of(processes_of(discover_files(files) if files else discover(folder)))
    launch = choose(processes)
    members = list(launch.members.values())
    told = attempt_in_path(folder / "log", root)
    return Part(
        folder=folder,
        files=files,
        identities=frozenset(_identities(processes)),
        run=launch.run,
        ranks=frozenset(launch.members),
        world=max((p.header.world_size for p in members if p.header and p.header.world_size), default=None),
        attempt=told if told is not None else _attempt(members),
        numbered=told is not None,
        start_ns=min((process.start_ns for process in members if process.start_ns), default=0),
        end_ns=max((process.end_ns for process in members), default=0),
    )


def _once(folder: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    """Leave out segments of which another one holds what remains."""
    told = {file for log in segments_of(folder) for file in log.files}
    return tuple(file for file in files if file in told or place_of(file.name) is None)


def _attempt(members: Sequence[Process]) -> int:
    headers = (process.header.attempt for process in members if process.header is not None)
    return max((*headers, *(process.attempt for process in members)), default=0)


def _identities(processes: Sequence[Process]) -> Iterator[tuple[str, int, int]]:
    for process in processes:
        if process.header is not None:
            yield process.header.host, process.header.pid, process.header.wall_ns


def _without_copies(parts: Sequence[Part]) -> Iterator[Part]:
    """Leave out folders all of whose processes another one has: of equal ones the first in order of names stays."""
    for number, part in enumerate(parts):
        others = [other for place, other in enumerate(parts) if place != number and part.identities]
        whole = any(part.identities < other.identities for other in others)
        twin = any(part.identities == other.identities for other in parts[:number] if part.identities)
        if not (whole or twin):
            yield part


def _belongs(part: Part, run: Sequence[Part]) -> bool:
    """Return whether a part that began later is of the same run."""
    if not all(_same_size(part.world, other.world) and _same_job(part, other) for other in run):
        return False
    rivals = {other.attempt for other in run if part.ranks & other.ranks}
    if rivals:
        return part.attempt not in rivals
    return any(part.start_ns - other.start_ns < START_TOGETHER_NS or part.start_ns < other.end_ns for other in run)


def _same_job(one: Part, other: Part) -> bool:
    """Return whether two parts bear one name, or are numbered attempts: a job that starts anew may be named anew."""
    return same_job(one.run, other.run) or (one.numbered and other.numbered and one.attempt != other.attempt)


def _same_size(one: int | None, other: int | None) -> bool:
    return one is None or other is None or one == other
