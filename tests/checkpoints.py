"""Checkpoints for tests: written by real ranks, and then injured.

``saved(directory)`` writes ``step-2`` and ``step-4``, model and optimizer of FSDP2 at four ranks, and ``even``, whose
shards all have one layout. An injury of ``INJURIES`` damages a copy in one way and says what has to be found.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distdiag.checkpoints import CORRUPT, INCOMPLETE
from distdiag.checkpoints.layout import Item, Layout
from distdiag.checkpoints.metadata import read_metadata
from distdiag.checkpoints.records import FOLDER
from tests.ranks import Ended, launch

WORLD_SIZE = 4
PROGRAM = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import distdiag
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

distdiag.install()
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
# Rows that four ranks do not divide, and shards large enough that their contents are hashed by their checksums alone.
model = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 5), nn.Linear(5, 60_000))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(1, 5):
    model(torch.randn(3, 7)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": step}
        dcp.save(state, checkpoint_id=f"step-{step}")
even = {name: distribute_tensor(torch.randn(16, 8), mesh, [Shard(0)]) for name in ("query", "key", "value")}
dcp.save(even, checkpoint_id="even")
dist.barrier()
dist.destroy_process_group()
"""


def saved(directory: Path) -> list[Ended]:
    """Write the checkpoints below a folder, in which the logs are, too."""
    ranks = launch(PROGRAM, directory, world_size=WORLD_SIZE, cap_seconds=240, forked=True)
    assert [rank.code for rank in ranks] == [0] * WORLD_SIZE, ranks[0].stderr
    return ranks


def layout_of(directory: Path) -> Layout:
    """Return what a checkpoint's metadata says."""
    return read_metadata((directory / ".metadata").read_bytes())


def item_of(directory: Path, name: str, chunk: int = 0) -> Item:
    """Return the bytes of a chunk of a tensor."""
    item = layout_of(directory).tensors[name].chunks[chunk].item
    assert item is not None
    return item


def forget_hashes(directory: Path) -> None:
    """Take away what the save recorded."""
    shutil.rmtree(directory / FOLDER)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Put other bytes into a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    """Flip one bit of one byte."""
    with path.open("rb") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    overwrite(path, offset, bytes([byte ^ 0x10]))


