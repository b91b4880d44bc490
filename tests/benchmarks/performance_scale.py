"""What the performance passes cost on long runs: ``python -m tests.benchmarks.performance_scale [RECORDS …]``.

Writes the logs of a healthy run with one slow rank, of about as many records as asked for, and goes through them whole,
in a process of its own: the passes of ``analyzers.performance`` alone, beside a bare DuckDB aggregate over the columns
that they use, read with DuckDB's own ``read_json``, in turns. Then the command line, imports
and all. Without arguments one, two and four times half a million records; 20,000,000 is the job of 1,000 ranks and
1,000 steps.

Measured on two cores, one run for each size; processor times of the bare aggregate and of the passes, and the whole
command:

    records        bare  passes            peak      whole command
    499,680      0.27 s    1.41 s (5.2x)    432 MB    3.11 s, 3.46 s of processors, 505 MB
    999,360      0.49 s    2.05 s (4.2x)    627 MB    4.06 s, 4.84 s of processors, 787 MB
    1,998,720    0.89 s    3.41 s (3.9x)    951 MB    7.41 s, 9.30 s of processors, 1244 MB
    20,000,000   9.85 s   37.02 s (3.8x)   3223 MB   27.53 s, 44.26 s of processors, 3407 MB
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import msgspec

from distdiag import events
from tests.benchmarks.hang_verdict import measured

USUAL = (500_000, 1_000_000, 2_000_000)
STEPS = 1000
TENSOR = 8
"""Ranks of a tensor-parallel group, and of a host."""
CALLS = 9
"""Of a rank in a step: four in a forward and four in a backward over tensor-parallel groups, one over data."""
RECORDS_OF_A_STEP = 2 * CALLS + 2
"""Calls, their ends, the step and a pulse."""
FORWARD_CALLS = 4
SLOW_RANK = 3
STEP_NS, CALL_NS, TRANSFER_NS, JITTER_NS, LATE_NS = 100_000_000, 8_000_000, 400_000, 200_000, 4_000_000
MOST_RANKS = 1024

BARE = """
SELECT kind, count(*), sum(call), max(signature), max(seq), max(step), sum(backwards), max(phase), sum(start_ns),
       sum(end_ns), sum(wait_start_ns), max(clock), bool_or(failed), sum(data_ns), sum(forward_ns), sum(backward_ns),
       sum(optimizer_ns), sum(cpu_ns), sum(queued_ns), max(facts)
FROM read_json({files}, format = 'newline_delimited', ignore_errors = true, columns = {{kind: 'VARCHAR', call: 'BIGINT',
       signature: 'BIGINT', seq: 'BIGINT', step: 'BIGINT', backwards: 'BIGINT', phase: 'VARCHAR', start_ns: 'BIGINT',
       end_ns: 'BIGINT', wait_start_ns: 'BIGINT', clock: 'VARCHAR', failed: 'BOOLEAN', data_ns: 'BIGINT',
       forward_ns: 'BIGINT', backward_ns: 'BIGINT', optimizer_ns: 'BIGINT', cpu_ns: 'BIGINT', queued_ns: 'BIGINT',
       facts: 'VARCHAR'}}) GROUP BY kind
