"""Which sample ids of a large batch are written: the same ones on every rank, so that overlaps can still be counted."""

MOST_IDS = 16
_KNUTH = 2654435761
_MASK_32 = 0xFFFFFFFF


def power_for(ids: int) -> int:
    """Return the power at which about ``MOST_IDS`` of so many ids are kept, 0 if all are."""
    return max(0, (ids - 1) // MOST_IDS).bit_length()


def is_kept(sample: int, power: int) -> bool:
    """Return whether an id is kept at a power: 1 of 2 to that power; what is kept at one is kept at all below."""
    return ((sample * _KNUTH) & _MASK_32) >> (32 - power) == 0 if power else True
