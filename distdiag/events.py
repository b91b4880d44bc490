"""The records of a per-rank log: one schema for writing, for validated reading and for the documentation.

Every line of a log is one JSON object whose ``kind`` names one of the structs below. Times are
nanoseconds of the process's monotonic clock; the header holds the pair that maps them to wall time.
Absent is not zero: a field that was not known is left out.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

SCHEMA = "distdiag.log/1"

NUMBER_UNKNOWN = 0
"""Number of a call whose source does not tell it; c10d counts from 1."""
GROUP_UNKNOWN = "unnamed"
"""Group of a call whose source does not tell it."""
UNSIGNED = "unsigned"
"""Imported: where of an error, or an end, whose rank is not known; it stands in the log of the first rank."""
BY_HAND = "averaged by hand"
"""Name of a wrapper that there is none of: the script averages gradients itself, and members hold whole replicas."""
BESIDE = "beside a wrapper"
"""The same of parameters that an optimizer trains beside a wrapped model, or of which the script averages the most."""
HYBRID = "fully_shard, replicated"
"""Name of a wrapper whose members hold the same shard of a model, and average its gradients."""
CONSEQUENCE = "consequence"
"""Imported: where of an error whose rank is not known, and which others caused."""
TELLING = "telling"
"""Imported: where of a remark that jobs which go well do not print."""
STUCK_WATCHDOG = "WatchdogStuck"
"""Imported: type of what a watchdog says whose thread could not run."""

MAX_RANKS = 1 << 20
"""A group that speaks of more is damaged; no job has so many."""
_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

Frames = list[str]
"""User frames from the outermost to the innermost, each written ``file:line function``."""

Shape = list[int]


class Event(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False, tag_field="kind"):
    """Base of all records; ``KEPT`` kinds outlive the size cap of a log, the others may be dropped."""

    KEPT: ClassVar[bool] = False


class Header(Event, kw_only=True, tag="header"):
    """First record of every segment: who wrote it, with what, and how its clock maps to wall time."""

    KEPT: ClassVar[bool] = True
    schema: str
    run: str
    """The same on all ranks of one launch, as far as the launcher's variables tell."""
    attempt: int
    rank: int | None = None
    rank_from: str | None = None
    """The variable that told the rank; None where the default group did."""
    local_rank: int | None = None
    world_size: int | None = None
    host: str
    pid: int
    started_by: int | None = None
    """Number of the process on this host that started it by multiprocessing."""
    segment: int = 0
    source: str = "distdiag"
    """Who recorded it: ``distdiag`` itself, or what it was imported from, which may tell much less:
    ``flight-recorder``, ``stderr`` …"""
    device: str = "cpu"
    script: str | None = None
    versions: dict[str, str] = {}
    wall_ns: int
    monotonic_ns: int
    stall_after_seconds: float
    max_bytes: int
    shipped_from: str | None = None
    """Node-local directory the log was shipped from, when the log directory is on a network file system."""
    settings: dict[str, str] = {}


class Group(Event, kw_only=True, tag="group"):
    """A process group as this rank knows it."""

    KEPT: ClassVar[bool] = True
    group: str
    """Name that c10d gave it; only with the members is it the same group on two ranks."""
    description: str = ""
    ranks: Sequence[int] | str
    """Global ranks, in group order; in short, ``0-2,5``, where they are many: each member writes them."""
    partial: bool = False
    """There may be more members than ``ranks``: the source, which is none of our logs, does not tell them all."""
    backend: str
    timeout_seconds: float | None = None
    """The timeout in force; it is not inherited from the default group."""
    sequence: int = 0
    """Collectives this group had already run when recording began."""
    time_ns: int

    def members(self) -> tuple[int, ...]:
        """Return the global ranks, in group order; raise ``ValueError`` where they make no sense."""
        return unfolded(self.ranks) if isinstance(self.ranks, str) else tuple(self.ranks)


class Path(Event, kw_only=True, tag="path"):
    """An interned call site: the path of user frames that led to a call."""

    path: int
    frames: Frames