"""
"""The columns of calls, ends and steps that the passes use."""

PASSES = """
import dataclasses, duckdb, resource, sys, time
from pathlib import Path
from distdiag.engine import Engine
from distdiag.analyzers.performance import measure
from distdiag.run import load
from tests.benchmarks.performance_scale import BARE
logs = Path(sys.argv[1])
run = load(logs)
run = dataclasses.replace(run, quality=dataclasses.replace(run.quality, window_bytes=1))
bare, files = duckdb.connect(), [str(file) for file in run.files]
bare.execute("SET enable_progress_bar = false")
def took(work):
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu
for _ in range(int(sys.argv[2])):
    fresh = dataclasses.replace(run, engine=Engine())
    plain = took(lambda: bare.sql(BARE.format(files=files)).fetchall())
    ours = took(lambda: measure(fresh, whole=True))
    print(*plain, *ours, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to write."""

    ranks: int
    steps: int

    @property
    def records(self) -> int:
        return self.ranks * self.steps * RECORDS_OF_A_STEP


def job_of(records: int) -> Job:
    """Return the job that writes about so many records: of 1,000 steps, unless that takes too few ranks."""
    ranks = min(MOST_RANKS, max(TENSOR, records // (STEPS * RECORDS_OF_A_STEP) // TENSOR * TENSOR))
    return Job(ranks=ranks, steps=max(1, records // (ranks * RECORDS_OF_A_STEP)))


def write(job: Job, directory: Path) -> None:
    """Write the logs of a job, the lines made by the database."""
    directory.mkdir(parents=True)
    database = duckdb.connect()
    for rank in range(job.ranks):
        path = directory / f"rank{rank:05d}.jsonl"
        lines = database.sql(_lines(job, rank)).fetchall()
        with path.open("wb") as file:
            file.write(b"".join(map(events.encode, _beginning(job, rank))))
            file.write("".join(each for (each,) in lines).encode())
            end_ns = job.steps * STEP_NS + 1_000_000_000
            file.write(events.encode(events.Fault(fault="exit", time_ns=end_ns, where="interpreter", code=0)))


def _beginning(job: Job, rank: int) -> Sequence[events.Event]:
    first = rank // TENSOR * TENSOR
    groups = {"1": list(range(first, first + TENSOR)), "2": list(range(rank % TENSOR, job.ranks, TENSOR))}
    host = f"node{rank // TENSOR}"
    return (
        events.Header(
            schema=events.SCHEMA, run="generated@host:29500", attempt=0, rank=rank, world_size=job.ranks, host=host,
            pid=1000 + rank % TENSOR, device="cpu", wall_ns=1_700_000_000_000_000_000, monotonic_ns=0,
            stall_after_seconds=60.0, max_bytes=1 << 28,
        ),
        *(events.Group(group=name, ranks=members, backend="gloo", time_ns=0) for name, members in groups.items()),
        events.Path(path=1, frames=["train.py:20 main"]),
        *(
            events.Signature(
                signature=number, group=name, op="all_reduce", dtype="float32", shapes=[[1 << 20]],
                size_bytes=4 << 20, path=1, agree=1,
            )
            for number, name in enumerate(groups, start=1)
        ),
    )  # fmt: skip


def _lines(job: Job, rank: int) -> str:
    """Return a query for the records of a rank, a line each, in their order.

    A call begins at its time of the step, a little later on every rank by turns, and much later on the slow one; it
    ends everywhere when the last rank has come.
    """
    late = LATE_NS if rank == SLOW_RANK else 0
    return f"""
    WITH steps AS (SELECT range AS step, 1000000000 + range * {STEP_NS} AS begun FROM range({job.steps})),
    calls AS (
        SELECT *, step * {CALLS} + k + 1 AS call, k = {CALLS - 1} AS world,
            begun + (k + 1) * {CALL_NS} + hash(step, k, {rank}) % {JITTER_NS} + {late} AS start_ns,
            begun + (k + 1) * {CALL_NS} + {JITTER_NS + LATE_NS + TRANSFER_NS} AS end_ns
        FROM steps, (SELECT range AS k FROM range({CALLS}))
    )
    SELECT line FROM (
        SELECT step, k * 2 AS place, concat('{{"kind":"call","call":', call, ',"signature":', if(world, 2, 1),
            ',"seq":', if(world, step + 1, step * {CALLS - 1} + k + 1), ',"step":', step, ',"forwards":1,',
            if(k >= {FORWARD_CALLS}, '"backwards":1,"phase":"backward"', '"phase":"forward"'), ',"start_ns":', start_ns,
            ',"chain":', hash(call) % 4294967296, ',"path_chain":1}}\n') AS line FROM calls
        UNION ALL SELECT step, k * 2 + 1, concat('{{"kind":"done","call":', call, ',"end_ns":', end_ns,
            ',"clock":"wait","wait_start_ns":', start_ns + 1000, '}}\n') FROM calls
        UNION ALL SELECT step, 98, concat('{{"kind":"step","step":', step, ',"start_ns":', begun, ',"end_ns":',
            begun + {STEP_NS}, ',"data_ns":1000000,"forward_ns":', {(FORWARD_CALLS + 1) * CALL_NS},
            ',"backward_ns":', {(CALLS - FORWARD_CALLS) * CALL_NS + 2 * LATE_NS}, ',"optimizer_ns":2000000,"calls":',
            (step + 1) * {CALLS}, ',"facts":{{"loss":', 2.0 + 1.0 / (step + 1), ',"tokens":4096}},',
            '"rollups":{{"1/all_reduce":{{"calls":8,"bytes":33554432,"duration_ns":', 8 * {LATE_NS},
            '}},"2/all_reduce":{{"calls":1,"bytes":4194304,"duration_ns":{LATE_NS}}}}}}}\n') FROM steps
        UNION ALL SELECT step, 99, concat('{{"kind":"pulse","time_ns":', begun + {STEP_NS}, ',"step":', step, '}}\n')
            FROM steps
    ) ORDER BY step, place
    """


def main() -> None:
    """Print a table of what each size took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", type=int, default=USUAL, help=f"default: {USUAL}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="directory for the generated runs")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="distdiag-benchmark-"))
    sys.stdout.write(
        f"{'records':>10} {'ranks x steps':>14} {'size':>8} | {'bare':>7} {'cpu':>7} | {'passes':>7} {'cpu':>7} "
        f"{'peak':>8} {'ratio':>6} {'of cpu':>6} {'us/record':>9} | {'command':>8} {'cpu':>7} {'peak':>8}\n"
    )
    try:
        for records in options.records:
            _report(job_of(records), root, options.runs)
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)


def _report(job: Job, root: Path, runs: int) -> None:
    logs = root / str(job.records)
    if not logs.exists():
        write(job, logs)
    size = sum(file.stat().st_size for file in logs.iterdir())
    passes = subprocess.run(
        [sys.executable, "-c", PASSES, str(logs), str(runs)], check=True, capture_output=True, text=True
    )
    rows = [tuple(map(float, line.split())) for line in passes.stdout.splitlines()]
    bare, bare_cpu, ours, cpu, peak = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[2] / row[0] for row in rows)
    ratio_cpu = statistics.median(row[3] / row[1] for row in rows)
    out = root / f"{job.records}.json"
    whole = measured([sys.executable, "-m", "distdiag", "analyze", str(logs), "--format", "json", "--output", str(out)])
    slowest = msgspec.json.decode(out.read_bytes())["performance"]["slowest"]
    sys.stdout.write(
        f"{job.records:10,} {f'{job.ranks} x {job.steps}':>14} {size >> 20:5} MB | {bare:6.2f}s {bare_cpu:6.2f}s | "
        f"{ours:6.2f}s {cpu:6.2f}s {peak:5.0f} MB {ratio:5.1f}x {ratio_cpu:5.1f}x {ours / job.records * 1e6:9.2f} | "
        f"{whole.seconds:7.2f}s {whole.cpu_seconds:6.2f}s {whole.megabytes:5.0f} MB"
        f"{'' if slowest and slowest['rank'] == SLOW_RANK else f' WRONG: slowest is {slowest}'}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    main()
