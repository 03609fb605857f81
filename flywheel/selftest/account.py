"""What a campaign under fire lost, doubled or left behind.  Counted from the ledger's file and the
engine's own witness, by none of the code that is under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from flywheel.selftest import census
from flywheel.selftest.engine.witness import told
from flywheel.selftest.scene import Scene
from flywheel.selftest.verdict import rows


@dataclass(frozen=True, slots=True)
class Account:
    """Everything but ``runs``, ``ok``, ``sealed`` and ``measurements`` must be zero.

    ``lost`` and ``recorded_twice`` count measurements, ``accepted_wrongly`` and ``open`` runs,
    ``orphans`` processes.
    """

    runs: int
    ok: int
    sealed: int
    measurements: int
    lost: int
    recorded_twice: int
    launched_twice: int
    accepted_wrongly: int
    open: int
    orphans: int
    damaged: int
    complaints: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Nothing was lost, doubled, accepted wrongly or left behind."""
        return not (
            self.lost or self.recorded_twice or self.launched_twice or self.accepted_wrongly
            or self.open or self.orphans or self.damaged
        )  # fmt: skip


def account(scene: Scene, excused: Collection[str] = ()) -> Account:
    """The account of a scene whose loop has come to rest.

    ``excused`` are runs whose supervisor or guard was killed: such a run must not count unless its
    word was left before, and either way it must be all or nothing.
    """
    lines = told(scene.witness)
    starts = Counter(line["run"] for line in lines if line["what"] == "start")
    sealed = {line["run"]: line for line in lines if line["what"] == "sealed"}
    with rows(scene.ledger) as connection:
        ends = dict(connection.execute(
            "SELECT run.id, outcome FROM run LEFT JOIN run_end ON run_end.run_id = run.id"
        ).fetchall())  # fmt: skip
        numbers = dict(connection.execute(
            "SELECT run_id, count(*) FROM measurement WHERE metric = 'time' GROUP BY run_id"
        ).fetchall())  # fmt: skip
        logs = dict(connection.execute("SELECT run_id, sha256 FROM log").fetchall())
        twice = connection.execute(
            "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM measurement"
            " GROUP BY run_id, arm, prompt, repeat, metric)"
        ).fetchone()[0]
        whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    twice += sum(n - 1 for n in Counter(logs.values()).values())
    said: list[str] = []
    lost = wrong = 0
    for run, line in sealed.items():
        there, outcome = numbers.get(run, 0), ends.get(run)
        if outcome == "ok":
            missing = line["points"] - there
            if logs.get(run) != line["sha256"]:
                missing = line["points"]
        else:
            missing = 0 if run in excused else line["points"]
        if missing:
            said.append(f"run {run}: {outcome}, {there} of {line['points']} measurements")
        lost += abs(missing)
    for run, outcome in ends.items():
        if (outcome == "ok") != (numbers.get(run, 0) > 0) or (
            outcome == "ok" and run not in sealed
        ):
            wrong += 1
            said.append(f"run {run}: {outcome} with {numbers.get(run, 0)} measurements")
    unknown = [run for run in starts if run not in ends]
    still = [run for run, outcome in ends.items() if outcome is None] + unknown
    doubled = [run for run, times in starts.items() if times > 1]
    orphans = census.gone(scene.token, 5.0)
    said += [f"run {run} is open" for run in still]
    said += [f"run {run} was started {starts[run]} times" for run in doubled]
    said += [f"{one.role} {one.identity.pid} is left" for one in orphans]
    return Account(
        runs=len(ends), ok=sum(o == "ok" for o in ends.values()), sealed=len(sealed),
        measurements=sum(numbers.values()), lost=lost, recorded_twice=twice,
        launched_twice=len(doubled), accepted_wrongly=wrong, open=len(still),
        orphans=len(orphans), damaged=not whole, complaints=tuple(said),
    )  # fmt: skip