def swap(one: Path, other: Path) -> None:
    """Let two files change their names."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injury:
    """One way to damage a checkpoint."""

    name: str
    harm: Callable[[Path], object]
    kind: str
    """What is found where the save left hashes."""
    finding: str
    names: str
    """What the sentence about it names: the file, the tensor or the bytes."""
    bare: str | None
    """What is found where it left none; None for what nothing can show then."""
    of: str = "step-4"


BIG = "model.3.weight"
LARGE = "optimizer.state.3.weight.exp_avg"


def _middle(directory: Path) -> tuple[Path, int]:
    """Return a place among the values of a large tensor."""
    item = item_of(directory, BIG, 2)
    return directory / item.file, item.offset + item.length // 2


def _flip_frame(directory: Path) -> None:
    """Flip a byte of the padding that stands before the values of a large tensor."""
    item = item_of(directory, BIG, 2)
    data = (directory / item.file).read_bytes()
    flip(directory / item.file, data.index(b"ZZZZZZZZ", item.offset) + 3)


def _zero_item(directory: Path) -> None:
    item = item_of(directory, LARGE, 1)
    overwrite(directory / item.file, item.offset, bytes(item.length))


def _rename(directory: Path) -> None:
    (directory / "__1_0.distcp").rename(directory / "__1_0.distcp.bak")


def _folder(directory: Path) -> None:
    (directory / "__1_0.distcp").unlink()
    (directory / "__1_0.distcp").mkdir()


def _append(directory: Path) -> None:
    with (directory / "__0_0.distcp").open("ab") as file:
        file.write(b"more")


def _cut_metadata(directory: Path) -> None:
    path = directory / ".metadata"
    path.write_bytes(path.read_bytes()[:-100])


def _from_step_2(name: str) -> Callable[[Path], object]:
    return lambda directory: shutil.copy(directory.parent / "step-2" / name, directory / name)


INJURIES = (
    Injury(
        name="a shard is gone",
        harm=lambda directory: (directory / "__2_0.distcp").unlink(),
        kind="missing-file",
        finding=INCOMPLETE,
        names=r"^__2_0\.distcp is not there; it holds .*, the first of \d+ items",
        bare="missing-file",
    ),
    Injury(
        name="a shard is cut",
        harm=lambda directory: os.truncate(directory / "__1_0.distcp", 900_000),
        kind="truncated",
        finding=INCOMPLETE,
        names=r"^__1_0\.distcp ends at byte 900000 and should have \d+ bytes; lost: .* \(bytes \d+-\d+\)",
        bare="truncated",
    ),
    Injury(
        name="a shard is empty",
        harm=lambda directory: (directory / "__0_0.distcp").write_bytes(b""),
        kind="empty-file",
        finding=INCOMPLETE,
        names=r"^__0_0\.distcp is empty and should have \d+ bytes",
        bare="empty-file",
    ),
    Injury(
        name="one bit of a value is flipped",
        harm=lambda directory: flip(*_middle(directory)),
        kind="checksum",
        finding=CORRUPT,
        names=r"^__2_0\.distcp, bytes \d+-\d+ \(model\.3\.weight\[30000:45000, 0:5\]\) do not have the checksum",
        bare="checksum",
    ),
    Injury(
        name="zeros stand in the middle of a tensor",
        harm=lambda directory: overwrite(*_middle(directory), bytes(4096)),
        kind="checksum",
        finding=CORRUPT,
        names=r"^__2_0\.distcp, bytes \d+-\d+ \(model\.3\.weight\[30000:45000, 0:5\]\)",
        bare="checksum",
    ),
    Injury(
        name="zeros stand in place of a tensor",
        harm=_zero_item,
        kind="no-archive",
        finding=CORRUPT,
        names=r"^__1_0\.distcp, bytes \d+-\d+ \(optimizer\.state\.3\.weight\.exp_avg\[15000:30000, 0:5\]\) .*zeros",
        bare="no-archive",
    ),
    Injury(
        name="one bit beside the values is flipped",
        harm=_flip_frame,
        kind="hash",
        finding=CORRUPT,
        names=r"^__2_0\.distcp is not what the save wrote: 1 of \d+ hashes differ, model\.3\.weight\[30000:45000",
        bare=None,
    ),
    Injury(
        name="the metadata is of another step",
        harm=_from_step_2(".metadata"),
        kind="metadata-of-another-save",
        finding=CORRUPT,
        names=r"^\.metadata is not what the save of step 4 wrote: it is of another save",
        bare=None,
    ),
    Injury(
        name="a shard is of another step",
        harm=_from_step_2("__1_0.distcp"),
        kind="hash",
        finding=CORRUPT,
        names=r"^__1_0\.distcp is not what the save wrote: \d+ of \d+ hashes differ",
        bare=None,
    ),
    Injury(
        name="two shards of different layouts are swapped",
        harm=lambda directory: swap(directory / "__0_0.distcp", directory / "__3_0.distcp"),
        kind="swapped",
        finding=CORRUPT,
        names=r"^__0_0\.distcp and __3_0\.distcp hold what belongs into the other one: the two were swapped",
        bare="swapped",
    ),
    Injury(
        name="two shards of one layout are swapped",
        harm=lambda directory: swap(directory / "__1_0.distcp", directory / "__2_0.distcp"),
        kind="swapped",
        finding=CORRUPT,
        names=r"^__1_0\.distcp holds what the save wrote to __2_0\.distcp: the two were swapped",
        bare=None,
        of="even",
    ),
    Injury(
        name="a shard is a copy of another one",
        harm=lambda directory: shutil.copy(directory / "__1_0.distcp", directory / "__2_0.distcp"),
        kind="duplicate",
        finding=CORRUPT,
        names=r"^__2_0\.distcp holds what the save wrote to __1_0\.distcp: it is a copy",
        bare=None,
        of="even",
    ),
    Injury(
        name="a shard has another name",
        harm=_rename,
        kind="renamed",
        finding=INCOMPLETE,
        names=r"^__1_0\.distcp lies here under the name __1_0\.distcp\.bak",
        bare="missing-file",
    ),
    Injury(
        name="nobody may read a shard",
        harm=lambda directory: (directory / "__3_0.distcp").chmod(0),
        kind="permissions",
        finding=INCOMPLETE,
        names=r"^__3_0\.distcp may be read by nobody \(mode 000\)",
        bare="permissions",
    ),
    Injury(
        name="a folder stands in place of a shard",
        harm=_folder,
        kind="no-file",
        finding=INCOMPLETE,
        names=r"^__1_0\.distcp is not a file",
        bare="no-file",
    ),
    Injury(
        name="a shard is longer than it was",
        harm=_append,
        kind="surplus-bytes",
        finding=CORRUPT,
        names=r"^__0_0\.distcp, bytes \d+-\d+: 4 bytes that the metadata does not know",
        bare="surplus-bytes",
    ),
    Injury(
        name="the metadata is gone",
        harm=lambda directory: (directory / ".metadata").unlink(),
        kind="no-metadata",
        finding=INCOMPLETE,
        names=r"^\.metadata is not there: .* the 4 shards hold",
        bare="no-metadata",
    ),
    Injury(
        name="the metadata is cut",
        harm=_cut_metadata,
        kind="metadata",
        finding=INCOMPLETE,
        names=r"^\.metadata is cut off: \d+ of \d+ bytes are there",
        bare="metadata",
    ),
    Injury(
        name="the metadata is empty",
        harm=lambda directory: (directory / ".metadata").write_bytes(b""),
        kind="metadata",
        finding=INCOMPLETE,
        names=r"^\.metadata is empty",
        bare="metadata",
    ),
)
