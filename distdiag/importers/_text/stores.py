"""What ranks say that wait for others before the first collective: stores, rendezvous, communicators."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import GroupTag, Missed, Passed, Remark, Role, What, World
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.names import DEFAULT_DESCRIPTION, DEFAULT_GROUP
from distdiag.importers._text.normalise import Line

FIRST_COLLECTIVE = "first collective"
INIT = "init_process_group"

_IDENTIFIER = re.compile(
    r"\[(?P<waiter>\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(?P<missing>\d+)\]"
)
_LIMIT = re.compile(r"(?:after|in) (\d+) ?ms")
_GROUP_KEY = re.compile(r"keys?: ?(?:/[\w.-]*)*?/?(?P<group>default_pg|[\w.-]+)/\d+/?")
_CLIENTS = re.compile(
    r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<size>\d+) clients joined"
)
_AWAITED = re.compile(r"wait timeout after (?P<limit>\d+) ?ms, keys?: \S*default_pg\S*?/(?P<rank>\d+)(?![\w/])")
_BARRIER = re.compile(
    r"(?P<timed_out>Timed out)?.*store based barrier.*rank: (?P<rank>\d+),.*key: (?P<key>[\w:-]+) "
    r"\(world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<count>\d+)"
)
_BROKEN = re.compile(
    r"got error: .*(?:reset|closed|refused|broken pipe|recvvalue failed|failed to recv)", re.IGNORECASE
)
_UNREACHED = re.compile(
    r"client socket has timed out after (?P<limit>\d+ ?m?s) while trying to connect to \(?(?P<host>[\w.:-]+?)(?:, |:)"
    r"(?P<port>\d+)"
)
_COMPLETED = re.compile(r"Rank (?P<rank>\d+): Completed store-based barrier.* with (?P<size>\d+) nodes")


def communicator(line: Line) -> Iterator[What]:
    """Read which rank had not made the identifier of a communicator, which the first collective needs."""
    found = _IDENTIFIER.search(line.text)
    if found:
        limit, key = _LIMIT.search(line.text, found.end()), _GROUP_KEY.search(line.text, found.end())
        name = key["group"] if key else ""
        yield Missed(
            what=FIRST_COLLECTIVE,
            ranks=(int(found["missing"]),),
            by=int(found["waiter"]),
            timeout_ms=int(limit[1]) if limit else None,
            broken=_BROKEN.search(line.text, found.end()) is not None,
            group=GroupTag(DEFAULT_GROUP, DEFAULT_DESCRIPTION) if name in ("", DEFAULT_DESCRIPTION) else GroupTag(name),
        )


def waiter_in(message: str) -> int | None:
    """Return the rank that an error names which asked the store for the identifier of a communicator."""
    found = _IDENTIFIER.match(message)
    key = _GROUP_KEY.search(message, found.end()) if found else None
    in_world = key is None or key["group"] == DEFAULT_DESCRIPTION
    return int(found["waiter"]) if found and in_world else None


def clients(line: Line) -> Iterator[What]:
    """Read how many of the world came to the store."""
    found = _CLIENTS.search(line.text)
    if found:
        yield World(size=int(found["size"]))
        yield Missed(
            what=INIT,
            ranks=(),
            came=int(found["came"]),
            size=int(found["size"]),
            timeout_ms=int(found["seconds"]) * 1000,
        )


def barrier(line: Line) -> Iterator[What]:
    """Read how many of the world came to the barrier that ends the making of a group."""
    found = _BARRIER.search(line.text)
    if not found:
        return
    size, count = int(found["size"]), int(found["count"])
    yield World(size=size)
    yield Missed(
        what=INIT, ranks=(), by=int(found["rank"]), came=count, size=size, gave_up=found["timed_out"] is not None
    )
    if count > size:
        yield Remark(text=f"{count} processes registered for a world of {size}: two launches share one store")


def unreached(line: Line) -> Iterator[What]:
    """Read that nobody answered where the store should be."""
    found = _UNREACHED.search(line.text)
    if found:
        where = f"{found['host']}:{found['port']}"
        yield Remark(text=f"no store answered at {where} within {found['limit']}", telling=True)


def left(line: Line) -> Iterator[What]:
    """Read that the store is no longer there, which a job that ends well may say too."""
    del line
    yield Remark(text="the store went away: the process that has it, most often rank 0, had ended before", telling=True)


def awaited(line: Line) -> Iterator[What]:
    """Read for whose address in the store a rank waited in vain while the first group was made."""
    found = _AWAITED.search(line.text)
    if found:
        rank, limit = int(found["rank"]), int(found["limit"])
        yield Missed(what=INIT, ranks=(rank,), timeout_ms=limit)
        if rank:  # the first one is awaited by all, whoever it is that does not come
            yield Remark(text=f"ranks waited {limit} ms for what rank {rank} leaves in the store")


def completed(line: Line) -> Iterator[What]:
    """Read that a rank came through the making of a group."""
    found = _COMPLETED.search(line.text)
    if found:
        yield World(size=int(found["size"]))
        yield Passed(what=INIT, by=int(found["rank"]))


FAMILIES = (
    Family(
        name="communicator-identifier",
        needles=("is setting up NCCL communicator",),
        role=Role.INITIATING,
        parse=communicator,
        ending=r"ncclUniqueId from \[\d+\]",
    ),
    Family(
        name="store-clients",
        needles=("waiting for clients",),
        role=Role.INITIATING,
        parse=clients,
        ending=r"\d+/\d+ clients joined",
    ),
    Family(
        name="store-based-barrier",
        needles=("store based barrier",),
        role=Role.INITIATING,
        parse=barrier,
        ending=r"(?:worker_count|num_workers_joined)=\d+",
    ),
    Family(
        name="store-based-barrier-completed",
        needles=("Completed store-based barrier",),
        role=Role.UNKNOWN,
        parse=completed,
    ),
    Family(
        name="store-unreached",
        needles=("client socket has timed out",),
        role=Role.CASCADE,
        parse=unreached,
        ending=r"connect to \(?[\w.:-]+?(?:, |:)\d+",
    ),
    Family(
        name="store-left",
        needles=("TCPStore server has shut down too early",),
        role=Role.TEARDOWN,
        parse=left,
    ),
    Family(
        name="store-timeout",
        needles=("wait timeout after", "Timeout waiting for key", "Socket Timeout", "waitForInput", "recvValue failed"),
        role=Role.CASCADE,
        parse=awaited,
    ),
)