class Signature(Event, kw_only=True, tag="signature"):
    """What does not change between calls of one kind."""

    signature: int
    group: str
    op: str
    """``all_reduce``, ``all_gather_into_tensor``, ``send`` …, without namespace and underscores."""
    p2p: bool = False
    dtype: str | None = None
    shapes: list[Shape] = []
    """Shapes of the tensors that exist on every rank: the input, or the buffer of an in-place op."""
    output_shapes: list[Shape] = []
    """Shapes of the outputs where they differ from the inputs (gathers, scatters, all_to_all)."""
    size_bytes: int = 0
    """Bytes of the tensors in ``shapes``."""
    reduce_op: str | None = None
    root: int | None = None
    """Global rank of the root."""
    peer: int | None = None
    """Global rank of the other side of a send or receive; None for any source."""
    tag: int | None = None
    input_splits: list[int] = []
    output_splits: list[int] = []
    path: int
    module: str | None = None
    """FSDP unit, DDP bucket or other module that the call works for."""
    thread: str = "MainThread"
    device: str = "cpu"
    agree: int
    """32-bit digest of what has to be equal on all members; it feeds the chain hash."""


class Call(Event, kw_only=True, tag="call"):
    """A collective or point-to-point operation was issued; written before it starts."""

    call: int
    """Number of the call in this process, from 1."""
    signature: int
    seq: int
    """Number in its group as c10d counts, from 1; collectives and point-to-point apart. 0 where a foreign source
    does not tell it."""
    step: int
    forwards: int = 0
    """Root forwards begun in this step."""
    backwards: int = 0
    """Backwards begun in this step."""
    phase: str = ""
    start_ns: int
    chain: int = 0
    """Running 32-bit hash over the digests of this group's calls up to and including this one."""
    path_chain: int = 0
    """The same over the call sites, which need not agree between healthy ranks."""
    coalesced: int | None = None
    """The same number on all members of one coalesced batch."""
    contended: bool = False
    """Another thread of this process had an unfinished call in flight on this group."""
    captured: bool = False
    """Issued while a CUDA graph was being captured: it did not run."""
    handling: str | None = None
    """Type of an exception that was being handled when the call was made."""


class Done(Event, kw_only=True, tag="done"):
    """A call ended, well or not."""

    call: int
    end_ns: int
    clock: str
    """How the end is known: ``wait``, ``poll`` or ``device``."""
    wait_start_ns: int | None = None
    """When somebody began to wait for it, where that was later than the issue."""
    arrive_ns: int | None = None
    """Device time at which the rank's own work reached the collective (CUDA only)."""
    duration_ns: int | None = None
    """Device time from start to end, where the backend measured it."""
    failed: bool = False
    error: str | None = None


class Step(Event, kw_only=True, tag="step"):
    """One training step. A second record of the same step adds facts to the first."""

    KEPT: ClassVar[bool] = True
    step: int
    start_ns: int | None = None
    end_ns: int | None = None
    data_ns: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    forwards: int | None = None
    backwards: int | None = None
    calls: int | None = None
    """Number of the last call issued in this step."""
    cpu_ns: int | None = None
    """CPU time the process used since the step began."""
    queued_ns: int | None = None
    """Time since then in which the main thread was ready to run but had no processor."""
    recompute_ns: int | None = None
    """Time in which activations were computed again for the backward; None where none were, or nobody could tell."""
    facts: dict[str, Any] = {}
    """What the user said with ``distdiag.step``: tokens, samples, loss, lr, grad_norm …"""
    rollups: dict[str, dict[str, int]] = {}
    """By ``group/op``: calls, bytes, duration_ns, wait_ns, of the calls that ended in this step."""


class Phase(Event, kw_only=True, tag="phase"):
    """Begin or end of a phase; a phase without an end is where the rank is."""

    KEPT: ClassVar[bool] = True
    phase: str
    """The user's name, or ``init_process_group``, ``new_group``, ``destroy_process_group``, ``TCPStore`` (one of
    the script's own is made)."""
    edge: str
    """``begin`` or ``end``."""
    number: int
    """The same on the two edges of one phase."""
    time_ns: int
    step: int = 0
    path: int | None = None
    thread: str = "MainThread"
    index: int | None = None
    """For ``new_group``: how many groups this rank asked for before."""
    ranks: list[int] | None = None
    """For ``new_group``: the members asked for. For ``destroy_process_group``: empty where others are left."""
    timeout_seconds: float | None = None
    address: str | None = None
    """For ``init_process_group`` and ``TCPStore``: the host at which ranks meet, the path of the file, or the class of
    a store that has neither. The environment that told it may change later."""
    port: int | None = None
    as_rank: int | None = None
    """For ``init_process_group``: as which rank this process joins, whatever its launcher called it."""
    world_size: int | None = None
    """For ``init_process_group``: of how many ranks."""
    backend: str | None = None
    came: int | None = None
    """How many ranks came, where the backend says it and the end does not."""
    local: bool = False
    """For ``new_group``: made with local synchronisation, so other ranks need not ask for it."""
    failed: bool = False
    format: str | None = None
    """Of a checkpoint: ``sharded`` (torch.distributed.checkpoint), ``torch`` or ``safetensors``."""
    directory: str | None = None
    """Where the checkpoint lies: its folder, or its file."""
    bytes: int | None = None
    """What this rank wrote to the checkpoint, or read from it."""
    files: dict[str, str] = {}
    """What was saved, by file: ``size:digest``, the digest left out where it is not known."""


