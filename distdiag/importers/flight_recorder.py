"""Dumps of PyTorch's flight recorder: pickles and JSON, of any schema and backend, one file for each rank."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from distdiag import events
from distdiag.importers._calls import DEFAULT_TIMEOUT_MS, LONGEST_TIMEOUT_MS, MILLISECOND_NS
from distdiag.importers._contract import Imported
from distdiag.importers._dumps import is_json, read_dump
from distdiag.importers._operations import device_of
from distdiag.importers._pickles import RefusedError
from distdiag.importers._ranks import attempt_in_path, rank_of, ranks_in_names
from distdiag.importers._roster import Roster
from distdiag.importers._sharing import Shared
from distdiag.importers._transcript import Transcript, transcribed

START_AGAIN_NS = 60_000_000_000
"""What a launch takes at least, between the dump of one attempt and the first call of the next."""


def attempts_of(transcripts: Sequence[tuple[int | None, Transcript]]) -> Mapping[int, list[Transcript]]:
    """Return the dumps by attempt, of each rank the newest; those whose path tells no attempt by the order of time.

    A dump that ends long before all others begin was left by an earlier job, whose ranks may have been others. One
    that its rank made before the others made theirs does not tell how far it is now, and is left out.
    """
    in_order = sorted(transcripts, key=lambda each: _order(each[1]))
    eras = _eras([transcript for attempt, transcript in in_order if attempt is None])
    attempts = dict(enumerate(map(_newest, eras)))
    for attempt, transcript in in_order:
        if attempt is not None:
            attempts.setdefault(attempt, []).append(transcript)
    return {attempt: list({each.rank: each for each in dumps}.values()) for attempt, dumps in attempts.items() if dumps}


def _order(transcript: Transcript) -> tuple[int, int, int, bool, str]:
    """Older dumps come first; of one that is written in two formats the one that holds call sites comes last."""
    dump = transcript.dump
    return transcript.first_ns, transcript.last_ns, transcript.entries, dump.has_frames, str(dump.path)


def _eras(transcripts: Sequence[Transcript]) -> list[list[Transcript]]:
    """Return the dumps of each time in which operations followed upon each other, the oldest first.

    Between two operations of one job there is at most what an operation may take, on all ranks together.
    """
    eras: list[list[Transcript]] = []
    end_ns = longest_ns = 0
    for transcript in transcripts:
        if not transcript.first_ns:
            continue
        if not eras or transcript.first_ns - end_ns > longest_ns + START_AGAIN_NS:
            eras.append([])
            longest_ns = 0
        eras[-1].append(transcript)
        end_ns, longest_ns = max(end_ns, transcript.last_ns), max(longest_ns, _longest_ns(transcript))
    # What was idle tells no time, and is taken to be as new as can be.
    untimed = [transcript for transcript in transcripts if not transcript.first_ns]
    return [*eras[:-1], [*untimed, *(eras[-1] if eras else ())]]


def _longest_ns(transcript: Transcript) -> int:
    allowed = (facts.timeout_ms or DEFAULT_TIMEOUT_MS for facts in transcript.groups.values())
    return min(max(allowed, default=DEFAULT_TIMEOUT_MS), LONGEST_TIMEOUT_MS) * MILLISECOND_NS


def _newest(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """Return the dumps that were made last: those of an older time do not tell how far their ranks are now.

    A rank with most dumps tells the times. What the newest of a rank with fewer is of, is told by the nearest.
    """
    by_rank: dict[int, list[Transcript]] = {}
    for transcript in transcripts:
        by_rank.setdefault(transcript.rank, []).append(transcript)
    most = max(by_rank.values(), key=len, default=[])
    moments = sorted({each.last_ns for each in most})
    return [
        dumps[-1]
        for dumps in by_rank.values()
        if len(dumps) == len(most) or not dumps[-1].last_ns or _nearest(moments, dumps[-1].last_ns) == moments[-1]
    ]


def _nearest(moments: Sequence[int], moment: int) -> int:
    return min(moments, key=lambda each: (abs(each - moment), -each))


NAME = "flight-recorder"

_WORDS = (b"profiling_name", b"collective_seq_id", b"pg_status", b"pg_config", b"comm_lib_version", b"nccl_version")
_OTHERS = (b'"traceEvents"', b'"schemaVersion"')
"""Profiler traces speak of process groups as well."""
_PICKLE = re.compile(rb"\x80[\x00-\x05]|[(\]}]")


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is a dump, by its first words."""
    if is_json(head):
        return any(word in head for word in _WORDS) and not any(word in head for word in _OTHERS)
    return _PICKLE.match(head) is not None and any(word in head for word in _WORDS)


