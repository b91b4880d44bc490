"""Traces of the PyTorch profiler: read in pieces, kept as columns, measured exactly.

``chunks`` gives the bytes of a file, ``pieces`` whole events, ``decoding`` typed values, ``trace`` columns;
``counted`` says which of it counts, ``device`` measures it, ``collectives`` names what other ranks took part in.
"""
