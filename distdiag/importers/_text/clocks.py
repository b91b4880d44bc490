"""By whose clocks the moments of training output are told, and what tells none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdiag.importers._text.facts import Ended, Torn
from distdiag.importers._text.filenames import ranks_of
from distdiag.importers._text.owners import MAX_LOCAL_RANKS, Told, world_of
from distdiag.importers._text.reader import Transcript

_OF_HOSTS = re.compile(r"host|node|worker|pod", re.IGNORECASE)
"""What files are called after that are of a host each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Whose clocks files and ranks go by: those of one name compare. What is not named goes by the first one's."""

    files: Mapping[int, str]
    """By number of file, ``""`` for the first."""
    ranks: Mapping[int, str]
    untimed: frozenset[int]
    """Ranks of whose words none bears a moment."""


def clocks_of(told: Sequence[Told], transcripts: Sequence[Transcript]) -> Clocks:
    """Return the clocks of some files and of the ranks that speak in them.

    Files of one rank each, named after it, are of one host where that may have all ranks; of any others, each may be
    of another host, but for those in which the same ranks speak.
    """
    paths = [transcript.path for transcript in transcripts]
    speakers: dict[int, set[int]] = {}
    for each in sorted(told, key=lambda each: isinstance(each.said.what, Ended | Torn)):  # a launcher's words come last
        if each.rank is not None:
            speakers.setdefault(each.said.file, set()).add(each.rank)
    named = ranks_of(paths)
    together = (world_of(told) or 0) <= MAX_LOCAL_RANKS and not any(_OF_HOSTS.search(path.name) for path in paths)
    together &= all(len(ranks) == 1 and paths[file] in named for file, ranks in speakers.items())
    stamped = {number for number, each in enumerate(transcripts) if any(said.line.stamp for said in each.said)}
    files: dict[int, str] = {}
    of_rank: dict[int, str] = {}
    for file in [each for each in speakers if each in stamped and not together]:
        host = next((of_rank[rank] for rank in speakers[file] if rank in of_rank), f"file {file}" if files else "")
        files[file] = host
        of_rank |= dict.fromkeys(speakers[file] - of_rank.keys(), host)
    untimed = {rank for file, ranks in speakers.items() if file not in stamped for rank in ranks}
    return Clocks(files=files, ranks=of_rank, untimed=frozenset(untimed - of_rank.keys()))