def read(files: Sequence[Path]) -> Iterator[Imported]:
    """Begin to read dumps, and return what yields the ranks that they tell of, attempt by attempt."""
    return _ranks(files, Shared(functools.partial(_transcript, ranks_in_names(files)), files))


def _ranks(files: Sequence[Path], shared: Shared[Transcript | str]) -> Iterator[Imported]:
    root = _common_folder(files)
    transcripts: list[tuple[int | None, Transcript]] = []
    for file, transcript in zip(files, shared.results(), strict=True):
        if isinstance(transcript, str):
            yield _note(f"{file.name} could not be read: {transcript}")
            continue
        transcripts.append((attempt_in_path(file, root), transcript))
        yield from _defects(transcript)
    if twins := _twins([transcript for _, transcript in transcripts]):
        names = " and ".join(str(each.dump.path.relative_to(root)) for each in twins)
        transcripts = []
        yield _note(
            f"{names} are of two processes that ran at one time, and both tell the rank {twins[0].rank}: that may be "
            "the one on each host"
        )
    attempts = attempts_of(transcripts)
    known = {transcript.rank for of_attempt in attempts.values() for transcript in of_attempt}
    if older := {transcript.rank for _, transcript in transcripts} - known:
        whose = f"rank{'s' if len(older) > 1 else ''} {events.folded(sorted(older))}"
        yield _note(f"the dumps of {whose} are older than those of the others, and are not read")
    for attempt, of_attempt in sorted(attempts.items()):
        roster = Roster(of_attempt)
        for transcript in sorted(of_attempt, key=lambda each: each.rank):
            yield Imported(
                rank=transcript.rank,
                attempt=attempt,
                events=[_header(transcript, attempt, roster.world_size), *roster.records(transcript)],
                calls=transcript.calls,
                dones=roster.dones(transcript),
            )
        yield from (
            _note(f"the dumps do not say who is in group {name}: taken to be the ranks that used it")
            for name in sorted(roster.inferred)
        )


def _twins(transcripts: Sequence[Transcript]) -> tuple[Transcript, ...]:
    """Return two dumps of one rank that one process cannot have made: their calls are others, at the same time."""
    newest: dict[int, Transcript] = {}
    for each in sorted(transcripts, key=lambda each: each.first_ns):
        last = newest.get(each.rank)
        if last is not None and 0 < each.first_ns < last.last_ns:
            begun, former = (calls.numbers["start_ns"] for calls in (each.calls, last.calls))
            if not np.isin(begun, former).any():
                return last, each
        newest[each.rank] = each
    return ()


def _transcript(named: Mapping[Path, int], file: Path) -> Transcript | str:
    """Return what a dump tells, or why it cannot be read."""
    try:
        dump = read_dump(file)
        told = dump.rank if dump.rank is not None else named.get(file)
        rank = rank_of(told, (config.ranks for config in dump.configs.values()))
        if rank is None:
            return "neither its name nor its groups tell the rank"
        return transcribed(dump, rank, file.stat().st_mtime_ns)
    except (RefusedError, OSError) as error:
        return str(error)


def _header(transcript: Transcript, attempt: int, world_size: int) -> events.Header:
    dump = transcript.dump
    backends = sorted({facts.backend for facts in transcript.groups.values()})
    return events.Header(
        schema=events.SCHEMA,
        run="-0",  # the dumps name no run
        attempt=attempt,
        rank=transcript.rank,
        world_size=world_size,
        host="",
        pid=0,
        source=NAME,
        device=device_of(backends[0]) if backends else "cpu",
        versions={NAME: dump.version} | ({"communication library": dump.library} if dump.library else {}),
        wall_ns=transcript.first_ns,
        monotonic_ns=transcript.first_ns,
        stall_after_seconds=0.0,
        max_bytes=0,
    )


def _defects(transcript: Transcript) -> Iterator[Imported]:
    dump, entries = transcript.dump, transcript.entries
    if dump.unread:
        yield _note(f"{dump.path.name}: {dump.unread} of {dump.unread + entries} entries make no sense")
    if dump.dropped:
        yield _note(f"{dump.path.name}: only the newest {entries} entries were read")


def _note(text: str) -> Imported:
    return Imported(rank=None, attempt=0, events=(), notes=(text,))


def _common_folder(files: Sequence[Path]) -> Path:
    folders = [file.parent for file in files]
    common = folders[0] if folders else Path()
    while any(not folder.is_relative_to(common) for folder in folders):
        common = common.parent
    return common
