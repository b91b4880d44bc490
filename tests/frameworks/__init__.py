"""Training programs in the words of common frameworks, unmodified: they know nothing of recording."""
