"""Calls and steps of a run as tables: what their columns mean, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import ibis

PHASES: Mapping[str, int] = {"data": 1, "forward": 2, "backward": 3, "optimizer": 4}
"""Codes of the phases that a step's record measures; 0 is whatever lies between them."""
MAIN = "MainThread"
KIND = ("group_key", "group", "op", "size_bytes", "members", "module", "device")
"""What calls of one kind have in common."""
TOKEN_FACTS = ("effective_tokens", "tokens", "num_tokens")
"""Names under which people tell ``distdiag.step`` how many tokens a rank trained on, best first."""
LENGTH_FACTS = ("lengths", "sequence_lengths")
"""Names under which they tell the lengths of its sequences."""
DURATIONS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
PROCESSOR = ("cpu_ns", "queued_ns")
"""How long the process had a processor, and how long its main thread waited for one."""
RECEIVES = ("recv", "recv_any_source", "irecv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the passes over a run start from; all moments are on the run's one clock."""

    calls: ibis.Table
    """Ended calls of the training loop: rank, call, group, seq, step, backwards, phase, kind, waited, start_ns,
    begun_ns (when somebody began to wait) and end_ns. Messages are pairs: a group of two with numbers of their own."""
    steps: ibis.Table
    """Whole steps: rank, step, start_ns, end_ns, their parts, processor times and facts as JSON text."""
    kinds: pd.DataFrame
    """By the code in ``calls``: the columns of ``KIND``."""
    first_calls: ibis.Table
    """Per rank the number of its first call that is known, and its step."""


def kinds_of(calls: pd.DataFrame) -> tuple[Any, pd.DataFrame]:
    """Return the code of each call's kind, and the kinds by code."""
    named = pd.DataFrame({name: calls[name] for name in KIND if name != "members"})
    named["module"] = named["module"].fillna("")
    codes = named.groupby(list(named.columns), observed=True, sort=True).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(codes, return_index=True)
    kinds = calls.iloc[first][list(KIND)].astype("object").reset_index(drop=True)
    return codes, kinds.assign(module=kinds["module"].fillna(""))


def first_calls(calls: ibis.Table) -> ibis.Table:
    """Return of each rank the number of its first call, and the step of that."""
    return calls.group_by("rank").agg(call=calls.call.min(), step=calls.step.argmin(calls.call))
