"""What drivers, and communication libraries other than NCCL, say of devices and connections that failed."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import Raised, Remark, Role, What
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.normalise import Line

LONGEST = 160
"""Characters of a driver's words that are repeated."""
_XID = re.compile(
    r"NVRM: Xid \((?P<device>[^)]+)\): (?P<number>\d+)(?:, pid='?(?P<pid>\d+)'?)?(?:, name=[^,]+)?,? ?(?P<text>.*)"
)
_LOST = re.compile(
    r"(?:NVRM: )?(?:The NVIDIA )?GPU (?:at )?(?P<device>(?:PCI:)?[0-9a-f]{4}:\S+?)[:.]? .*fallen off the bus"
)
_MEANINGS = {
    13: "a kernel of the program made an invalid access",
    31: "a kernel of the program made an invalid access to memory",
    48: "its memory has an error that cannot be corrected",
    62: "its firmware halted",
    63: "a row of its memory was retired",
    64: "a bad row of its memory could not be retired",
    74: "its NVLink failed",
    79: "it is no longer on the bus",
    94: "its memory has an error that cannot be corrected, which ended the process that used it",
    95: "its memory has an error that cannot be corrected, which may have harmed every process",
    119: "its firmware does not answer",
    120: "its firmware failed",
}
"""What the numbers mean that end training, as NVIDIA's list of Xid errors has it."""
_PLUGGED = re.compile(r"(?:PCI:)?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_ASSERTED = re.compile(
    r"[\w./-]+\.\w+:\d+: (?P<function>.+?): block: \[[\d,]+\], thread: \[[\d,]+\],? "
    r"Assertion `(?P<condition>.+?)` failed"
)
_AMD = re.compile(r"(?:Memory access fault|HW Exception) by GPU node-\d+.*")
_HCCL = re.compile(
    r"\bE[A-Z]\d{4}: (?:\[PID: \d+\] )?[\d.:-]+ +(?P<text>(?:Getting socket times out|Transport init error"
    r"|[Ww]ait for compute device to finish failed|Stream synchronize timeout|The wait execution of the Notify register"
    r" times out).*)"
)
_AMD_KERNEL = re.compile(
    r"amdgpu (?P<device>[0-9a-f]{4}:[0-9a-f:.]+): (?:amdgpu: )?"
    r"(?P<text>.*(?:no-retry page fault|GPU reset begin|ring \S+ timeout|RAS .*uncorrectable|VRAM is lost).*)"
)
_CCL = re.compile(r"(?:\|CCL_ERROR\|.*?|^\w*Error: )oneCCL: (?P<text>.+)")
_GAUDI = re.compile(r"\[Rank:(?P<rank>\d{1,6})\] FATAL ERROR :: MODULE:.+")
_MESH = re.compile(r"Gloo connectFullMesh failed with (?P<text>.*)")


def xid(line: Line) -> Iterator[What]:
    """Read what NVIDIA's driver wrote into the kernel's log."""
    if found := _XID.search(line.text):
        number = int(found["number"])
        meaning = _MEANINGS.get(number, found["text"].strip()[:LONGEST] or "its meaning is in NVIDIA's list")
        user = f" (process {found['pid']})" if found["pid"] and int(found["pid"]) else ""
        yield Remark(
            text=f"the driver reported Xid {number} of GPU {found['device']}{user}: {meaning}",
            telling=True,
            process=found["pid"] or "",
            bus=_bus(found["device"]),
        )
    elif found := _LOST.search(line.text):
        text = f"the driver reported that GPU {found['device']} is no longer on the bus"
        yield Remark(text=text, telling=True, bus=_bus(found["device"]))


def _bus(device: str) -> int | None:
    """Return where a device is plugged in as NCCL writes it: domain, bus, device and function in one number."""
    found = _PLUGGED.fullmatch(device)
    return int("".join(found.groups(default="0")), 16) if found else None


def asserted(line: Line) -> Iterator[What]:
    """Read which check inside a kernel failed."""
    if found := _ASSERTED.search(line.text):
        where = found["function"].partition("(")[0].strip()[-LONGEST:]
        yield Remark(text=f"a check inside a kernel failed: {found['condition'][:LONGEST]} ({where})", telling=True)


def amd(line: Line) -> Iterator[What]:
    """Read why AMD's runtime aborted a process."""
    if found := _AMD.search(line.text):
        yield Remark(text=f"AMD's runtime said: {found[0].strip()[:LONGEST]}", telling=True)


def hccl(line: Line) -> Iterator[What]:
    """Read what Huawei's HCCL and its runtime gave up on: a peer that did not come, or a task that does not end."""
    if found := _HCCL.search(line.text):
        yield Remark(text=f"HCCL said: {found['text'].strip()[:LONGEST]}", telling=True)


def amd_kernel(line: Line) -> Iterator[What]:
    """Read what AMD's driver wrote into the kernel's log."""
    if found := _AMD_KERNEL.search(line.text):
        yield Remark(
            text=f"the driver of GPU {found['device']} reported: {found['text'].strip()[:LONGEST]}", telling=True
        )


def ccl(line: Line) -> Iterator[What]:
    """Read what Intel's oneCCL gave up on."""
    if found := _CCL.search(line.text):
        yield Remark(text=f"oneCCL said: {found['text'].strip()[:LONGEST]}", telling=True)


def gaudi(line: Line) -> Iterator[What]:
    """Read what Habana's runtime gave up on, which names the rank by itself."""
    if found := _GAUDI.search(line.text):
        yield Raised(type="RuntimeError", message=found[0].strip(), uncaught=True, rank=int(found["rank"]))


def mesh(line: Line) -> Iterator[What]:
    """Read that gloo could not connect the ranks of a group with one another."""
    if found := _MESH.search(line.text):
        reason = found["text"].strip().removesuffix("no error")[-LONGEST:].strip()
        yield Remark(text=f"gloo could not connect the ranks with one another: {reason}", telling=True)


FAMILIES = (
    Family(name="nvidia-driver", needles=("NVRM: Xid", "fallen off the bus"), role=Role.INITIATING, parse=xid),
    Family(
        name="amd-runtime",
        needles=("Memory access fault by GPU", "HW Exception by GPU"),
        role=Role.INITIATING,
        parse=amd,
    ),
    Family(
        name="hccl",
        needles=(
            "Getting socket times out",
            "Transport init error",
            "ait for compute device to finish failed",
            "Stream synchronize timeout",
            "The wait execution of the Notify register",
        ),
        role=Role.CASCADE,
        parse=hccl,
    ),
    Family(name="amd-driver", needles=("amdgpu: ",), role=Role.INITIATING, parse=amd_kernel),
    Family(name="oneccl", needles=("oneCCL: ",), role=Role.CASCADE, parse=ccl),
    Family(name="gaudi", needles=("FATAL ERROR :: MODULE:",), role=Role.INITIATING, parse=gaudi),
    Family(name="device-assert", needles=("Assertion `",), role=Role.INITIATING, parse=asserted),
    Family(name="gloo-mesh", needles=("Gloo connectFullMesh failed",), role=Role.INITIATING, parse=mesh),
)
