"""Pickles that nobody vouches for: plain values are read, nothing is run, and memory stays bounded."""

import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdiag.importers._pickles import RefusedError, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)
MEMORY_BYTES = 1 << 30


class Bomb:
    def __init__(self, file: Path) -> None:
        self._command = f"touch {file}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


@given(value=PLAIN, protocol=st.integers(0, 5))
def test_plain_values_are_read_as_they_were_written(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    file = tmp_path / "run"
    data = pickle.dumps({"version": "2.10", "entries": [Bomb(file)]}, protocol)

    with pytest.raises(RefusedError):
        read_pickle(data)

    assert not file.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02c__builtin__\neval\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"(ios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pname\n.",
        b"\x80\x05\x97.",
        b"\x80\x02}(U\x01aK\x01ub.",
    ],
)
def test_instructions_that_name_or_call_anything_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        read_pickle(data)


GREEDY = {
    "a memo of four billion places": b"\x80\x04]r\xff\xff\xff\xff.",
    "a text of an exbibyte": b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"a.",
    "bytes of an exbibyte": b"\x80\x05\x96" + (2**60).to_bytes(8, "little") + b"a.",
    "a frame of an exbibyte": b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"].",
    "an integer of two gibibytes": b"\x80\x04\x8b\xff\xff\xff\x7f1.",
    "thirty million lists": b"\x80\x04" + b"]" * 30_000_000 + b".",
    "lists in lists in lists": b"\x80\x04" + b"](" * 3_000_000 + b".",
    "tuples in tuples": b"\x80\x04]" + b"\x85" * 3_900_000 + b".",
}


@pytest.mark.parametrize("data", GREEDY.values(), ids=[name.replace(" ", "-") for name in GREEDY])
def test_a_pickle_cannot_ask_for_more_memory_than_a_dump_needs(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "greedy"
    file.write_bytes(data)
    program = (
        "import resource, sys; from pathlib import Path; from distdiag.importers._pickles import *\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))\n"
        "try: read_pickle(Path(sys.argv[1]).read_bytes())\n"
        "except RefusedError as error: assert 'MemoryError' not in str(error), error\n"
    )

    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, timeout=150, check=False)

    assert done.returncode == 0, done.stderr.decode()


def test_many_repetitions_of_one_value_are_one_value() -> None:
    shared = ["x" * 1000] * 1000
    data = pickle.dumps([shared] * 1000, 2)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value = read_pickle(data)

    assert value[0] is value[-1]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("data", [b"", b".", b"\x80", b"\x80\x04.", b"K", b"\x80\x02]q", b"}]", b"\x80\x02K\x01K\x02"])
def test_what_is_no_whole_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        read_pickle(data)