class Batch(Event, kw_only=True, tag="batch"):
    """A batch was asked of a data loader (begin) and came (end)."""

    batch: int
    """Batches this loader gave before, over all its epochs."""
    edge: str
    time_ns: int
    step: int = 0
    path: int | None = None
    loader: int = 0
    """Number of the loader's iterator in this process."""
    exhausted: bool = False
    samples: int | None = None
    trained: bool = False
    """In begins: a backward happened since the batch before came."""
    ids: list[int] = []
    """Sample ids in their order, as the sampler gave them; ids that are no whole numbers as 32-bit digests."""
    thinned: int = 0
    """Of large batches only the ids that ``distdiag.thinning`` keeps: about 1 of 2 to this power."""
    contents: list[int] = []
    """32-bit digests of some values of each of these samples."""
    fields: list[int] = []
    """32-bit digests of some values of the batch, one for each of its first tensors."""
    tokens: int | None = None
    """Positions that are no padding, where the batch has an attention mask."""
    positions: int | None = None
    """Positions with padding."""
    tokens_squared: int | None = None
    """Sum over the samples of the squared numbers of their tokens."""


class Loader(Event, kw_only=True, tag="loader"):
    """A data loader was asked for an iterator: an epoch begins, and with it an order of samples."""

    KEPT: ClassVar[bool] = True
    loader: int
    """Number of the iterator in this process, from 1."""
    time_ns: int
    step: int = 0
    path: int | None = None
    dataset: str = ""
    """Class of the data set."""
    length: int | None = None
    """Samples in the data set."""
    batch_size: int | None = None
    workers: int = 0
    sampler: str = ""
    """Class of the sampler."""
    shuffle: bool | None = None
    seed: int | None = None
    """Seed of a distributed sampler, which has to be the same on all its ranks."""
    epoch: int | None = None
    replicas: int | None = None
    """Into how many shares the sampler divides the data set, and which of them it takes."""
    replica: int | None = None
    base_seed: int | None = None
    """32-bit digest of the seed that workers start from."""


