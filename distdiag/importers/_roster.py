"""What only all dumps together tell: who is in a group, what its backend's progress counts, and what never ended well.

A dump says little of the groups it speaks of. NCCL's name their members; gloo's do not, so its groups consist of the
ranks that used them. The progress of a group is told under a number that each process gives as it likes, and counts
messages as well as collectives where a group has both, so that it says nothing of either.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdiag import events
from distdiag.importers._calls import timed_out, with_ends
from distdiag.importers._dumps import Progress
from distdiag.importers._kinds import Drafted, GroupFacts, joined
from distdiag.importers._operations import OPEN_ENDED, device_of, digest
from distdiag.importers._transcript import Transcript
from distdiag.run.held import Rows

DEFAULT_NAME = "0"
DEFAULT_DESCRIPTION = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """One group, on all its members."""

    name: str
    members: tuple[int, ...]


class Roster:
    """The groups of one attempt of a job."""

    def __init__(self, transcripts: Sequence[Transcript]) -> None:
        """Compare the transcripts of all ranks."""
        self._by_rank = {transcript.rank: transcript for transcript in transcripts}
        self.world_size = 1 + max((max(each.rank, _highest(each)) for each in transcripts), default=-1)
        self._users: dict[tuple[str, str], list[int]] = {}
        for transcript in transcripts:
            for facts in transcript.groups.values():
                self._users.setdefault((facts.name, facts.description), []).append(transcript.rank)
        self.inferred: set[str] = set()
        self._members: dict[tuple[int, str], tuple[int, ...]] = {}
        self._typed = all(transcript.typed for transcript in transcripts)
        self._progress = {rank: dict(_progress(transcript)) for rank, transcript in self._by_rank.items()}
        self._untold = self._groups_of_mixed_progress()
        self._paths: dict[Hashable, events.Path] = {}
        self._signatures: dict[Hashable, events.Signature] = {}

    def records(self, transcript: Transcript) -> Iterator[events.Event]:
        """Yield the records of one rank behind its header, but for its calls and their ends."""
        yield from self._groups(transcript)
        for number, frames in enumerate(transcript.paths, start=1):
            path = events.Path(path=number, frames=list(frames))
            yield self._paths.setdefault((number, frames), path)  # ranks share most of them
        yield from (self._signature(transcript, draft) for draft in transcript.drafts)
        yield from self._statuses(transcript)

    def dones(self, transcript: Transcript) -> Rows:
        """Return the ends of the calls of one rank."""
        decided = (done for facts in transcript.groups.values() for done in self._decided(transcript, facts))
        return with_ends(transcript.dones, list(decided))

    def members(self, transcript: Transcript, name: str) -> tuple[int, ...]:
        """Return the global ranks of a group in its own order."""
        key = transcript.rank, name
        known = self._members.get(key)
        if known is None:
            known = self._members[key] = self._find_members(transcript, name)
        return known

    def _find_members(self, transcript: Transcript, name: str) -> tuple[int, ...]:
        facts = transcript.groups.get(name)
        config = transcript.dump.configs.get(name)
        if (
            config is not None
            and transcript.rank in config.ranks
            and (facts is None or not facts.description or facts.description == config.description)
        ):
            return config.ranks
        description = facts.description if facts is not None else ""
        if name == DEFAULT_NAME and description in ("", DEFAULT_DESCRIPTION):
            return tuple(range(self.world_size))
        if facts is not None and not description and not transcript.dump.configs:
            return (transcript.rank,)  # a number that means another group on each rank
        self.inferred.add(f"{name} ({description})" if description else name)
        return tuple(sorted(self._users.get((name, description), [transcript.rank])))

    def _groups(self, transcript: Transcript) -> Iterator[events.Group]:
        for name in dict.fromkeys((*transcript.groups, *transcript.dump.configs)):
            facts, config = transcript.groups.get(name), transcript.dump.configs.get(name)
            if facts is None and (config is None or transcript.rank not in config.ranks):
                continue
            timeout_ms = facts.timeout_ms if facts is not None else None
            yield events.Group(
                group=name,
                description=facts.description if facts is not None else config.description if config else "",
                ranks=self.members(transcript, name),
                backend=facts.backend if facts is not None else "",
                timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
                time_ns=facts.first_ns if facts is not None else transcript.first_ns,
            )

    def _signature(self, transcript: Transcript, draft: Drafted) -> events.Signature:
        members = self.members(transcript, draft.group)
        backend = transcript.groups[draft.group].backend
        key = draft, backend, members if draft.operation.peer is not None else None
        known = self._signatures.get(key)
        if known is None:
            known = self._signatures[key] = self._made(draft, backend, members)
        return known

    def _made(self, draft: Drafted, backend: str, members: Sequence[int]) -> events.Signature:
        op, moved = joined(draft)
        peer = draft.operation.peer
        digests = [digest(each, tensors, typed=self._typed) for each, tensors in draft.parts]
        return events.Signature(
            signature=draft.number,
            group=draft.group,
            op=op,
            p2p=draft.operation.p2p,
            dtype=moved.dtype,
            shapes=[list(shape) for shape in moved.inputs],
            output_shapes=[list(shape) for shape in moved.outputs],
            size_bytes=moved.size_bytes,
            peer=members[peer] if peer is not None and peer < len(members) else None,
            input_splits=list(moved.input_splits),
            output_splits=list(moved.output_splits),
            path=draft.path,
            thread=draft.thread,
            device=device_of(backend),
            agree=digests[0] if len(digests) == 1 else hash_together(digests),
        )

    def _decided(self, transcript: Transcript, facts: GroupFacts) -> Iterator[events.Done]:
        """Yield the ends of collectives of a backend that does not tell how they ended.

        What is no longer watched has ended, and all before it; what one member ended and all issued, all have ended.
        It cannot have ended well if a member never came.
        """
        if not facts.undecided:
            return
        others = [self._by_rank[rank] for rank in self.members(transcript, facts.name) if rank in self._by_rank]
        last = {each.rank: each.groups[facts.name].last_seq if facts.name in each.groups else 0 for each in others}
        newest = max((each.groups[facts.name].newest_ended for each in others if facts.name in each.groups), default=-1)
        newest = max(min(newest, min(last.values(), default=-1)), facts.newest_ended)
        for each in facts.undecided:
            if each.seq > newest:
                continue
            absent = [rank for rank, seq in last.items() if seq < each.seq]
            if absent and each.op not in OPEN_ENDED:
                yield timed_out(each.call, each.start_ns, facts.timeout_ms, f" without rank {absent[0]}")
            else:
                yield events.Done(call=each.call, end_ns=each.start_ns, clock="unknown")

    def _statuses(self, transcript: Transcript) -> Iterator[events.Status]:
        told = self._progress[transcript.rank]
        for name in dict.fromkeys((*transcript.groups, *told)):
            facts = transcript.groups.get(name)
            progress = told.get(name)
            if progress is None or self._key(transcript, name) in self._untold:
                if facts is None or not facts.last_seq:
                    continue
                progress = Progress(enqueued=facts.last_seq, started=facts.last_started, completed=facts.last_completed)
            yield events.Status(
                group=name,
                time_ns=transcript.told_ns,
                last_enqueued=progress.enqueued,
                last_started=progress.started or (facts.last_started if facts is not None else None),
                last_completed=progress.completed,
            )

    def _groups_of_mixed_progress(self) -> set[_Key]:
        """Return the groups whose progress counts something else than their collectives."""
        untold: set[_Key] = set()
        for rank, transcript in self._by_rank.items():
            for name, facts in transcript.groups.items():
                progress = self._progress[rank].get(name)
                counts_else = progress is not None and facts.last_seq and progress.enqueued != facts.last_seq
                if facts.point_to_point or counts_else:
                    untold.add(self._key(transcript, name))
        return untold

    def _key(self, transcript: Transcript, name: str) -> _Key:
        return _Key(name=name, members=self.members(transcript, name))


def hash_together(digests: Sequence[int]) -> int:
    """Return 32 bits for several digests in order."""
    mixed = len(digests)
    for each in digests:
        mixed = (mixed * 1_000_003 ^ each) & 0xFFFF_FFFF
    return mixed


def _highest(transcript: Transcript) -> int:
    """Return the highest rank in the groups that were configured, -1 where there are none."""
    return max((max(config.ranks, default=-1) for config in transcript.dump.configs.values()), default=-1)


def _progress(transcript: Transcript) -> Iterator[tuple[str, Progress]]:
    """Yield the progress of each group by name, as far as the numbers of this process can be told."""
    names: dict[int, str] = {}
    for facts in transcript.groups.values():
        names |= dict.fromkeys(facts.numbers, facts.name)
    in_order = _in_order(transcript.dump.progress, transcript.dump.configs)
    if all(in_order.get(number, name) == name for number, name in names.items()):
        names = in_order | names
    for number, progress in transcript.dump.progress.items():
        if number in names:
            yield names[number], progress


def _in_order(progress: Mapping[int, Progress], configs: Mapping[str, object]) -> dict[int, str]:
    """Return the name for each number where both count the groups in the order in which they were made."""
    if len(progress) != len(configs) or not all(name.isdigit() for name in configs):
        return {}
    return dict(zip(sorted(progress), sorted(configs, key=int), strict=True))
