"""What a device did, counted nanosecond by nanosecond, against what the sorted passes say."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag.importers._traces.device import SHORT_GAP_NS, timelines
from distdiag.importers._traces.trace import COMMUNICATION, COMPUTE, MEMORY, Trace, read_trace
from tests.traces import ALL_REDUCE, COPY
from tests.traces import Trace as Written

CUT_NS = 60
KINDS = {COMPUTE: ("gemm", "kernel"), COMMUNICATION: (ALL_REDUCE, "kernel"), MEMORY: (COPY, "gpu_memcpy")}

times = st.integers(0, 100)
activities = st.lists(
    st.tuples(
        times,
        st.integers(0, 40),
        st.sampled_from(sorted(KINDS)),
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(0, 100)),
    ),
    min_size=1,
    max_size=12,
)
"""Start, duration, kind, stream and launch, in nanoseconds."""


def read(rows: list[tuple[int, int, int, int, int | None]], *, steps: bool) -> Trace:
    written = Written()
    if steps:
        written.step(1, at=0).step(2, at=CUT_NS / 1000)
    for start, duration, kind, stream, launch in rows:
        name, cat = KINDS[kind]
        launched = None if launch is None else launch / 1000
        written.kernel(name, at=start / 1000, lasts=duration / 1000, launched=launched, stream=stream, cat=cat)
    with tempfile.TemporaryDirectory() as directory:
        return read_trace(written.write(Path(directory)))


@settings(max_examples=300, deadline=None)
@given(rows=activities, steps=st.booleans())
def test_every_nanosecond_is_counted_where_it_belongs(
    rows: list[tuple[int, int, int, int, int | None]], steps: bool
) -> None:
    any_launch = any(launch is not None for *_, launch in rows)
    kept = [
        (start, start + duration)
        for start, duration, _, _, launch in rows
        if not steps or (launch is not None and launch < CUT_NS if any_launch else start < CUT_NS)
    ]

    found = list(timelines(read(rows, steps=steps)))

    if not kept:
        assert not found
        return
    (timeline,) = found
    first, last = min(start for start, _ in kept), max(end for _, end in kept)
    window = range(first, last)
    running = {kind: set[int]() for kind in KINDS}
    for start, duration, kind, _, _ in rows:
        running[kind].update(moment for moment in range(start, start + duration) if moment in window)
    busy = set.union(*running.values())
    assert timeline.activities == len(kept)
    assert (timeline.window_ns, timeline.idle_ns) == (len(window), len(window) - len(busy))
    assert timeline.compute_ns == len(running[COMPUTE])
    assert timeline.communication_ns == len(running[COMMUNICATION])
    assert timeline.exposed_ns == len(running[COMMUNICATION] - running[COMPUTE])
    assert timeline.memory_ns == len(running[MEMORY])
    assert timeline.window_ns - timeline.compute_ns - timeline.idle_ns == len(busy - running[COMPUTE])
    idle = timeline.idle
    assert idle.host_wait_ns + idle.kernel_wait_ns + idle.other_wait_ns == timeline.idle_ns
    assert idle.other_wait_ns == 0, f"no gap is as long as {SHORT_GAP_NS} ns"
    for stream in timeline.streams:
        here = set[int]()
        for start, duration, _, number, _ in rows:
            if number == stream.stream:
                here.update(moment for moment in range(start, start + duration) if moment in window)
        assert stream.busy_ns == len(here)
