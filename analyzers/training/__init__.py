"""What analyzers of numbers and data share: who holds the same model, and how a series goes on."""
