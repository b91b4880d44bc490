"""What a batch is, as counts and digests: which samples, how many tokens, how much padding; never its content."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distdiag.thinning import is_kept, power_for

MOST_FIELDS = 4
VALUES_OF_FIELD = 64
VALUES_OF_SAMPLE = 8
"""Values that a digest covers, spread over the tensor: batches that are not equal differ nearly everywhere."""


def sample_facts(indices: Any) -> dict[str, Any]:
    """Return ``samples``, ``ids`` and ``thinned`` for what a sampler gave: one index or the list of a batch's."""
    if indices is None:
        return {}
    several = list(indices) if isinstance(indices, list | tuple) else [indices]
    if not several or several[0] is None:  # a data set that is only iterated over
        return {}
    ids = several if all(type(each) is int for each in several) else [_number(each) for each in several]
    power = power_for(len(ids))
    places = [place for place, each in enumerate(ids) if is_kept(each, power)] if power else range(len(ids))
    return {"samples": len(ids), "ids": [ids[place] for place in places], "thinned": power, "places": places}


def content_facts(batch: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a batch that came, with what its tensors on the host show; ``places`` are used up."""
    facts = dict(facts)
    places: Sequence[int] = facts.pop("places", ())
    tensors = [each for each in _tensors(batch) if _is_readable(each)][:MOST_FIELDS]
    if not tensors:
        return facts
    rows = len(tensors[0]) if tensors[0].ndim else 1
    facts["fields"] = [_digest(each, VALUES_OF_FIELD) for each in tensors]
    if facts.get("samples", rows) == rows:
        facts["samples"] = rows
        telling = _telling(tensors, rows)
        if telling is not None:
            facts["contents"] = _digests_of_rows(telling, places)
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        facts |= token_facts(batch)
    return facts


def token_facts(batch: Any) -> dict[str, int]:
    """Return numbers of tokens and positions where a batch has an attention mask or input ids."""
    mask: Any = batch["attention_mask"] if "attention_mask" in batch else None  # noqa: SIM401 - not all have a get
    ids: Any = batch["input_ids"] if "input_ids" in batch else None  # noqa: SIM401
    if _is_readable(mask) and mask.ndim == 2 and not mask.is_floating_point():
        lengths = mask.sum(1)
        return {
            "tokens": int(lengths.sum()),
            "positions": mask.numel(),
            "tokens_squared": int((lengths * lengths).sum()),
        }
    return {"positions": ids.numel()} if _is_readable(ids) and ids.ndim == 2 else {}


def _telling(tensors: Sequence[Any], rows: int) -> Any:
    """Return the tensor that tells samples apart best: token ids before pixels, which augmentation changes."""
    several = [each for each in tensors if each.ndim > 1 and len(each) == rows]
    whole = [each for each in several if not each.is_floating_point()]
    return (whole or several or [None])[0]


def _tensors(batch: Any, depth: int = 2) -> Iterator[Any]:
    if hasattr(batch, "storage_offset"):
        yield batch
    elif depth and isinstance(batch, list | tuple):
        for each in batch[:MOST_FIELDS]:
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(batch, Mapping):
        for each in list(batch.values())[:MOST_FIELDS]:
            yield from _tensors(each, depth - 1)


def _is_readable(tensor: Any) -> bool:
    import torch

    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _digest(tensor: Any, values: int) -> int:
    """Return a digest of some values that are spread over a tensor."""
    while tensor.ndim > 1 and not tensor.is_contiguous():
        tensor = tensor[0] if len(tensor) else tensor.reshape(-1)
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // values)
    return zlib.crc32(repr(flat[::step][:values].tolist()).encode())


def _digests_of_rows(tensor: Any, places: Sequence[int]) -> list[int]:
    """Return the digests of some rows; of a tensor in one piece all are taken at once, which is 2 to 7 x faster."""
    if not places or not tensor.is_contiguous():
        return [_digest(tensor[place], VALUES_OF_SAMPLE) for place in places]
    rows = tensor.view(len(tensor), -1)
    spread = rows[:, :: max(1, rows.shape[1] // VALUES_OF_SAMPLE)][:, :VALUES_OF_SAMPLE]
    chosen = spread if len(places) == len(rows) else spread[list(places)]
    return [zlib.crc32(repr(row).encode()) for row in chosen.tolist()]


def _number(sample: Any) -> int:
    """Return a number for a sample id of any type."""
    index = getattr(sample, "__index__", None)
    return int(index()) if index is not None else zlib.crc32(repr(sample).encode())
