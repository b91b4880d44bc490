"""Logs larger than memory on Spark: ``python -m tests.benchmarks.spark_large [--gigabytes 5] [--heap 2g]``.

Writes a run of so many bytes of logs, with one slow rank, and analyses it with ``--engine spark`` in a process of its
own: what it took, and the peak memory of the driver, which is Python and its Java machine. On one machine that one is
the executor, too, so the heap that is given bounds both; a cluster's driver has less to do. Then the same on the
embedded engine, unless ``--spark-alone`` is said, and whether the two reports are the same.

Measured once on two cores that others used, too: 5.07 GB of logs, a heap of 2 GB.

    spark     373 s, 468 s of processors, peak memory java 2.78 GB, python 1.74 GB
    duckdb    114 s,  93 s of processors, peak memory python 4.27 GB; the reports are the same
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.benchmarks.performance_scale import RECORDS_OF_A_STEP, STEPS, Job, write

BYTES_PER_RECORD = 133
"""Of the logs that are written; the rest of a job's size is rounding."""
POLL_SECONDS = 0.2
GIGABYTE = 1e9
ENGINES = ("spark", "duckdb")


@dataclass(slots=True)
class Usage:
    """What a process and its Java machine used, by ``python`` and ``java``."""

    peak_bytes: dict[str, int] = field(default_factory=dict)
    processor_seconds: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Write, analyse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--heap", default="2g", help="of the Java machine")
    parser.add_argument("--keep", type=Path, help="where the logs are, or will be")
    parser.add_argument("--spark-alone", action="store_true", help="not on the embedded engine, too")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="distdiag-spark-"))
    logs = directory / "logs"
    try:
        if not logs.exists():
            write(_job(options.gigabytes), logs)
        size = sum(file.stat().st_size for file in logs.iterdir())
        sys.stdout.write(f"{size / GIGABYTE:.2f} GB of logs, a heap of {options.heap}\n")
        engines = ENGINES[:1] if options.spark_alone else ENGINES
        reports = [_analysed(logs, directory, options.heap, engine) for engine in engines]
        if len(reports) > 1:
            sys.stdout.write(f"the reports are {'the same' if len(set(reports)) == 1 else 'DIFFERENT'}\n")
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _job(gigabytes: float) -> Job:
    ranks = 8 * max(1, round(gigabytes * GIGABYTE / (BYTES_PER_RECORD * RECORDS_OF_A_STEP * STEPS * 8)))
    return Job(ranks=ranks, steps=STEPS)


def _analysed(logs: Path, directory: Path, heap: str, engine: str) -> bytes:
    """Return the report, and print what it took."""
    command = [sys.executable, "-m", "distdiag", "analyze", str(logs), "--engine", engine, "--format", "json"]
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory {heap} pyspark-shell",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }
    begun, usage = time.monotonic(), Usage()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        watching = threading.Thread(target=_watch, args=(process.pid, usage))
        watching.start()
        text = process.communicate()[0]
        watching.join()
    took = time.monotonic() - begun
    verdict = json.loads(text)["verdict"] if process.returncode in (0, 1) else {"name": "none", "culprits": []}
    sys.stdout.write(
        f"{engine}: {took:.0f} s, {sum(usage.processor_seconds.values()):.0f} s of processors, "
        f"verdict {verdict['name']} of {verdict['culprits']}, peak memory "
        f"{', '.join(f'{name} {size / GIGABYTE:.2f} GB' for name, size in sorted(usage.peak_bytes.items()))}\n"
    )
    sys.stdout.flush()
    return text


def _watch(pid: int, usage: Usage) -> None:
    """Note the most that the process and its Java machine hold, and what they compute, until it ends."""
    process = psutil.Process(pid)
    while True:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            for each in (process, *process.children(recursive=True)):
                name = "java" if "java" in each.name() else "python"
                usage.peak_bytes[name] = max(usage.peak_bytes.get(name, 0), each.memory_info().rss)
                if each == process or name == "java":
                    times = each.cpu_times()
                    usage.processor_seconds[name] = times.user + times.system
        except psutil.NoSuchProcess:
            if not psutil.pid_exists(pid):
                return
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
