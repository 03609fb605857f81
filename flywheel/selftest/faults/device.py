"""The device and the box around a run: its lease, its load, its memory."""

from __future__ import annotations

from functools import partial

from flywheel.box.lease import Lease
from flywheel.errors import LeaseBusy
from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "device")


def _lease_deleted(scene: Scene) -> None:
    """Somebody tidies the lock file away; a second holder must still be refused."""

    def delete() -> None:
        scene.held()
        scene.device.unlink()
        try:
            Lease.acquire(scene.device, "a second holder").release()
            scene.expect(False, "a second holder got the device while the run was on it")
        except LeaseBusy:
            pass
        scene.release()

    scene.loop("--hold", "middle", during=delete)


def _lease_rewritten(scene: Scene) -> None:
    """Somebody writes nonsense into the lock file; what is locked stays locked."""

    def rewrite() -> None:
        scene.held()
        scene.device.write_text("nonsense")
        try:
            Lease.acquire(scene.device, "a second holder").release()
            scene.expect(False, "a second holder got the device while the run was on it")
        except LeaseBusy:
            pass
        scene.release()

    scene.loop("--hold", "middle", during=rewrite)


FAULTS = (
    _fault("busy", "the host's load is over the limit in mid-run", "void", "host_busy"),
    Fault("lease_deleted", "device", "the lease's file is deleted in mid-run", "ok", ("",),
          _lease_deleted),
    Fault("lease_rewritten", "device", "nonsense is written into the lease's file", "ok", ("",),
          _lease_rewritten),
)  # fmt: skip
