"""Under which names the ranks of one launch go: each process makes its own from what its launcher told it."""

from collections.abc import Iterable, Mapping

from distdiag import events

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
START_TOGETHER_NS = 60_000_000_000
"""Processes of one launch begin to record within this time of each other, unless an import was very slow."""


def name_told(header: events.Header) -> str | None:
    """Return the launch's name; None where launcher variables gave none and the process made one up."""
    made_up = (f"{header.host}-{number}" for number in (header.pid, header.started_by))
    return None if header.run in made_up else header.run


def names_of_launch(headers: Iterable[tuple[int, events.Header]], newest: events.Header) -> frozenset[str]:
    """Return the names under which the ranks of one launch go, given the headers of all ranks in its directory.

    A process that was given another address or port than the others names its launch otherwise, too. What is left of
    a world that began together is of it: ranks that the launch lacks, while theirs lack all of its ranks.
    """
    by_name: dict[str, list[tuple[int, events.Header]]] = {}
    for rank, header in headers:
        by_name.setdefault(header.run, []).append((rank, header))
    names, ranks = {newest.run}, {rank for rank, _ in by_name.get(newest.run, ())}
    world_size = newest.world_size or 0
    for name, own in sorted(by_name.items()):
        theirs = {rank for rank, _ in own}
        world_size = max(world_size, *(header.world_size or 0 for _, header in own))
        fits = not theirs & ranks and len(theirs | ranks) <= world_size and _job(name) == _job(newest.run)
        if fits and all(_began_with(header, newest) and _is_part(theirs, header) for _, header in own):
            names.add(name)
            ranks |= theirs
    return frozenset(names | _of_attempts_before(by_name, newest))


def _of_attempts_before(by_name: Mapping[str, list[tuple[int, events.Header]]], newest: events.Header) -> set[str]:
    """Return the names of a launch's earlier attempts: an elastic agent may meet again at another address and port."""
    names, later_ns, attempt = set[str](), newest.wall_ns, _restarts(newest)
    while attempt:
        attempt -= 1
        begun = {
            name: max(header.wall_ns for _, header in own)
            for name, own in by_name.items()
            if _job(name) == _job(newest.run) and all(_is_attempt(header, newest, attempt) for _, header in own)
        }
        before = {name: at for name, at in begun.items() if at < later_ns}
        if not before:
            break
        name = max(before, key=lambda each: (before[each], each))
        names.add(name)
        later_ns = before[name]
    return names


def _is_attempt(header: events.Header, newest: events.Header, attempt: int) -> bool:
    counted = RESTARTS in header.settings and _restarts(header) == attempt
    return counted and (header.script, header.host) == (newest.script, newest.host)


def _restarts(header: events.Header) -> int:
    told = header.settings.get(RESTARTS, "")
    return int(told) if told.isdecimal() else 0


def began_later(header: events.Header, other: events.Header) -> bool:
    """Return whether of two processes of one rank and launch the first began after the other.

    On one host its clock tells; clocks of several may differ by more than a restart takes, but attempts are counted.
    """
    apart = header.host != other.host and header.attempt != other.attempt
    return header.attempt > other.attempt if apart else header.wall_ns > other.wall_ns


def _job(name: str) -> str:
    return name.rpartition("@")[0]


def _began_with(header: events.Header, newest: events.Header) -> bool:
    together = abs(newest.wall_ns - header.wall_ns) < START_TOGETHER_NS
    return together and header.attempt == newest.attempt


def _is_part(ranks: set[int], header: events.Header) -> bool:
    """Return whether there are fewer ranks than their world has."""
    return len(ranks) < (header.world_size or 0)
