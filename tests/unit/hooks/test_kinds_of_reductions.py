"""Of which reductions a recorder reads the kind: those that an analysis takes for read, and not many more."""

from typing import Any

import pytest
import torch.distributed as dist

import distdiag
from distdiag.hooks import _operators
from distdiag.hooks.collectives import PROVEN_STEPS
from distdiag.thinning import READ_AT_FIRST, READ_EACH
from tests.recordings import Recording, floats


def test_kinds_are_read_of_the_calls_that_an_analysis_takes_for_read(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, ask, read = recorded.recorder, _operators.kind_of_reduction, list[int]()

    def asked(boxed: Any) -> str | None:
        read.append(recorder.calls + 1)
        return ask(boxed)

    monkeypatch.setattr(_operators, "kind_of_reduction", asked)

    for number in range(2 * READ_EACH + 1):
        dist.all_reduce(floats(2))
        if number < PROVEN_STEPS:
            distdiag.step()

    assert read == [*range(1, READ_AT_FIRST + 1), READ_EACH + 1, 2 * READ_EACH + 1]
