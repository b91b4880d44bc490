"""What recorders write of some only: one rule for them, and for those who compare what they wrote.

Of a large batch the ids of some samples are written, the same ones on every rank, so that overlaps can be counted.

To ask for the kind of a reduction (a sum, a maximum) takes a recorder longer than to write the rest of its record. It
asks at the first calls of a signature, at few after them, and at each call of a line that was seen to have several
kinds; in between it takes over what the first call said, which proves nothing.
"""

READ_AT_FIRST = 5
"""The kind of so many first calls of a signature is read, at the least."""
READ_EACH = 256
"""And that of each call whose number in its process is one more than a multiple of this."""
MOST_IDS = 16
"""Of a batch, about."""
_KNUTH = 2654435761
_MASK_32 = 0xFFFFFFFF


def power_for(ids: int) -> int:
    """Return the power at which about ``MOST_IDS`` of so many ids are kept, 0 if all are."""
    return max(0, (ids - 1) // MOST_IDS).bit_length()


def is_kept(sample: int, power: int) -> bool:
    """Return whether an id is kept at a power: 1 of 2 to that power; what is kept at one is kept at all below."""
    return ((sample * _KNUTH) & _MASK_32) >> (32 - power) == 0 if power else True
