"""Coverage of tensors, metadata of several makes, and what a checkpoint can be used for."""

import collections
import itertools
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from distdiag.checkpoints.layout import Box, Layout, Tensor, hole, outside, overlap
from distdiag.checkpoints.metadata import RefusedError, UnreadableError, read_metadata
from distdiag.checkpoints.remarks import loads, mapping_notes


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A tensor and boxes that cover it exactly once: a grid of cuts in each dimension."""
    size = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    axes = []
    for extent in size:
        cuts = sorted({0, extent, *draw(st.lists(st.integers(0, extent), max_size=3))})
        axes.append([(a, b - a) for a, b in itertools.pairwise(cuts)])
    boxes: list[Box] = [((), ())]
    for axis in axes:
        boxes = [((*at, start), (*sizes, extent)) for at, sizes in boxes for start, extent in axis]
    return size, draw(st.permutations(boxes))


@given(tilings())
@settings(max_examples=100, deadline=None)
def test_exact_cover_has_no_hole_and_no_overlap(tiling: tuple[tuple[int, ...], list[Box]]) -> None:
    size, boxes = tiling

    assert overlap(boxes) is None
    assert hole(size, boxes) is None
    assert list(outside(size, boxes)) == []


@given(tilings(), st.data())
@settings(max_examples=100, deadline=None)
def test_box_that_is_left_out_is_a_hole_within_it(
    tiling: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    size, boxes = tiling
    lost = data.draw(st.sampled_from(boxes))

    gap = hole(size, [box for box in boxes if box is not lost])

    assert gap is not None
    assert math.prod(gap[1]) > 0
    for axis in range(len(size)):
        assert lost[0][axis] <= gap[0][axis]
        assert gap[0][axis] + gap[1][axis] <= lost[0][axis] + lost[1][axis]


@given(tilings(), st.data())
@settings(max_examples=100, deadline=None)
def test_box_that_comes_twice_or_grows_is_an_overlap(
    tiling: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    size, boxes = tiling
    twice = data.draw(st.sampled_from(boxes))

    assert overlap([*boxes, twice]) is not None
    if len(boxes) > 1:
        assert overlap([((0,) * len(size), size), *boxes]) is not None


def test_empty_boxes_and_scalars() -> None:
    assert hole((), [((), ())]) is None
    assert hole((), []) == ((), ())
    assert overlap([((), ()), ((), ())]) is not None
    assert hole((0, 4), []) is None
    assert overlap([((4,), (0,)), ((0,), (4,)), ((4,), (0,))]) is None
    assert list(outside((4,), [((2,), (3,))])) == [((2,), (3,))]


def written(storage: Any, **tensors: list[tuple[list[int], list[int]]]) -> bytes:
    """Return metadata of one-dimensional float tensors of eight elements."""
    described: dict[str, Any] = {
        name: dcp.TensorStorageMetadata(
            properties=dcp.TensorProperties(dtype=torch.float32),
            size=torch.Size([8]),
            chunks=[dcp.ChunkStorageMetadata(offsets=torch.Size(at), sizes=torch.Size(size)) for at, size in chunks],
        )
        for name, chunks in tensors.items()
    }
    return pickle.dumps(dcp.Metadata(state_dict_metadata=described, storage_data=storage, version="1.0.0"))


def test_metadata_become_tensors_and_ranges() -> None:
    index = dcp.MetadataIndex("weight", torch.Size([4]))
    other = dcp.MetadataIndex("gone", torch.Size([0]))
    info = _StorageInfo(relative_path="__0_0.distcp", offset=10, length=20)

    layout = read_metadata(written({index: info, other: info}, weight=[([0], [4]), ([4], [4])]))

    weight = layout.tensors["weight"]
    assert (weight.dtype, weight.size) == ("float32", (8,))
    assert weight.chunks[0].item is None
    assert weight.chunks[1].item is not None
    assert (weight.chunks[1].item.file, weight.chunks[1].item.end) == ("__0_0.distcp", 30)
    assert list(layout.strays) == ["gone"]
    assert layout.version == "1.0.0"


def test_reading_metadata_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(written({}, weight=[([0], [8])]))
    code = (
        "import sys\n"
        "from distdiag.checkpoints.metadata import read_metadata\n"
        f"read_metadata(open({str(tmp_path / '.metadata')!r}, 'rb').read())\n"
        "print('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)

    assert done.stdout == "False\n", done.stderr


class Names:
    """Pickled, it names any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "function",
    [os.system, eval, exec, getattr, __import__, subprocess.Popen, open, torch.load, collections.Counter],
)
def test_names_that_no_metadata_needs_are_refused(function: Any) -> None:
    hidden = dcp.Metadata(state_dict_metadata={}, planner_data={"plan": Names(function, "touch ran")})

    with pytest.raises(RefusedError, match="no checkpoint's metadata needs"):
        read_metadata(pickle.dumps(hidden))


