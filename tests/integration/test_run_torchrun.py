"""``torchrun … -m distdiag run``: recording without a change to the script, below the launcher of torch."""

import os
import subprocess
import sys
from pathlib import Path

from distdiag import events

CAP_SECONDS = 240

TRAIN = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
sys.stdout.write(f"trained with {sys.argv[1:]}\\n")
"""


def records_of(log: Path) -> list[events.Event]:
    return [events.decode(line) for line in log.read_bytes().rstrip(b"\0").splitlines()]


def test_every_rank_of_torchrun_writes_its_log(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    logs = tmp_path / "logs"

    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "distdiag", "run", "--dir", str(logs), str(script), "--lr", "3"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained with ['--lr', '3']") == 2
    for rank in range(2):
        records = records_of(logs / f"rank{rank:05}.jsonl")
        header, sites = records[0], [each for each in records if isinstance(each, events.Path)]
        assert isinstance(header, events.Header)
        assert header.rank == rank
        assert sum(isinstance(each, events.Call) for each in records) == 4
        assert any(f"{script}:8 <module>" in each.frames[-1] for each in sites)
