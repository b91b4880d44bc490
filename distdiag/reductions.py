"""Of which reductions the kind is read: one rule for recorders, and for those who compare what they wrote.

To ask for the kind of a reduction (a sum, a maximum) takes a recorder longer than to write the rest of its record. It
asks at the first calls of a signature, at few after them, and at each call of a line that was seen to have several
kinds; in between it takes over what the first call said, which proves nothing.
"""

READ_AT_FIRST = 5
"""The kind of so many first calls of a signature is read, at the least."""
READ_EACH = 256
"""And that of each call whose number in its process is one more than a multiple of this."""
