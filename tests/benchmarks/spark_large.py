"""Logs larger than memory on Spark: ``python -m tests.benchmarks.spark_large [--gigabytes 5] [--heap 2g]``.

Writes a run of so many bytes of logs, with one slow rank, and analyses it with ``--engine spark`` in a process of its
own: what it took, and the peak memory of the driver, which is Python and its Java machine. On one machine that one is
the executor, too, so the heap that is given bounds both; a cluster's driver has less to do.
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
from pathlib import Path

import psutil

from tests.benchmarks.performance_scale import RECORDS_OF_A_STEP, STEPS, Job, write

BYTES_PER_RECORD = 133
"""Of the logs that are written; the rest of a job's size is rounding."""
POLL_SECONDS = 0.2
GIGABYTE = 1e9


def main() -> None:
    """Write, analyse and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--heap", default="2g", help="of the Java machine")
    parser.add_argument("--keep", type=Path, help="where the logs are, or will be")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="distdiag-spark-"))
    logs = directory / "logs"
    try:
        if not logs.exists():
            write(_job(options.gigabytes), logs)
        sys.stdout.write(_analysed(logs, directory, options.heap))
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _job(gigabytes: float) -> Job:
    ranks = 8 * max(1, round(gigabytes * GIGABYTE / (BYTES_PER_RECORD * RECORDS_OF_A_STEP * STEPS * 8)))
    return Job(ranks=ranks, steps=STEPS)


def _analysed(logs: Path, directory: Path, heap: str) -> str:
    """Return what the analysis took, in words."""
    command = [sys.executable, "-m", "distdiag", "analyze", str(logs), "--engine", "spark", "--format", "json"]
    scratch = directory / "scratch"
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory {heap} pyspark-shell",
        "SPARK_LOCAL_DIRS": str(scratch),
    }
    begun = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        peaks: dict[str, int] = {}
        watching = threading.Thread(target=_watch, args=(process.pid, peaks))
        watching.start()
        text = process.communicate()[0]
        watching.join()
    took = time.monotonic() - begun
    size = sum(file.stat().st_size for file in logs.iterdir())
    verdict = json.loads(text)["verdict"] if process.returncode < 2 else {"name": "none", "culprits": []}
    return (
        f"{size / GIGABYTE:.2f} GB of logs: {took:.0f} s, verdict {verdict['name']} of {verdict['culprits']}\n"
        f"peak memory of the driver: Python {peaks.get('python', 0) / GIGABYTE:.2f} GB, "
        f"Java {peaks.get('java', 0) / GIGABYTE:.2f} GB with a heap of {heap}\n"
    )


def _watch(pid: int, peaks: dict[str, int]) -> None:
    """Note the most that the process and its Java machine hold, until it ends."""
    process = psutil.Process(pid)
    while True:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            for each in (process, *process.children(recursive=True)):
                name = "java" if "java" in each.name() else "python"
                peaks[name] = max(peaks.get(name, 0), each.memory_info().rss)
        except psutil.NoSuchProcess:
            if not psutil.pid_exists(pid):
                return
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
