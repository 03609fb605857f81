"""The device: what it is, how fast it may run, who is on it and who holds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flywheel.box import device, lease, tenants
from flywheel.box.device import Gpu
from flywheel.box.holder import last_holder, proof_of_absence
from flywheel.box.host import Host
from flywheel.doctor.check import FAIL, WARN, Check, fine

# NVML's clock event reason for clocks that somebody has set.
_SET_CLOCKS = 0x02
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


def check_device(look: Host) -> Check:
    """What there is to measure on."""
    gpu = device.mine(look.gpus)
    if gpu is None:
        why = "no GPU is visible to this process" if look.gpus else "no NVIDIA driver answers"
        return fine("device", f"cpu, {look.cores or '?'} cores; {why}")
    total = gpu.mem_total_bytes
    memory = "unified with the host's memory" if total is None else f"{total / 2**30:.0f} GiB"
    said = (
        f"{gpu.name or 'a GPU'}, {memory}, driver {gpu.driver or 'unknown'}, "
        f"{gpu.uuid or 'no uuid'}, ECC {_switch(gpu.ecc)}, MIG {_switch(gpu.mig)}, "
        f"persistence {_switch(gpu.persistence)}"
    )
    if gpu.mig and not (os.environ.get("CUDA_VISIBLE_DEVICES") or "").startswith("MIG-"):
        return Check(
            "device", WARN, f"{said}; it is divided, and no part is chosen",
            "let CUDA_VISIBLE_DEVICES name one MIG instance by its uuid",
        )  # fmt: skip
    if gpu.persistence is False:
        return Check(
            "device", WARN, f"{said}; the driver unloads between runs", "nvidia-smi -pm 1"
        )
    if _ambiguous(look.gpus):
        return Check(
            "device", WARN, f"{said}; the box has unlike GPUs, which CUDA may count otherwise",
            "let CUDA_VISIBLE_DEVICES name the GPU by its uuid",
        )  # fmt: skip
    return fine("device", said)


def _switch(on: bool | None) -> str:
    return {True: "on", False: "off", None: "not shown"}[on]


def _ambiguous(gpus: Sequence[Gpu]) -> bool:
    by_uuid = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").startswith(("GPU-", "MIG-"))
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return len({gpu.name for gpu in gpus}) > 1 and not by_uuid and not by_bus


def check_clocks(look: Host) -> Check:
    """Whether the device runs as fast as it should."""
    gpu = device.mine(look.gpus)
    if gpu is None:
        return fine("clocks", "no GPU; see processor")
    power = "power not shown" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    if gpu.power_limit_w is not None:
        power += f" of {gpu.power_limit_w:.0f} W"
    state = "" if gpu.performance_state is None else f", P{gpu.performance_state}"
    said = f"{gpu.sm_clock_mhz or '?'} of {gpu.max_sm_clock_mhz or '?'} MHz, {power}{state}"
    if (gpu.throttle_bits or 0) & _SET_CLOCKS:
        said += ", clocks set by the owner"
    if (why := device.stuck(gpu)) is not None:
        return Check("clocks", FAIL, why, "switch the box off and on; a restart may not do")
    if gpu.throttles:
        return Check(
            "clocks", WARN, f"{said}; slowed by {', '.join(gpu.throttles)}",
            "look after cooling and the power limit",
        )  # fmt: skip
    return fine("clocks", said)


def check_tenants(look: Host) -> Check:
    """Who else is on the device."""
    if (said := tenants.before_launch(look.gpus)) is not None:
        held = lease.holder(lease.device_path())
        if held is not None:
            return Check(
                "tenants", WARN, f"{said} The device is held by {held}", "see lease"
            )
        return Check(
            "tenants", FAIL, said,
            "end it yourself (flywheel kills only its own), or choose another device with "
            "CUDA_VISIBLE_DEVICES",
        )  # fmt: skip
    gpu = device.mine(look.gpus)
    if gpu is not None and (gpu.processes is None or (not gpu.processes and _in_container())):
        tells = "nothing tells" if gpu.mem_used_bytes is None else "only device memory tells"
        return Check(
            "tenants", WARN, f"the process list may be hidden here; {tells} of other processes",
            "run outside the container, or with the host's process ids (--pid=host)",
        )  # fmt: skip
    return fine("tenants", "nobody else is on the device")


def _in_container() -> bool:
    return any(path.exists() for path in _CONTAINER_MARKS)


def check_lease(path: Path) -> Check:
    """Whether the device can be taken, is free, and was given back."""
    if not _can_lock(path):
        return Check(
            "lease", FAIL, f"{path} cannot be opened for writing",
            "let FLYWHEEL_LEASE name a file that can",
        )  # fmt: skip
    held = lease.holder(path)
    if held is not None:
        return Check(
            "lease", WARN, f"held by {held}", "wait for it, or end it: flywheel status, stop"
        )
    before = last_holder(path)
    if before is not None and before.released_utc is None:
        return Check(
            "lease", WARN,
            f"free ({path}), but never given back by {before}: {proof_of_absence(before)}",
            "nothing: the next holder takes it over, and the ledger says so",
        )  # fmt: skip
    return fine("lease", f"free ({path})")


def _can_lock(path: Path) -> bool:
    """Whether a lock file is there, or could be made, without making it."""
    if path.is_dir():
        return False
    there = next((one for one in (path, *path.absolute().parents) if one.exists()), path)
    return os.access(there, os.W_OK)
