"""The device of a rank stopped in the middle of its work; its host went on, and so did its peers.

What it means
    A host only queues operations; the device works them off later. Here a device never finished an operation that
    its peers have finished, and more after it, which they could not have without that device. It stopped: a hardware
    error, a kernel that does not end, a driver that hangs. Ranks that wait for it later are victims.

How it is found
    The first unfinished operation of each rank is compared with what the other members of its group completed. A rank
    that is behind by two or more collectives of one group, or by one for seconds, stopped; a smaller difference is
    no more than logs that end at different moments. A rank whose host never issued an operation is not meant here
    (see rank-missing).

What to do
    Look at the device and at the kernel's log of its host: Xid or ECC errors, a lost device, throttling. Take the
    host out of the job and test the device alone.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Halts, Incident
from distdiag.analyzers.investigation.telling import at
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD304"
NAME = "device-stuck"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the devices that stopped."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Halts):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(run, incident))


def _summary(incident: Incident, halts: Halts) -> str:
    who, several = named(incident.culprits), len(incident.culprits) > 1
    first = min(halts.halted, key=lambda each: (each.head.since_ns, each.head.rank))
    peers = named(first.completed_by)
    words = (
        f"the {'devices' if several else 'device'} of {who} stopped in {incident.operation}{incident.at_step}\n"
        f"{peers} completed it and {counted(first.behind - 1, 'more call')} of that group"
        f"{at(incident, (first.head.rank,))}; the {'hosts' if several else 'host'} of {who} went on issuing"
    )
    if incident.victims:
        words += (
            f". {named(incident.victims)} {verb(incident.victims, 'waits', 'wait')} for {'them' if several else 'it'}"
        )
    return words + "."


def _action(run: Run, incident: Incident) -> tuple[str, ...]:
    who = named(incident.culprits)
    hosts = sorted(set(run.headers[run.headers["rank"].isin(incident.culprits)]["host"].astype(str)) - {""})
    where = f"the host of {who}" if not hosts else f"{', '.join(hosts)} ({who})"
    return (
        f"look for Xid, ECC and lost-device lines in the kernel's log of {where}, and at nvidia-smi -q there",
        f"take {who} out of the job and run a test of the device alone",
        "raising the timeout will not help: the device does not come back",
    )
