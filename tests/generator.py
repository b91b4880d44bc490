"""Synthetic training jobs of any parallel shape, with a fault of choice, as far as they came before they stopped.

    job = Job(shape=Shape(tensor=2, pipeline=2, data=4, expert=4), steps=5, fault=Fault(kind="host", rank=3, step=3))
    run = simulate(job)

Each rank has a program: the operations of its steps, in order. Hosts issue them, at most ``run_ahead`` in front of
their devices; a device ends an operation when the devices of all its members are at it. What remains when nothing
moves any more is what a log or a dump of that moment would hold.
"""

import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

WORLD = "0"
Members = tuple[int, ...]

COMM_SITES = {
    "all_gather_into_tensor": "model/layers.py:41 gather_sequence",
    "all_to_all": "model/experts.py:88 dispatch",
    "reduce_scatter_tensor": "model/layers.py:57 scatter_sequence",
    "send": "pipeline/schedule.py:120 send_forward",
    "recv": "pipeline/schedule.py:101 recv_forward",
    "all_reduce": "train/optimizer.py:33 reduce_gradients",
}
OTHER_SITE = "train/metrics.py:12 log_rank_local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the ranks are divided; experts are spread over the ranks of one pipeline stage."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data

    def groups(self) -> Iterator["Group"]:
        """Yield the groups in the order in which every rank makes them."""
        yield Group(name=WORLD, description="default_pg", members=tuple(range(self.world_size)))
        names = map(str, itertools.count(1))
        stage = self.tensor * self.data
        for pp, dp in itertools.product(range(self.pipeline), range(self.data)):
            first = pp * stage + dp * self.tensor
            yield Group(name=next(names), description="tensor", members=tuple(range(first, first + self.tensor)))
        for place in range(stage):
            members = tuple(pp * stage + place for pp in range(self.pipeline))
            yield Group(name=next(names), description="pipeline", members=members)
        for pp, tp in itertools.product(range(self.pipeline), range(self.tensor)):
            members = tuple(pp * stage + dp * self.tensor + tp for dp in range(self.data))
            yield Group(name=next(names), description="data", members=members)
        for first in range(0, self.world_size, self.expert):
            yield Group(name=next(names), description="expert", members=tuple(range(first, first + self.expert)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    name: str
    description: str
    members: Members


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank's program."""

    op: str
    group: Group
    step: int
    numel: int = 4096
    dtype: str = "bfloat16"
    peer: int | None = None
    phase: str = "forward"
    site: str = ""

    @property
    def p2p(self) -> bool:
        return self.peer is not None

    @property
    def signature(self) -> tuple[str, int, str]:
        return self.op, self.numel, self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, and where: at an operation of a kind of group in a step of one rank.

    ``host``: the rank never issues it. ``device``: its device never ends it, while those of its peers go on for
    ``lag`` more. ``transport``: all come and it does not end. ``extra``, ``left-out``, ``op``, ``shape``, ``dtype``:
    the rank's program differs there.
    """

    kind: str
    rank: int
    step: int
    group: str = "tensor"
    """Description of the group."""
    also: Members = ()
    """Ranks of which the same is true."""
    lag: int = 5

    @property
    def ranks(self) -> Members:
        return tuple(sorted({self.rank, *self.also}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    shape: Shape
    steps: int = 3
    layers: int = 2
    fault: Fault | None = None
    run_ahead: int = 8
    """How many operations a host may be in front of its device."""
    skew_ns: int = 0
    """Clocks of hosts differ by up to so much."""
    ranks_per_host: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Every rank's program, and how far its host and its device came in it."""

    job: Job
    groups: tuple[Group, ...]
    programs: tuple[tuple[Operation, ...], ...]
    issued: tuple[int, ...]
    completed: tuple[int, ...]
    skews_ns: tuple[int, ...]
    """By rank."""
    groups_of: Mapping[int, tuple[Group, ...]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return all(done == len(program) for done, program in zip(self.completed, self.programs, strict=True))


def simulate(job: Job) -> Simulated:
    """Run a job until nothing moves any more."""
    groups = tuple(group for group in job.shape.groups() if len(group.members) > 1 or group.name == WORLD)
    by_rank: dict[int, list[Group]] = {rank: [] for rank in range(job.shape.world_size)}
    for group in groups:
        for rank in group.members:
            by_rank[rank].append(group)
    programs = tuple(_with_fault(job, rank, _program(job, rank, by_rank[rank])) for rank in by_rank)
    completed, limits = _Machine(job, programs).run()
    randomly = random.Random(job.seed)
    hosts = -(-job.shape.world_size // job.ranks_per_host)
    skews = [randomly.randint(-job.skew_ns, job.skew_ns) if job.skew_ns else 0 for _ in range(hosts)]
    return Simulated(
        job=job,
        groups=groups,
        programs=programs,
        issued=tuple(
            min(limit, done + job.run_ahead, len(program))
            for limit, done, program in zip(limits, completed, programs, strict=True)
        ),
        completed=_as_reported(job, programs, completed),
        skews_ns=tuple(skews[rank // job.ranks_per_host] for rank in by_rank),
        groups_of={rank: tuple(mine) for rank, mine in by_rank.items()},
    )


# ---- programs -----------------------------------------------------------------------------------------------------
def _program(job: Job, rank: int, groups: list[Group]) -> list[Operation]:
    return [op for step in range(job.steps) for op in _step(job, step, rank, {g.description: g for g in groups})]


def _step(job: Job, step: int, rank: int, groups: Mapping[str, Group]) -> Iterator[Operation]:
    pipeline = groups.get("pipeline")
    stage = pipeline.members.index(rank) if pipeline else 0
    stages = pipeline.members if pipeline else (rank,)
    last = stage == len(stages) - 1

    def message(op: str, peer: int, phase: str) -> Operation:
        assert pipeline is not None
        return Operation(op=op, group=pipeline, step=step, peer=peer, phase=phase, site=COMM_SITES[op])

    if stage:
        yield message("recv", stages[stage - 1], "forward")
    yield from _layers(job, step, groups, "forward")
    if not last:
        yield message("send", stages[stage + 1], "forward")
        yield message("recv", stages[stage + 1], "backward")
    yield from _layers(job, step, groups, "backward")
    if stage:
        yield message("send", stages[stage - 1], "backward")
    for name in ("data", "default_pg"):
        if name in groups:
            yield _collective("all_reduce", groups[name], step, "backward", numel=1 << 20 if name == "data" else 1)


def _layers(job: Job, step: int, groups: Mapping[str, Group], phase: str) -> Iterator[Operation]:
    for _ in range(job.layers):
        if "tensor" in groups:
            yield _collective("all_gather_into_tensor", groups["tensor"], step, phase)
        if "expert" in groups:
            yield _collective("all_to_all", groups["expert"], step, phase)
            yield _collective("all_to_all", groups["expert"], step, phase)
        if "tensor" in groups:
            yield _collective("reduce_scatter_tensor", groups["tensor"], step, phase)


def _collective(op: str, group: Group, step: int, phase: str, numel: int = 4096) -> Operation:
    return Operation(op=op, group=group, step=step, numel=numel, phase=phase, site=COMM_SITES[op])


def _place(fault: Fault, program: list[Operation]) -> int:
    """Return where in a program the fault is."""
    return next(
        n
        for n, op in enumerate(program)
        if op.step == fault.step and not op.p2p and op.group.description == fault.group
    )


def _with_fault(job: Job, rank: int, program: list[Operation]) -> tuple[Operation, ...]:
    fault = job.fault
    if fault is None or rank not in fault.ranks or fault.kind in ("host", "device", "transport"):
        return tuple(program)
    place = _place(fault, program)
    changed = program[place]
    if fault.kind == "extra":
        program.insert(place, replace(changed, site=OTHER_SITE))
    elif fault.kind == "left-out":
        del program[place]
    elif fault.kind == "op":
        program[place] = replace(changed, op="broadcast", site=OTHER_SITE)
    elif fault.kind == "shape":
        program[place] = replace(changed, numel=changed.numel + 7)
    elif fault.kind == "dtype":
        program[place] = replace(changed, dtype="float32")
    return tuple(program)


# ---- running them -------------------------------------------------------------------------------------------------
class _Machine:
    """All devices; each is at one operation, and goes on when those of all members are there."""

    def __init__(self, job: Job, programs: tuple[tuple[Operation, ...], ...]) -> None:
        self._programs = programs
        self._at = [0] * len(programs)
        self._limits = [len(program) for program in programs]
        self._counts: list[dict[object, int]] = [{} for _ in programs]
        self._arrived: dict[object, list[int]] = {}
        fault = job.fault
        self._never: object = None
        if fault is not None and fault.kind in ("host", "device"):
            for rank in fault.ranks:
                lag = fault.lag if fault.kind == "device" else 0
                self._limits[rank] = min(_place(fault, list(programs[rank])) + lag, len(programs[rank]))
        self._stops = list(self._limits)
        if fault is not None and fault.kind == "transport":
            place = _place(fault, list(programs[fault.rank]))
            group = programs[fault.rank][place].group.name
            before = sum(op.group.name == group and not op.p2p for op in programs[fault.rank][:place])
            self._never = (group, before)
        if fault is not None and fault.kind == "device":
            # Its host goes on: only the device ends there.
            self._limits = [len(program) for program in programs]

    def run(self) -> tuple[list[int], list[int]]:
        """Return how many operations each device completed, and how many each host may have issued."""
        moving = deque(range(len(self._programs)))
        while moving:
            moving.extend(self._arrive(moving.popleft()))
        return self._at, self._limits

    def _arrive(self, rank: int) -> list[int]:
        """Bring a device to its next operation; return the ranks that move on."""
        place = self._at[rank]
        if place >= self._stops[rank]:
            return []
        op = self._programs[rank][place]
        key, needed = self._key(rank, op)
        if key == self._never:
            return []
        arrived = self._arrived.setdefault(key, [])
        arrived.append(rank)
        if len(arrived) < needed or not self._agree(arrived):
            return []
        del self._arrived[key]
        for each in arrived:
            self._at[each] += 1
        return arrived

    def _key(self, rank: int, op: Operation) -> tuple[object, int]:
        if op.peer is None:
            counter: object = op.group.name
        else:
            counter = (op.group.name, *((rank, op.peer) if op.op == "send" else (op.peer, rank)))
        number = self._counts[rank].get(counter, 0)
        self._counts[rank][counter] = number + 1
        return (counter, number), 2 if op.p2p else len(op.group.members)

    def _agree(self, ranks: list[int]) -> bool:
        ops = [self._programs[rank][self._at[rank]] for rank in ranks]
        return ops[0].p2p or len({op.signature for op in ops}) == 1


def _as_reported(job: Job, programs: tuple[tuple[Operation, ...], ...], completed: list[int]) -> tuple[int, ...]:
    """Return what each rank's host says its device completed: one that stopped says nothing any more."""
    if job.fault is None or job.fault.kind != "device":
        return tuple(completed)
    reported = list(completed)
    for rank in job.fault.ranks:
        reported[rank] = min(completed[rank], _place(job.fault, list(programs[rank])))
    return tuple(reported)
