"""The guard's loop: look, decide, and end the run when the rule says so.

Nothing in it spawns, opens or logs before the signal is out.  The guard ends when nobody of the
run is left; it outlives its supervisor, and if that dies it is the guard that ends the engine,
whose measurements nobody can vouch for any more.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from array import array
from dataclasses import dataclass, replace

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.guard import rule
from flywheel.guard.journal import Journal
from flywheel.guard.limits import Limits, device_lines
from flywheel.guard.memory import BlindError, DeviceMemory, HostMemory
from flywheel.guard.victim import Buried, Victim
from flywheel.guard.word import KILLED, LEFT, LOST, ORPHANED, GuardWord

_MB = 1_000_000
_BACK_POLL_S = 0.05
# An engine that left by itself owes no proof of its memory; this long it is looked for.
_LEFT_PATIENCE_S = 2.0
_GAP_BINS = 4096


class Gaps:
    """The times between polls: the worst, and a histogram in milliseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.worst_ns = 0
        self._bins = array("L", bytes(_GAP_BINS * array("L").itemsize))

    def add(self, gap_ns: int) -> None:
        """Count one gap."""
        self.count += 1
        self.worst_ns = max(self.worst_ns, gap_ns)
        self._bins[min(_GAP_BINS - 1, gap_ns // 1_000_000)] += 1

    def p99_s(self) -> float:
        """The gap that 99 in 100 do not exceed, to the millisecond above."""
        wanted = -(-self.count * 99 // 100)
        for place, count in enumerate(self._bins):
            wanted -= count
            if count and wanted <= 0:
                return min(self.worst_ns / 1e9, (place + 1) / 1000)
        return 0.0


@dataclass(frozen=True, slots=True)
class Charge:
    """The run that a guard was given.

    ``slack_s`` is how long after the run's time limit the supervisor must have ended it.
    """

    engine: Identity
    supervisor: Identity | None
    alone: bool
    timeout_s: float
    slack_s: float


class Guard:
    """One guard over one run."""

    def __init__(
        self, limits: Limits, host: HostMemory, device: DeviceMemory | None, journal: Journal
    ) -> None:
        self._limits = limits
        self._pace = limits.pace
        self._host = host
        self._device = device
        self._journal = journal
        self._device_lines = None
        if device is not None and device.total_bytes is not None:
            self._device_lines = device_lines(device.total_bytes)
        self._state = rule.State()
        self._device_state = rule.State()
        self._device_at_ns = 0
        self._gaps = Gaps()
        self._began_ns = time.monotonic_ns()
        self._cpu_began_s = time.process_time()
        self.before_bytes = host.read()
        self.device_before_bytes = None if self._device_lines is None else device.read()  # type: ignore[union-attr]

    # -- the loop ----------------------------------------------------------------------------

    def watch(self, charge: Charge, line_fd: int) -> GuardWord:
        """Guard the run to its end.  ``line_fd`` closes when the supervisor dies."""
        victim = Victim(charge.engine, charge.supervisor, alone=charge.alone)
        poller = select.poll()
        poller.register(line_fd, select.POLLIN)
        if victim.wakeup_fd >= 0:
            poller.register(victim.wakeup_fd, select.POLLIN)
        self._began_ns = previous_ns = time.monotonic_ns()
        self._cpu_began_s = time.process_time()
        overtime_ns = self._began_ns + round((charge.timeout_s + charge.slack_s) * 1e9)
        woken = False
        while True:
            wait_ms = rule.wait_ns(self._state, self._limits.lines, self._pace) / 1e6
            ready = poller.poll(wait_ms) if self._state.past else ()
            now_ns = time.monotonic_ns()
            if self._state.past:
                self._gaps.add(now_ns - previous_ns)
            previous_ns = now_ns
            try:
                trigger, kind = self._look(now_ns)
            except BlindError as error:
                return self._word(LOST, str(error))
            if trigger is not None:
                return self._strike(victim, trigger, kind)
            for fd, _ in ready:
                if fd == line_fd and not _open(line_fd):
                    return self._orphaned(victim)
                if fd == victim.wakeup_fd:
                    poller.unregister(fd)
            if not victim.leads() and not victim.members():
                return self._left()
            if now_ns >= overtime_ns:
                if woken:
                    late = rule.Trigger("overtime", self._host_bytes(), 0, now_ns)
                    return self._strike(victim, late, "host")
                # A supervisor that was stopped has missed the limit; give it its chance.
                woken = _wake(charge.supervisor)
                overtime_ns = now_ns + round(charge.slack_s * 1e9)

    def _look(self, now_ns: int) -> tuple[rule.Trigger | None, str]:
        reading = rule.Reading(now_ns, self._host.read())
        self._state, trigger = rule.step(self._state, reading, self._limits.lines, self._pace)
        if trigger is not None:
            return trigger, "host"
        if self._device_lines is None or now_ns - self._device_at_ns < self._pace.poll_ns:
            return None, "host"
        assert self._device is not None
        self._device_at_ns = now_ns
        free = self._device.read()
        if free is None:
            return None, "device"
        self._device_state, trigger = rule.step(
            self._device_state, rule.Reading(now_ns, free), self._device_lines, self._pace
        )
        return trigger, "device"

    def _host_bytes(self) -> int:
        return self._state.past[-1].available_bytes

    # -- the endings -------------------------------------------------------------------------

    def _strike(self, victim: Victim, trigger: rule.Trigger, kind: str) -> GuardWord:
        victim.freeze()
        signalled_ns = time.monotonic_ns()
        buried = victim.kill()
        reaction_s = (signalled_ns - trigger.since_ns) / 1e9
        self._journal.say(
            f"KILLED engine {victim.engine.pid} and all of its run ({buried.killed} processes): "
            f"{_why(trigger, kind, self._limits)}; {reaction_s * 1000:.0f} ms after the first "
            "poll that saw it"
        )
        return self._proved(
            replace(
                self._word(KILLED, _why(trigger, kind, self._limits)),
                trigger=trigger.kind,
                memory=kind,
                killed_at_bytes=trigger.available_bytes,
                fall_bytes_per_s=trigger.fall_bytes_per_s,
                reaction_s=reaction_s,
                signalled_ns=signalled_ns,
            ),
            buried,
        )

    def _orphaned(self, victim: Victim) -> GuardWord:
        buried = victim.kill()
        reason = "the supervisor died, so the guard ended the engine"
        self._journal.say(f"{reason} ({buried.killed} processes)")
        return self._proved(self._word(ORPHANED, reason), buried)

    def _left(self) -> GuardWord:
        back, after = self._wait_back(_LEFT_PATIENCE_S)
        self._journal.say(
            f"the engine left by itself: low water {self._low():.0f} MB, peak fall "
            f"{self._state.peak_fall_bytes_per_s / _MB:.0f} MB/s"
        )
        return replace(self._word(LEFT, ""), after_bytes=after, memory_back=back or None)

    def _proved(self, word: GuardWord, buried: Buried) -> GuardWord:
        """The word on a kill, once the memory is back or the patience at its end."""
        if buried.stuck:
            self._journal.say(f"processes {buried.stuck} did not die of SIGKILL")
        back, after = self._wait_back(0.0 if buried.stuck else self._limits.back_patience_s)
        self._journal.say(
            f"memory {'is back' if back else 'DID NOT COME BACK'}: {after / _MB:.0f} MB available, "
            f"{self.before_bytes / _MB:.0f} MB before the launch"
        )
        return replace(
            word, killed=buried.killed, stuck=buried.stuck, memory_back=back, after_bytes=after
        )

    def _wait_back(self, patience_s: float) -> tuple[bool, int]:
        deadline = time.monotonic() + patience_s
        wanted = self.before_bytes - self._limits.back_tolerance_bytes
        while True:
            try:
                after = self._host.read()
            except BlindError:
                return False, 0
            if after >= wanted and self._device_back():
                return True, after
            if time.monotonic() >= deadline:
                return False, after
            time.sleep(_BACK_POLL_S)

    def _device_back(self) -> bool:
        if self._device is None or self._device_lines is None or self.device_before_bytes is None:
            return True
        free = self._device.read()
        return free is None or free >= self.device_before_bytes - self._limits.back_tolerance_bytes

    def _low(self) -> float:
        return (self._state.low_water_bytes or 0) / _MB

    def _word(self, verdict: str, reason: str) -> GuardWord:
        return GuardWord(
            verdict,
            reason,
            before_bytes=self.before_bytes,
            low_water_bytes=self._state.low_water_bytes,
            peak_fall_bytes_per_s=self._state.peak_fall_bytes_per_s,
            device_before_bytes=self.device_before_bytes,
            device_low_water_bytes=self._device_state.low_water_bytes,
            polls=self._gaps.count + 1,
            worst_gap_s=self._gaps.worst_ns / 1e9,
            p99_gap_s=self._gaps.p99_s(),
            watched_s=(time.monotonic_ns() - self._began_ns) / 1e9,
            cpu_s=time.process_time() - self._cpu_began_s,
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


def _open(fd: int) -> bool:
    """Whether the other end of a line still lives; what it says is of no interest."""
    with contextlib.suppress(OSError):
        return os.read(fd, 4096) != b""
    return False


def _wake(supervisor: Identity | None) -> bool:
    if supervisor is not None:
        identity.send(supervisor, signal.SIGCONT)
    return True


def _why(trigger: rule.Trigger, kind: str, limits: Limits) -> str:
    if trigger.kind == "overtime":
        return "the time limit passed long ago and the supervisor did not act"
    level = f"{trigger.available_bytes / _MB:.0f} MB of {kind} memory left"
    if trigger.kind == "slope":
        return f"{level}, falling {trigger.fall_bytes_per_s / _MB:.0f} MB/s"
    return f"{level}, under the floor for {limits.floor_polls} polls"
