"""What the message of an allocator says beyond that memory ran out."""

import pytest

from distdiag.analyzers.investigation.memory import fragmentation

MESSAGE = "Tried to allocate {asked}. … {unused} is reserved by PyTorch but unallocated."


@pytest.mark.parametrize(
    ("asked", "unused", "expected"),
    [("2.00 GiB", "15.53 GiB", True), ("512.00 MiB", "1.10 GiB", True), ("18.86 GiB", "15.53 GiB", False)],
)
def test_memory_that_is_held_and_not_used_is_fragmentation_if_it_would_do(
    asked: str, unused: str, expected: bool
) -> None:
    told = fragmentation(MESSAGE.format(asked=asked, unused=unused))

    assert (told is not None) is expected
    assert told is None or (asked in told and unused in told)


def test_other_messages_tell_no_fragmentation() -> None:
    assert fragmentation("MemoryError: cannot allocate") is None
