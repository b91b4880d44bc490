"""Which attempt of a job each dump is of: as paths tell, else by when its operations were issued."""

from collections.abc import Mapping, Sequence

from distdiag.importers._calls import DEFAULT_TIMEOUT_MS, LONGEST_TIMEOUT_MS, MILLISECOND_NS
from distdiag.importers._transcript import Transcript

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
