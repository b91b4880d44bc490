"""Flight-recorder dumps made by hand, entry by entry.

dumps = Dumps(world_size=2)
for rank in dumps.ranks:
    dumps.add(rank, "all_reduce", [[4, 4]], [[4, 4]])
report = dumps.diagnosed(tmp_path)
"""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distdiag.analyzers import diagnose
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Incident
from distdiag.findings import Report
from distdiag.importers import load

Sizes = Sequence[Sequence[int]]
DEFAULT_GROUP = ("0", "default_pg")
START_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
OPEN_STATES = ("scheduled", "started")


class Dumps:
    """The dumps of one job."""

    def __init__(self, world_size: int = 2, *, backend: str = "nccl", version: Any = "2.10") -> None:
        self.ranks = range(world_size)
        self.backend = backend
        self.versions: dict[int, Any] = dict.fromkeys(self.ranks, version)
        self.configs: dict[int, dict[str, dict[str, Any]]] = {rank: {} for rank in self.ranks}
        self.progress: dict[int, dict[str, dict[str, Any]]] = {rank: {} for rank in self.ranks}
        self.entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        self._seqs: dict[tuple[int, str, bool], int] = {}
        self.group("0", self.ranks, "default_pg")

    def group(self, name: str, members: Sequence[int], description: str, *, on: Sequence[int] | None = None) -> None:
        """Make a group; ``on`` names the ranks that know it so, else its members do."""
        for rank in members if on is None else on:
            self.configs[rank][name] = {"name": name, "desc": description, "ranks": str(list(members))}

    def add(
        self,
        rank: int,
        op: str,
        inputs: Sizes = ((4, 4),),
        outputs: Sizes | None = None,
        *,
        state: str = "completed",
        group: tuple[str, str] = DEFAULT_GROUP,
        same_seq: bool = False,
        dtype: str | Sequence[str] = "Float",
        output_dtype: str | Sequence[str] | None = None,
        at_ns: int | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Append an entry; ``same_seq`` gives it the number of the one before, as members of a batch have."""
        p2p = fields.pop("is_p2p", op.startswith(("send", "recv")))
        key = rank, group[0], p2p
        if not same_seq:
            self._seqs[key] = self._seqs.get(key, 0) + 1
        outputs = inputs if outputs is None else outputs
        created = START_NS + len(self.entries[rank]) * STEP_NS if at_ns is None else at_ns
        entry = {
            "record_id": len(self.entries[rank]),
            "pg_id": list(self.configs[rank]).index(group[0]) if group[0] in self.configs[rank] else 0,
            "process_group": group,
            "collective_seq_id": self._seqs.get((rank, group[0], False), 0),
            "p2p_seq_id": self._seqs.get((rank, group[0], True), 0),
            "op_id": len(self.entries[rank]) + 1,
            "profiling_name": f"{self.backend}:{op}",
            "time_created_ns": created,
            "input_sizes": [list(size) for size in inputs],
            "input_dtypes": _dtypes(dtype, inputs),
            "output_sizes": [list(size) for size in outputs],
            "output_dtypes": _dtypes(dtype if output_dtype is None else output_dtype, outputs),
            "state": state,
            "time_discovered_started_ns": None if state == "scheduled" else created + STEP_NS // 4,
            "time_discovered_completed_ns": created + STEP_NS // 2 if state == "completed" else None,
            "retired": state == "completed",
            "timeout_ms": 600_000,
            "is_p2p": p2p,
            "frames": [],
        }
        self.entries[rank].append(entry | fields)
        return self.entries[rank][-1]

    def everywhere(self, op: str, inputs: Sizes = ((4, 4),), outputs: Sizes | None = None, **options: Any) -> None:
        """Append the same entry on all ranks."""
        for rank in self.ranks:
            self.add(rank, op, inputs, outputs, **options)

    def content(self, rank: int) -> Any:
        """Return what the dump of a rank holds."""
        return {
            "version": self.versions[rank],
            "comm_lib_version": "2.27.3",
            "pg_config": self.configs[rank],
            "pg_status": self.progress[rank],
            "entries": self.entries[rank],
        }

    def write(self, directory: Path, *, as_json: bool = False, without: Sequence[int] = ()) -> Path:
        """Write one file for each rank, and return the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            if rank in without:
                continue
            content = self.content(rank)
            name = f"nccl_trace_rank_{rank}" + (".json" if as_json else "")
            data = json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2)
            (directory / name).write_bytes(data)
        return directory

    def diagnosed(self, directory: Path, *, as_json: bool = False, without: Sequence[int] = ()) -> Report:
        """Return what analysis says of the dumps."""
        return diagnose(load(self.write(directory, as_json=as_json, without=without)))

    def found(self, directory: Path, *, as_json: bool = False) -> Incident | None:
        """Return what an investigation of the dumps finds to be the root, without the tables of a report."""
        incidents = investigate(load(self.write(directory, as_json=as_json))).incidents
        return incidents[0] if incidents else None


def _dtypes(given: str | Sequence[str], sizes: Sizes) -> list[str]:
    return [given] * len(sizes) if isinstance(given, str) else list(given)
