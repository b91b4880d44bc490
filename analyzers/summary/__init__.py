"""What a report says beside its findings: positions, triage, performance, stacks, and which finding is the verdict."""