def test_pickle_that_asks_for_all_memory_is_refused() -> None:
    bomb = b"\x80\x04" + b"]" + b"r" + (1 << 31).to_bytes(4, "little") + b"."

    with pytest.raises(RefusedError, match="asks for room for 2147483648 values"):
        read_metadata(bomb)


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 2000))
@settings(max_examples=300, deadline=None)
def test_damaged_metadata_are_unreadable_and_nothing_else(junk: bytes, at: int, until: int) -> None:
    index = dcp.MetadataIndex("weight", torch.Size([0]))
    whole = written({index: _StorageInfo("__0_0.distcp", 0, 9)}, weight=[([0], [8])])
    damaged = whole[:at] + junk + whole[until:]

    try:
        layout = read_metadata(damaged)
    except UnreadableError:
        return

    assert isinstance(layout, Layout)


def state_of(*names: str, rows: int = 8) -> Layout:
    tensors = {name: Tensor(name=name, dtype="float32", size=(rows,), chunks=()) for name in names}
    return Layout(tensors=tensors, values={}, paths={}, strays={}, version=None, save_id=None)


MODEL = ("model.a", "model.b", "model.c")
STATES = tuple(f"optimizer.state.{name}.{slot}" for name in "abc" for slot in ("exp_avg", "exp_avg_sq"))
PARAMETERS = {"optimizer.param_groups.0.params": ["a", "b", "c"]}


def test_optimizer_that_fits_the_model_is_not_remarked_upon() -> None:
    assert mapping_notes(state_of(*MODEL, *STATES), PARAMETERS) == []
    assert mapping_notes(state_of(*MODEL), PARAMETERS) == []


def test_parameter_without_optimizer_state_is_named() -> None:
    (note,) = mapping_notes(state_of(*MODEL, *STATES[:4]), PARAMETERS)

    assert note == "parameter c, one of 3, has no optimizer state: frozen, or never trained?"


def test_slot_that_one_parameter_lacks_is_named() -> None:
    (note,) = mapping_notes(state_of(*MODEL, *STATES[:5]), PARAMETERS)

    assert note == "parameter c, one of 3, has optimizer state, but no exp_avg_sq"


def test_optimizer_state_of_no_parameter_is_named() -> None:
    notes = mapping_notes(state_of(*MODEL, *STATES, "optimizer.state.other.exp_avg"), PARAMETERS)

    assert any("other belongs to no tensor of the model" in note for note in notes)


def test_states_that_belong_to_one_rank_bind_the_checkpoint_to_its_size() -> None:
    text = loads(state_of("model.a", "rng_rank0", "rng_rank1", "loader.rank0.state", "loader.rank1.state"), 2)

    assert "loader.rankN.state, rng_rankN exist once per rank and fit only the same size (2 ranks saved it)" in text


def test_numbers_of_layers_are_no_ranks() -> None:
    assert "per rank" not in loads(state_of("model.0.weight", "model.1.weight", "layers.0.w", "layers.1.w"), 2)