class Allocation(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Memory of a device that one place in the program holds."""

    size_bytes: int
    blocks: int
    frames: Frames = []
    """User frames that allocated it, outermost first; where these are not known it is all blocks of one size."""


class Memory(Event, kw_only=True, tag="memory"):
    """Memory of this process and its limits, in bytes."""

    time_ns: int
    step: int = 0
    rss_bytes: int | None = None
    shared_bytes: int | None = None
    """Part of it that files and other processes share: the kernel takes it back, or it is not of this process."""
    workers_bytes: int | None = None
    """Resident memory of the data loaders' workers, without what they share."""
    cgroup_bytes: int | None = None
    cgroup_reclaimable_bytes: int | None = None
    """Part of the control group's memory that caches files, known near the limit: the kernel takes it back."""
    cgroup_limit_bytes: int | None = None
    host_available_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_bytes: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    largest: list[Allocation] = []
    """When memory ran out: what holds most of the device's, the largest first."""
    snapshot: str | None = None
    """Name of a file beside the log that ``torch.cuda`` memory tools read."""


class Replay(Event, kw_only=True, tag="replay"):
    """A CUDA graph was replayed: the calls captured in it run again, without records of their own."""

    time_ns: int
    step: int = 0
    calls: list[int] = []
    """First and last number of the calls it contains."""


class Numerics(Event, kw_only=True, tag="numerics"):
    """Loss, gradient norm and non-finite flags of a step; checksums of parameters; only what was known."""

    KEPT: ClassVar[bool] = True
    step: int
    time_ns: int
    loss: float | str | None = None
    """Mean over the backwards of the step, of this rank alone; a word where it is not finite."""
    grad_norm: float | str | None = None
    loss_scale: float | None = None
    """What the loss scaler multiplied the losses of this step with."""
    skipped: bool = False
    """The loss scaler left the optimizer's step out."""
    nonfinite: list[str] = []
    """What was not finite: ``loss``, ``grad_norm``, or ``gradient`` for one that peers had not been added to."""
    module: str | None = None
    """The first module whose output was not finite, where modules were watched."""
    origin: str | None = None
    """What a value that was not finite came from: ``batch``, the ``input`` of the module, its ``parameters``, or
    ``inside`` where both were finite."""
    wrapper: int | None = None
    """Number of the wrapper that ``checksum`` or ``unsynchronised`` is about."""
    checksum: int | None = None
    """Over all its parameters as they were before the optimizer's step; equal replicas give equal ones."""
    digests: bytes = b""
    """Four bytes, little end first, for each of the wrapper's ``parameters``."""
    gradients: int | None = None
    """Over their gradients at that moment, where the script averages them by hand: whose are equal are replicas'."""
    unsynchronised: str | None = None
    """Why an optimizer's step used gradients of this rank alone: ``no_sync`` or ``bypassed``."""
    rng: dict[str, int] = {}
    """Seeds and 32-bit digests of the states of random number generators: ``torch.seed``, ``torch`` …"""
    optimizer: dict[str, float] = {}
    """Numbers of the optimizer's first group of parameters, ``lr`` …, and for how many parameters it holds a state."""


class Wrapper(Event, kw_only=True, tag="wrapper"):
    """A wrapper that makes a model data-parallel: who computes the same model on other samples."""

    KEPT: ClassVar[bool] = True
    wrapper: int
    """Number of the wrapper in this process, from 1; the same on its peers where they wrap in the same order."""
    name: str
    """``DistributedDataParallel`` …"""
    group: str
    """Group whose members average their gradients."""
    module: str = ""
    """Class of the model."""
    size_bytes: int = 0
    """Of its gradients, as this rank holds them."""
    time_ns: int
    step: int = 0
    parameters: list[str] = []
    """What a checksum covers: names in order, first names of blocks where they are many."""


class ThreadStack(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Stack of one thread."""

    thread: str
    frames: Frames
    """All frames, library frames too, from the outermost to the innermost."""


class Stack(Event, kw_only=True, tag="stack"):
    """Stacks of this process, taken by itself."""

    KEPT: ClassVar[bool] = True
    time_ns: int
    reason: str
    """``stall``, ``request`` or ``fault``."""
    source: str
    """``py-spy`` or ``python``."""
    threads: list[ThreadStack]
    stalled_seconds: float | None = None


class Fault(Event, kw_only=True, tag="fault"):
    """An exception, an out-of-memory error, a signal or the end of the process."""

    KEPT: ClassVar[bool] = True
    fault: str
    """``exception``, ``out-of-memory``, ``signal`` or ``exit``; in imported logs also ``warning``, and ``end`` of a
    process that nothing names."""
    time_ns: int
    step: int = 0
    type: str | None = None
    """Type of the exception, with module, or of the interruption that ended the process; name of the signal."""
    message: str | None = None
    where: str | None = None
    """Exceptions: ``uncaught``, ``thread`` or ``raised`` (seen at construction, perhaps caught later).
    Exits: ``interpreter`` (orderly), ``os._exit`` or ``uninstall``; in imported logs ``launcher``, which saw the end.
    There also ``unsigned``, ``consequence`` and ``telling``, as named above."""
    thread: str = "MainThread"
    path: int | None = None
    frames: Frames = []
    """User frames of the traceback, outermost first."""
    causes: list[str] = []
    """``type: message`` of the exceptions in the ``__context__`` chain, nearest first; of an exit, those handled."""
    origins: list[str] = []
    """Innermost user frame, ``file:line function``, of each of ``causes``; an empty text where none is known."""
    direct_causes: int = 0
    """How many of ``causes``, from the nearest on, were named as the cause: ``raise … from``."""
    code: int | None = None
    """Of an exit: what ``os._exit`` or ``sys.exit`` was given, or what a launcher saw."""


class Caught(Event, kw_only=True, tag="caught"):
    """An exception during whose handling the program logged something or asked for its traceback, and went on."""

    time_ns: int
    step: int = 0
    type: str
    message: str
    thread: str = "MainThread"
    frames: Frames = []
    """User frames of the traceback, outermost first."""


class GarbageCollection(Event, kw_only=True, tag="gc"):
    """A garbage collection that paused the process noticeably."""

    time_ns: int
    duration_ns: int
    generation: int
    step: int = 0


class Compile(Event, kw_only=True, tag="compile"):
    """A compilation of the training code."""

    time_ns: int
    duration_ns: int
    step: int = 0
    what: str | None = None


class Status(Event, kw_only=True, tag="status"):
    """What a backend says of a group by itself: how far it got; imported logs may know no more than this."""

    KEPT: ClassVar[bool] = True
    group: str
    time_ns: int
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    """Numbers of collectives as c10d counts; None or absent where nothing got so far."""


PIPELINE_SCHEDULE = "pipeline schedule"
"""Decision that recording adds: which schedule a rank runs, with how many micro-batches and stages of its own."""


class Decision(Event, kw_only=True, tag="decision"):
    """A rank-local decision of the user's code, said with ``distdiag.decision``."""

    KEPT: ClassVar[bool] = True
    name: str
    value: Any
    time_ns: int
    step: int = 0
    path: int | None = None


class Pulse(Event, kw_only=True, tag="pulse"):
    """Sign of life from a thread of its own: where the main thread is now."""

    time_ns: int
    step: int
    phase: str = ""
    path: int | None = None
    """User frames of the main thread."""
    activity: str | None = None
    """What the main thread's whole stack says it is doing: ``data-loading``, ``checkpoint`` or ``compile``."""
    held_by: str | None = None
    """What the inner end of its stack waits for: ``debugger``, ``process``, ``thread`` or ``network``."""
    waiting: list[int] = []
    """Calls that some thread of this process is waiting for."""
    calls: int = 0
    """Number of the last call issued."""
    cpu_ns: int | None = None
    """CPU time of the process so far."""
    rss_bytes: int | None = None
    stall_after_seconds: float | None = None
    """The stall limit in force for the present phase."""
    still_ns: int | None = None
    """How long the main thread has shown no progress; above the limit, outside phases of the user, it is stalled."""
    links: list[str] = []
    """TCP connections of the process, ``local>remote``; told halfway to the stall limit and at it."""
    unanswered: list[str] = []
    """Those of them whose other side does not acknowledge what was sent: the network does not reach it."""


class Dropped(Event, kw_only=True, tag="dropped"):
    """Records that are no longer, or never were, in the log."""

    KEPT: ClassVar[bool] = True
    time_ns: int
    reason: str
    """``cap`` (old detail made room) or ``no-space`` (the disk was full)."""
    records: int
    segment: int | None = None
    """Segment whose detail was dropped; its kept records stand before this one."""
    calls: list[int] = []
    """First and last number of the calls dropped."""


Record = (
    Header
    | Group
    | Path
    | Signature
    | Call
    | Done
    | Step
    | Phase
    | Batch
    | Loader
    | Memory
    | Replay
    | Numerics
    | Wrapper
    | Stack
    | Fault
    | GarbageCollection
    | Compile
    | Status
    | Decision
    | Caught
    | Pulse
    | Dropped
)

EVENTS: tuple[type[Event], ...] = Record.__args__

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(event: Event) -> bytes:
    """Return the line of a log that holds ``event``, with its newline."""
    return _encoder.encode(event) + b"\n"


def encode_text(text: str) -> str:
    """Return a JSON string, for the records that are put together from prepared pieces."""
    return _encoder.encode(text).decode()


def decode(line: bytes) -> Record:
    """Return the record that a line holds; raise ``msgspec.ValidationError`` or ``DecodeError`` otherwise."""
    return _decoder.decode(line)


def folded(ranks: Sequence[int]) -> str:
    """Return ranks in short: ``0-2,5``; the order is kept, for it is part of what a group is."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):  # as most large groups are
        return f"{ranks[0]}-{ranks[-1]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


@functools.lru_cache(maxsize=4096)
def unfolded(text: str) -> tuple[int, ...]:
    """Return the ranks that ``0-2,5`` means; equal texts give one and the same tuple."""
    runs = [_RUN.fullmatch(run) for run in text.split(",")] if text else []
    bounds = [(int(run[1]), int(run[2] or run[1])) for run in runs if run is not None]
    if len(bounds) < len(runs) or sum(max(0, last - first) + 1 for first, last in bounds) > MAX_RANKS:
        raise ValueError(f"no list of ranks: {text[:40]}")
    return tuple(rank for first, last in bounds for rank in range(first, last + 1))


def kind_of(event: type[Event]) -> str:
    """Return the ``kind`` under which a struct is written."""
    return str(event.__struct_config__.tag)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a log line."""
    return msgspec.json.schema(Record)
