"""Why replicas went apart, where the logs say it: a finding of its own then, and not two."""

from distdiag.analyzers.training.checksums import Desync
from distdiag.analyzers.training.gradients import unsynchronised
from distdiag.analyzers.training.scales import scale_splits
from distdiag.run import Run


def explained(run: Run, desync: Desync) -> bool:
    """Return whether gradients that stayed apart, or different loss scales, came before replicas differed."""
    members = set(desync.group.members)
    before = [*(each.step for each in unsynchronised(run) if members & set(each.ranks))]
    before += [each.step for each in scale_splits(run) if members & set(each.scales)]
    return any(step < desync.step for step in before)
