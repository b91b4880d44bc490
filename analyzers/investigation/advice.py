"""What to do about errors that are known by their words, whoever prints them."""

import re

_KNOWN = (
    (
        re.compile(r"duplicate gpu", re.IGNORECASE),
        "give each process a GPU of its own: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first "
        "collective, and look at CUDA_VISIBLE_DEVICES",
    ),
    (
        re.compile(r"ECC error|NVLink error|fallen off the bus", re.IGNORECASE),
        "take that GPU out of service: nvidia-smi -q -d ECC and dmesg -T | grep -i xid on its host",
    ),
    (
        re.compile(r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"),
        "run once more with CUDA_LAUNCH_BLOCKING=1: the line that raises then is the one whose kernel failed; another "
        "GPU failing alike excludes the hardware",
    ),
    (
        re.compile(r"shared memory", re.IGNORECASE),
        "make /dev/shm larger (docker run --shm-size=16g, or an emptyDir of medium Memory), or use fewer workers",
    ),
    (
        re.compile(r"SLURM ended"),
        "see whether it still made progress before the end (the time of its last step); ask for more time if so",
    ),
    (
        re.compile(r"SIGHUP"),
        "the terminal or connection that started it was closed: start it with nohup, in tmux, or by a scheduler",
    ),
    (
        re.compile(r"told to stop with SIGTERM"),
        "ask whoever may end jobs: the scheduler (time limit, preemption, memory), the cloud's host, or an operator",
    ),
    (
        re.compile(r"worker process \d+ died"),
        "look into the worker's own log (ray's session folder, logs/worker-*-PID.err) and dmesg -T | grep -i kill",
    ),
    (
        re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE),
        "find the process that still holds that port (ss -ltnp on that host) and end it, or take another MASTER_PORT",
    ),
    (
        re.compile(r"(?:no store answered|found no store)"),
        "check that the process at that address runs, that MASTER_ADDR and MASTER_PORT are the same on all hosts, and "
        "that no firewall stands between: nc -vz HOST PORT",
    ),
    (
        re.compile(r"Rendezvous(?:Timeout|Connection|Closed)Error|torchelastic/"),
        "see that the launcher was started on every host, with the same --nnodes, --rdzv-id and --rdzv-endpoint",
    ),
    (
        re.compile(r"mismatch", re.IGNORECASE),
        "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL and analyse that output: it names each rank's calls",
    ),
    (
        re.compile(r"transport warning|completion (?:from|.*error)|async event|port error", re.IGNORECASE),
        "look at the adapter of that host: ibstat, its error counters, and dmesg",
    ),
    (
        re.compile(r"clocks of their hosts"),
        "see whether these hosts' clocks are kept right: chronyc tracking, or timedatectl",
    ),
    (
        re.compile(r"SLURM (?:says|counted)|kernel killed"),
        "look at the limit and the use of memory of that host: dmesg -T | grep -i kill, sacct -o MaxRSS",
    ),
)


def advice_on(*texts: str) -> tuple[str, ...]:
    """Return what to do about what some messages say; nothing about what is not known."""
    return tuple(advice for pattern, advice in _KNOWN if any(pattern.search(text) for text in texts))
