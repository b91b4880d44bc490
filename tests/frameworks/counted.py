"""Runs a module as ``distdiag run`` would, and leaves beside its log what torch's own flight recorder counted.

``python -m tests.frameworks.counted MODULE [ARGUMENTS]``, with ``TORCH_FR_BUFFER_SIZE`` set.
"""

import atexit
import collections
import json
import os
import runpy
import sys
from pathlib import Path

import torch
from torch._C import _distributed_c10d

import distdiag


def count() -> None:
    """Write how many calls of each kind the flight recorder holds."""
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json")  # noqa: B009 - torch's stubs do not know it
    dumped = json.loads(dump())
    names = [entry["profiling_name"].removeprefix("gloo:") for entry in dumped["entries"]]
    path = Path(os.environ["DISTDIAG_DIR"]) / f"counted{os.environ['RANK']}.json"
    path.write_text(json.dumps(collections.Counter(names)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    distdiag.install()
    atexit.register(count)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
