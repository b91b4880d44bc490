"""Dumps of PyTorch's flight recorder: pickles and JSON, of any schema and backend, one file for each rank."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from distdiag import events
from distdiag.importers._attempts import attempts_of
from distdiag.importers._contract import Imported
from distdiag.importers._dumps import is_json, read_dump
from distdiag.importers._operations import device_of
from distdiag.importers._pickles import RefusedError
from distdiag.importers._ranks import attempt_in_path, rank_of, ranks_in_names
from distdiag.importers._roster import Roster
from distdiag.importers._sharing import Shared
from distdiag.importers._transcript import Transcript, transcribed

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
