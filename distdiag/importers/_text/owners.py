"""Which rank said what: from prefixes, processes, names of files, and what is left when all others are known."""

import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdiag.importers._text.facts import (
    CommunicatorRank,
    Ended,
    Heard,
    Issued,
    Missed,
    Passed,
    Raised,
    Remark,
    Restarted,
    Role,
    Said,
    Speaker,
    Stacked,
    Torn,
    Waited,
    What,
    World,
)
from distdiag.importers._text.filenames import MAX_RANK, attempt_of, numbered, ranks_of
from distdiag.importers._text.fragments import SHARED_MEMORY
from distdiag.importers._text.names import DEFAULT_GROUP
from distdiag.importers._text.normalise import Line
from distdiag.importers._text.reader import Transcript
from distdiag.importers._text.stores import INIT, waiter_in

MAX_LOCAL_RANKS = 8
"""Jobs of more ranks span several hosts, so that the number of a device tells no rank."""
LEAST_WAITING = 2
"""Ranks of which all but one must be heard, where nothing tells how many there are."""
_LABELLED_PID = re.compile(r"\bpid=(\d{1,9})\b")
_ACTOR = re.compile(r"\bpid: (?P<pid>\d{1,9})\s+name: \w*WorkerDict_0:(?P<rank>\d{1,4})\b")
"""An actor of Ray that died, as verl names it: by host, counted from 0, and rank on that host."""
_SIGNED = re.compile(r"^\[Rank:(?P<gaudi>\d{1,6})\] FATAL ERROR|\(PID:\d+, Device:\d+, RankID:(?P<npu>\d{1,6})\)")
"""How libraries of Habana's and Huawei's name the rank in the message of an exception."""
_FURTHER = re.compile(r"--local[-_]rank[= ][1-9]")
"""In the command of a process that is not the first of its host."""
_DEVICE = re.compile(r"\bGPU (\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something said, and by whom; None where that cannot be known."""

    rank: int | None
    attempt: int
    said: Said


@dataclass(slots=True, kw_only=True)
class _Known:
    """What all files together tell of who is who."""

    files: Mapping[int, int]
    """Rank by number of file, from its name; none where lines say that names tell something else."""
    labels: dict[tuple[int, str, int | None], set[int]] = field(default_factory=dict)
    tasks: dict[int, set[int]] = field(default_factory=dict)
    """Ranks that lines with a task's number named."""
    pids: dict[int, int] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    """Rank in the largest communicator by host and pid, as NCCL prints them."""
    buses: dict[int, set[int]] = field(default_factory=dict)
    """Ranks by where their devices are plugged in, on any host."""
    hosts: int = 0
    """Files in which lines tell local ranks alone."""
    tasks_launch: bool = False
    """Whether SLURM's tasks are launchers, so that their numbers are those of hosts."""


def owned(transcripts: Sequence[Transcript]) -> list[Told]:
    """Return everything said with its speaker, in the order of files and lines."""
    paths = [transcript.path for transcript in transcripts]
    known = _known(transcripts, paths)
    if not known.files and not known.labels:
        known.labels.update(_numbered_labels(transcripts))
    told = [each for number, transcript in enumerate(transcripts) for each in _of_file(number, transcript, known)]
    return list(_rest(told))


def world_of(told: Iterable[Told]) -> int | None:
    """Return the number of ranks of the job, as far as it is told."""
    sizes = {each.said.what.size for each in told if isinstance(each.said.what, World | CommunicatorRank)}
    ranks = {rank for each in told for rank in _ranks_in(each)}
    return max((size for size in (*sizes, *(rank + 1 for rank in ranks)) if size <= MAX_RANK), default=None)


def _ranks_in(told: Told) -> Iterator[int]:
    if told.rank is not None:
        yield told.rank
    what = told.said.what
    if isinstance(what, Heard):
        yield from what.ranks
    if isinstance(what, Missed) and what.what != INIT:  # who joins may be mistaken about the size of the world
        yield from what.ranks


def _known(transcripts: Sequence[Transcript], paths: Sequence[Path]) -> _Known:
    named = ranks_of(paths)
    known = _Known(files={number: named[path] for number, path in enumerate(paths) if path in named})
    sizes: dict[str, int] = {}
    for number, transcript in enumerate(transcripts):
        for (label, task), ranks in transcript.ranks.items():
            known.labels.setdefault((number, label, task), set()).update(ranks)
            process = _LABELLED_PID.search(label)
            if process and len(ranks) == 1:
                known.pids[int(process[1])] = next(iter(ranks))
        for said in transcript.said:
            line, what = said.line, said.what
            if line.rank is not None:
                if line.task is not None:
                    known.tasks.setdefault(line.task, set()).add(line.rank)
                if line.pid is not None:
                    known.pids[line.pid] = line.rank
            known.pids |= _processes_named(what)
            known.tasks_launch |= isinstance(what, Torn) or (isinstance(what, Ended) and what.local_rank is not None)
            if isinstance(what, CommunicatorRank) and what.size >= sizes.get(what.process, 0):
                known.processes[what.process], sizes[what.process] = what.rank, what.size
                if what.bus is not None:
                    known.buses.setdefault(what.bus, set()).add(what.rank)
        _doubt_numbers(known, number, transcript)
    return known


def _doubt_numbers(known: _Known, number: int, transcript: Transcript) -> None:
    """Take names of files, and numbers of tasks, for something else than ranks where lines behind them name others."""
    spoke = set[int]().union(*transcript.ranks.values())
    local = {said.line.local_rank for said in transcript.said} - {None}
    members = {
        said.what.group_rank for said in transcript.said if isinstance(said.what, Waited) and not said.what.group
    }
    known.hosts += bool(local) and not spoke
    several = len(local) > 1 or len(members - {None}) > 1 or any(map(_of_further, transcript.said))
    if number in known.files and (several or (spoke and known.files[number] not in spoke)):
        known.files = {}
    known.tasks_launch |= any(task is not None and ranks != {task} for (_, task), ranks in transcript.ranks.items())


def _of_further(said: Said) -> bool:
    """Return whether a launcher speaks that started more than one process on its host."""
    return isinstance(said.what, Ended) and bool(said.what.local_rank or _FURTHER.search(said.line.text))


def _processes_named(what: What) -> Mapping[int, int]:
    """Return the ranks of the processes that a launcher names with them."""
    if isinstance(what, Ended) and what.rank is not None and what.pid is not None:
        return {what.pid: what.rank}
    actor = _ACTOR.search(what.message) if isinstance(what, Raised) else None
    return {int(actor["pid"]): int(actor["rank"])} if actor else {}


def _numbered_labels(transcripts: Sequence[Transcript]) -> Mapping[tuple[int, str, int | None], set[int]]:
    """Return the ranks of the sources of lines that are numbered from 0, where nothing names any rank."""
    labels = {
        (number, said.line.label)
        for number, transcript in enumerate(transcripts)
        for said in transcript.said
        if said.line.label and said.line.local_rank is None and said.line.pid is None
    }
    paths = {Path(str(number), label): (number, label, None) for number, label in labels}
    return {paths[path]: {rank} for path, rank in numbered(sorted(paths)).items()}


def _of_file(number: int, transcript: Transcript, known: _Known) -> Iterator[Told]:
    attempt = attempt_of(transcript.path)
    speakers: dict[str, int] = {}
    for said in transcript.said:
        what = said.what
        if isinstance(what, Speaker):
            speakers[said.line.label] = what.rank
            continue
        if isinstance(what, Restarted):
            attempt += 1
            continue
        if isinstance(what, Remark) and (whose := _whose(what, known)) is not None:
            said = replace(said, what=replace(what, text=f"{what.text}: that is rank {whose}"))
        rank = _named_in(said, known)
        if rank is None:
            rank = speakers.pop(said.line.label, None) if isinstance(what, Raised) else None
        if rank is None:
            rank = _told_by_surroundings(number, said, known)
        yield Told(rank=rank if rank is not None and rank < MAX_RANK else None, attempt=attempt, said=said)
    line = Line(number=transcript.lines, text="")
    for besides in _besides(transcript):
        yield Told(rank=None, attempt=attempt, said=Said(what=besides, role=Role.UNKNOWN, line=line, file=number))


def _besides(transcript: Transcript) -> Iterator[What]:
    """Yield what ordinary lines tell of who there is, where others tell of something."""
    if transcript.said and transcript.heard:
        yield Heard(ranks=frozenset(transcript.heard))
    if transcript.said and max(transcript.heard, default=0) < transcript.size <= MAX_RANK:
        yield World(size=transcript.size)


def _named_in(said: Said, known: _Known) -> int | None:
    """Return the rank that a message is about."""
    what = said.what
    if isinstance(what, Ended):
        told = what.task if what.rank is None and not known.tasks_launch else what.rank
        return told if told is not None else known.pids.get(what.pid or -1)
    if isinstance(what, Raised) and what.rank is not None:
        return what.rank
    if isinstance(what, Torn) or (isinstance(what, Raised) and what.pid is not None):
        return known.pids.get(what.pid or -1)
    if isinstance(what, Issued):
        if what.rank is not None:
            return what.rank
        return known.processes.get(what.group.partition(" ")[0])
    if isinstance(what, CommunicatorRank):
        return known.processes.get(what.process)
    by = what.by if isinstance(what, Missed | Passed) else None
    if by is None and isinstance(what, Raised) and said.line.rank is None:
        own = _SIGNED.search(what.message)
        by = int(own["gaudi"] or own["npu"]) if own else waiter_in(what.message)
    return by if by is not None else said.line.rank


def _whose(remark: Remark, known: _Known) -> int | None:
    """Return the rank whose process, or device, a remark is about."""
    host, _, pid = remark.process.rpartition(":")
    of_process = {
        rank
        for process, rank in known.processes.items()
        if process == remark.process or (not host and process.endswith(f":{pid}"))
    }
    ranks = known.buses.get(remark.bus, set()) if remark.bus is not None else of_process
    ranks = ranks & of_process or ranks
    return next(iter(ranks)) if len(ranks) == 1 else None


def _told_by_surroundings(number: int, said: Said, known: _Known) -> int | None:
    """Return the rank of the process that a message comes from, as prefixes, processes and names tell it."""
    if isinstance(said.what, Ended | Torn):
        return None  # a launcher's words
    line = said.line
    ranks = known.labels.get((number, line.label, line.task), set())
    # Lines without any prefix beside such with one may be of whatever writes to the same place.
    if len(ranks) == 1 and (line.label or line.task is not None or known.files.get(number) in ranks):
        return next(iter(ranks))
    if line.pid in known.pids:
        return known.pids[line.pid or 0]
    if not ranks and number in known.files:
        return known.files[number]
    if line.task is not None and all(named == {task} for task, named in known.tasks.items()):
        return line.task
    if isinstance(said.what, Waited | Raised):
        tag, in_group = said.what.group, said.what.group_rank
        if tag is not None and tag.name == DEFAULT_GROUP:
            return tag.rank
        if tag is None and in_group is not None:
            return in_group
    return line.local_rank if known.hosts < 2 else None


def _rest(told: Sequence[Told]) -> Iterator[Told]:
    """Yield everything, exceptions that nobody signed with the rank that only can have raised them."""
    ranks = {each.rank for each in told if each.rank is not None}
    waited = {each.rank for each in told if isinstance(each.said.what, Waited)}

    for each in told:
        what = each.said.what
        if each.rank is None and isinstance(what, Stacked) and what.signal is not None:
            yield replace(each, rank=_crashed(what.signal, told))
        elif isinstance(what, Raised) and each.said.role is Role.INITIATING and _is_doubted(what, each, waited):
            raiser = _raiser(what, told) if ranks else None
            yield replace(each, rank=each.rank if raiser is None else raiser)
        else:
            yield each


def _is_doubted(raised: Raised, told: Told, waited: Collection[int | None]) -> bool:
    """Return whether nothing tells who raised, or only that a rank that waited itself is heard of on that host."""
    line = told.said.line
    named = (raised.rank, line.rank, line.local_rank, line.pid, line.task)
    return told.rank is None or (told.rank in waited and line.label != "" and all(each is None for each in named))


def _crashed(name: str, told: Sequence[Told]) -> int | None:
    """Return the one rank of which a launcher says that a signal ended it, where one process alone told of that."""
    crashes = sum(isinstance(each.said.what, Stacked) and each.said.what.signal == name for each in told)
    code = -signal.Signals.__members__.get(name, 0)
    ended = {each.rank for each in told if isinstance(each.said.what, Ended) and each.said.what.code == code}
    ended.discard(None)
    return ended.pop() if crashes == len(ended) == 1 else None


def _is_same(what: object, raised: Raised) -> bool:
    """Return whether a watchdog ended by the error of the device that an exception tells of."""
    if not isinstance(what, Raised) or not what.fatal or not what.message:
        return False
    first = what.message.split("\n")[0].strip()
    return what.type in raised.message and first in raised.message


def _raiser(raised: Raised, told: Sequence[Told]) -> int | None:
    """Return the rank whose launcher says that it failed first, whose device it names, or who alone did not wait."""
    failed = [each for each in told if isinstance(each.said.what, Ended) and each.said.role is Role.INITIATING]
    speaking = {each.rank for each in told if isinstance(each.said.what, Raised | Waited)}
    first = {each.rank for each in failed if isinstance(each.said.what, Ended) and each.said.what.first}
    for candidates in (first, {each.rank for each in failed}):
        unsigned = {rank for rank in candidates if rank is not None} - speaking
        if len(unsigned) == 1:
            return unsigned.pop()
    if SHARED_MEMORY in raised.message:
        seen = {each.rank for each in told if "DataLoader worker" in getattr(each.said.what, "message", "")} - {None}
        return seen.pop() if len(seen) == 1 else None
    seen = {each.rank for each in told if _is_same(each.said.what, raised)} - {None}
    if len(seen) == 1:
        return seen.pop()
    world = world_of(told) or 0
    device = _DEVICE.search(raised.message)
    if device and world <= MAX_LOCAL_RANKS and int(device[1]) not in speaking:
        return int(device[1])
    waited = {each.rank for each in told if isinstance(each.said.what, Waited)}
    if len(waited) < LEAST_WAITING and not any(isinstance(each.said.what, World) for each in told):
        return None  # the highest rank that speaks in an excerpt tells no size
    others = set(range(world)) - waited
    return others.pop() if len(others) == 1 else None
