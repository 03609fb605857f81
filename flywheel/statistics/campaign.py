"""The campaign's error budget (e-LOND) and its canaries, as pure folds.

e-LOND: the t-th test is promoted when its e-value reaches 1 / alpha_t with
alpha_t = alpha gamma_t (R + 1), R the promotions before it. The share of false promotions stays
under alpha whatever the dependence between tests. gamma is flat over a declared budget of tests,
and zero after it: then a new epoch must be declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from scipy.special import betaincinv

from flywheel.errors import DecisionError
from flywheel.heads.session import SessionRule
from flywheel.statistics.decide import Rule


@dataclass(frozen=True, slots=True)
class Phases:
    """When a campaign stops exploiting what was declared and looks for more.

    After `poor_results` results in a row that each brought less than `poor_gain` (a fraction of
    time), it profiles.
    """

    poor_results: int = 3
    poor_gain: float = 0.005

    def __post_init__(self) -> None:
        if self.poor_results < 1 or not 0 < self.poor_gain < 1:
            raise DecisionError("phases need a positive count and a gain between 0 and 1")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a campaign declares before its first run; stored with it.

    `budget` tests share `alpha`. `calibration` null blocks come first; about one item in
    `canary_every` is a canary; `attempts` void blocks in a row defer a lever; `anchor_blocks`
    blocks measure the best against the frozen first configuration, at the end and every
    `anchor_every` promotions. After the k-th failure in a row the next attempt waits for
    `backoff_s[k-1]` seconds, and after more of them for the last of these. `session` is the gate
    that the campaign's heads pass. With `canaries` above
    zero the campaign tries nothing else: it counts how many of so many null levers it promotes.
    Without `phases` it ends with the levers that were declared.
    """

    label: str = "full"
    seed: int = 1
    alpha: float = 0.20
    budget: int = 150
    calibration: int = 4
    canary_every: int = 12
    attempts: int = 3
    anchor_blocks: int = 3
    anchor_every: int = 5
    floor_ms: float | None = None
    backoff_s: tuple[float, ...] = (0.0, 30.0, 120.0)
    canaries: int = 0
    rule: Rule = field(default_factory=Rule)
    phases: Phases | None = None
    session: SessionRule = field(default_factory=SessionRule)

    def __post_init__(self) -> None:
        counts = (self.budget, self.calibration, self.canary_every, self.attempts,
                  self.anchor_blocks, self.anchor_every)
        if not 0 < self.alpha < 1 or min(counts) < 1:
            raise DecisionError("a campaign needs 0 < alpha < 1 and positive counts")
        if not 0 <= self.canaries <= self.budget:
            raise DecisionError("a campaign of canaries needs a test for each of them")
        if not self.backoff_s or min(self.backoff_s) < 0:
            raise DecisionError("a campaign needs pauses of no negative length between attempts")

    def of_canaries(self, count: int) -> Settings:
        """The same campaign with nothing but `count` canaries; each has a test of the budget."""
        return replace(self, label=f"{self.label}-canaries", canaries=count, budget=count)

    @property
    def gamma(self) -> float:
        """The flat weight of each test."""
        return 1.0 / self.budget

    @property
    def cold_calibration(self) -> int:
        """Null blocks of four loads before the first screen: each tells two squares, not one."""
        return max(1, self.calibration // 2)

    def pause_s(self, failures: int) -> float:
        """How long to wait after that many failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        return self.backoff_s[min(failures, len(self.backoff_s)) - 1]

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {**asdict(self), "backoff_s": list(self.backoff_s)}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Settings:
        """Inverse of `as_dict`."""
        values = dict(data)
        if isinstance(pauses := values.get("backoff_s"), list):
            values["backoff_s"] = tuple(pauses)
        rule, phases = values.pop("rule"), values.pop("phases", None)
        session = values.pop("session", {})
        assert isinstance(rule, Mapping)
        assert isinstance(session, Mapping)
        if isinstance(phases, Mapping):
            values["phases"] = Phases(**phases)
        made = {"rule": Rule(**rule), "session": SessionRule(**session)}
        return cls(**made, **values)  # type: ignore[arg-type]


# A short campaign asks less: effects under a percent are left to a night of their own.
QUICK = Settings(
    label="quick",
    budget=16,
    anchor_blocks=2,
    rule=Rule(delta_min=0.01, useful=0.02, tau=0.02, memory=0.05, n_max=4),
)
# One that goes on once what was declared is tried: it asks its profile, and its proposers. It has
# the time to look twice as long at each lever.
SEEKING = replace(
    QUICK, label="quick-seeking", budget=48, phases=Phases(), rule=replace(QUICK.rule, n_max=8)
)
# A night has the time to tell an effect of one per cent from none on a box that spreads by one.
FULL = Settings(
    rule=Rule(delta_min=0.001, useful=0.01, tau=0.02, memory=0.05, n_max=12), phases=Phases()
)

# Heads alone: a few dozen at most share the error, and nothing is timed.
HEADS = Settings(label="heads", budget=24, rule=FULL.rule)


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the epoch stands: `tests` spent, `promotions` among them."""

    settings: Settings
    tests: int = 0
    promotions: int = 0

    @property
    def left(self) -> int:
        """Tests that can still be promoted in this epoch."""
        return max(0, self.settings.budget - self.tests)

    @property
    def alpha_t(self) -> float:
        """The level of the next test; 0 when the epoch is spent."""
        if not self.left:
            return 0.0
        return min(1.0, self.settings.alpha * self.settings.gamma * (self.promotions + 1))

    def after(self, promoted: bool) -> Budget:
        """The state once one more test has ended."""
        return Budget(self.settings, self.tests + 1, self.promotions + bool(promoted))


def fold(settings: Settings, promoted: Iterable[bool]) -> Budget:
    """The state after these tests, in the order they ended."""
    budget = Budget(settings)
    for one in promoted:
        budget = budget.after(one)
    return budget


@dataclass(frozen=True, slots=True)
class Canaries:
    """Null levers that went through the whole path: `promoted` of `decided`."""

    promoted: int
    decided: int

    @property
    def upper(self) -> float:
        """Upper end of the exact 95 % interval of the false-promotion rate."""
        return clopper_pearson(self.promoted, self.decided)[1]


def clopper_pearson(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval of a rate; (0, 1) without trials."""
    if not 0 <= hits <= trials:
        raise DecisionError(f"{hits} of {trials} is no count")
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 1 - tail))
    return low, high
