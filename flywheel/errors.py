"""The error tree of the loop: every message is one sentence that a user can act on."""

from __future__ import annotations


class FlywheelError(Exception):
    """Root of every error that a user's mistake or a broken box can cause."""

    exit_code = 1


class LeverError(FlywheelError):
    """A lever is malformed, a duplicate, or already closed."""


class RulerMismatch(FlywheelError):  # noqa: N818 - reads as the fact that it is
    """Two numbers were about to be compared across rulers; the message names the fields."""


class RecordError(FlywheelError):
    """A record holds a value that no honest log can hold."""


class BlockError(FlywheelError):
    """Runs that cannot form one block: wrong arms, order, prompts or token counts."""


class StatisticsError(FlywheelError):
    """A statistic met an input outside its domain; never a promotion."""


class LedgerError(FlywheelError):
    """The ledger cannot be opened, read or appended to."""


class LedgerVersionError(LedgerError):
    """The ledger was written by another version of flywheel than this one can read."""


class LedgerBusy(LedgerError):  # noqa: N818
    """Another process held the ledger's lock for longer than this one would wait."""

    exit_code = 3


class LedgerPlaceError(LedgerError):
    """The ledger lies where it cannot be kept: read-only, or on a network file system."""

    exit_code = 2


class DecisionError(FlywheelError):
    """A decision was asked for that its evidence does not allow."""


class UsageError(FlywheelError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class Refused(FlywheelError):  # noqa: N818
    """Nothing is broken, but it must not be done now: a busy device, a halt, a STOP file."""

    exit_code = 3


class LeaseBusy(Refused):
    """The device or the ledger's daemon lock is held; the message names the holder."""


class LeaseError(FlywheelError):
    """A lock file cannot be opened or locked at all; nobody is known to hold it."""


class LaunchError(FlywheelError):
    """A run could not be started."""


class HeadError(FlywheelError):
    """A draft head's archive is incomplete or damaged, or its training failed."""


class PatchError(FlywheelError):
    """A patch cannot be read, applied, admitted or put into a worktree."""
