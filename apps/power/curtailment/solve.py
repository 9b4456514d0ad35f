"""Which option for which job: least missing, then least lost, then fewest jobs, then least shed.

Small problems are solved exactly: with one limit by dominance, else by HiGHS through `scipy.optimize.milp`; larger
ones by the linear relaxation, rounded up and trimmed; where neither says anything, by a greedy pass that serves as an
instant preview as well. Every answer is recounted in whole microwatts. Nothing depends on how fast the machine is: the
solver is bounded by nodes of its search, never by time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from apps.power.curtailment.facts import Curtailment, Problem
from apps.power.curtailment.one_limit import cheapest
from apps.power.curtailment.quiet import without_chatter

EXACT_UP_TO: Final = 200  # candidates with a choice
TO_THE_LAST_UP_TO: Final = (
    60  # options: up to so many every rule is proved; above, the least cost to a thousandth
)
CLOSE: Final = 1e-3
GREEDY_BESIDE: Final = 500  # up to so many the greedy answer is looked at beside the relaxed one
MAX_NODES: Final = 5_000
_KILO: Final = 1e9  # microwatts in a kilowatt: numbers near one suit the solver

FloatArray = NDArray[np.float64]


def solve(problem: Problem, *, exact_up_to: int = EXACT_UP_TO) -> Curtailment:
    """Choose one option for each candidate."""
    model = _Model(problem)
    if not model.columns or not model.needs.any():
        return model.answer(model.nothing(), 0.0, "exact")
    n_free = len({column.candidate for column in model.columns})
    if exact_up_to and np.count_nonzero(model.needs) == 1:
        alone = _of_one_limit(model)
        if alone is not None:
            return alone
    if n_free <= exact_up_to:
        answer = _exact(model)
        if answer is not None:
            return answer
    relaxed = _relaxed(model)
    if relaxed is not None and n_free > GREEDY_BESIDE:
        return model.answer(*relaxed, "relaxed")
    by_greed = model.trimmed(_greedy_choices(model))
    if relaxed is None:
        return model.answer(by_greed, 0.0, "greedy")
    choices, bound = relaxed
    if model.cost(by_greed) < model.cost(choices) and model.missing(by_greed) <= model.missing(choices):
        return model.answer(by_greed, bound, "greedy")
    return model.answer(choices, bound, "relaxed")


def greedy(problem: Problem) -> Curtailment:
    """A good answer at once, without a bound: for a preview that follows a slider."""
    model = _Model(problem)
    return model.answer(model.trimmed(_greedy_choices(model)), 0.0, "greedy")


@dataclass(frozen=True, slots=True)
class _Column:
    candidate: int
    option: int
    cost_ms: int


class _Model:
    """A problem as arrays: a row for each limit, a column for each option that does something."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.n_limits = len(problem.limits)
        self.columns = [
            _Column(c, o, option.cost_ms)
            for c, candidate in enumerate(problem.candidates)
            for o, option in enumerate(candidate.options)
            if o
        ]
        self.sheds = np.zeros((len(self.columns), self.n_limits), dtype=np.int64)
        at = {}
        for i, column in enumerate(self.columns):
            at[column.candidate, column.option] = i
            for limit, watts in problem.candidates[column.candidate].options[column.option].shed_uw:
                self.sheds[i, limit] = watts
        self.at = at
        most = np.zeros((len(problem.candidates), self.n_limits), dtype=np.int64)
        for i, column in enumerate(self.columns):
            np.maximum(most[column.candidate], self.sheds[i], out=most[column.candidate])
        self.most = most.sum(axis=0)
        wanted = np.array([max(0, limit.need_uw) for limit in problem.limits], dtype=np.int64)
        # What no plan can reach is not asked of one: what is left missing is then the least there can be.
        self.needs = np.minimum(wanted, self.most)
        self.wanted = wanted

    def nothing(self) -> list[int]:
        return [0] * len(self.problem.candidates)

    def shed(self, choices: Sequence[int]) -> NDArray[np.int64]:
        total = np.zeros(self.n_limits, dtype=np.int64)
        for candidate, choice in enumerate(choices):
            if choice:
                total += self.sheds[self.at[candidate, choice]]
        return total

    def cost(self, choices: Sequence[int]) -> int:
        return sum(
            candidate.options[choice].cost_ms
            for candidate, choice in zip(self.problem.candidates, choices, strict=True)
        )

    def missing(self, choices: Sequence[int]) -> int:
        return int(np.maximum(0, self.needs - self.shed(choices)).sum())

    def answer(self, choices: Sequence[int], bound_ms: float, method: str) -> Curtailment:
        short = np.maximum(0, self.wanted - self.shed(choices))
        return Curtailment(
            tuple(choices),
            tuple(short.tolist()),
            tuple(self.most.tolist()),
            self.cost(choices),
            bound_ms,
            method,
        )

    def trimmed(self, choices: list[int]) -> list[int]:
        """With every job put back to the cheapest option that the limits bear, the dearest jobs first."""
        choices = list(choices)
        spare = self.shed(choices) - self.needs
        candidates = self.problem.candidates
        order = sorted(
            (c for c, choice in enumerate(choices) if choice),
            key=lambda c: (-candidates[c].options[choices[c]].cost_ms, c),
        )
        for c in order:
            options = candidates[c].options
            now = self.sheds[self.at[c, choices[c]]]
            for o in sorted(range(len(options)), key=lambda o: (options[o].cost_ms, o)):
                if options[o].cost_ms >= options[choices[c]].cost_ms:
                    break
                then = self.sheds[self.at[c, o]] if o else np.zeros(self.n_limits, dtype=np.int64)
                after = spare - now + then
                if ((after >= 0) | (after >= spare)).all():
                    choices[c], spare = o, after
                    break
        return choices

    def rows(self) -> tuple[csr_array, FloatArray, csr_array]:
        """(sheds in kW by limit and column, needs in kW, columns by candidate); of limits that ask for something."""
        asks = np.flatnonzero(self.needs)
        sheds = csr_array(self.sheds[:, asks].T / _KILO)
        of = np.array([column.candidate for column in self.columns])
        one = csr_array((np.ones(len(of)), (of, np.arange(len(of)))))
        return sheds, self.needs[asks] / _KILO, one[np.unique(of)]


def _of_one_limit(model: _Model) -> Curtailment | None:
    """The best by every rule in turn where one limit alone asks; None where there is too much to go through."""
    (limit,) = np.flatnonzero(model.needs)
    free = [c for c, candidate in enumerate(model.problem.candidates) if len(candidate.options) > 1]
    sheds, costs = [], []
    for c in free:
        n = len(model.problem.candidates[c].options)
        mine = range(model.at[c, 1], model.at[c, 1] + n - 1)
        sheds.append(np.concatenate(([0], model.sheds[mine.start : mine.stop, limit])))
        costs.append(np.array([0, *(model.columns[i].cost_ms for i in mine)], dtype=np.int64))
    close = 0.0 if len(model.columns) <= TO_THE_LAST_UP_TO else CLOSE
    found = cheapest(sheds, costs, int(model.needs[limit]), close=close)
    if found is None:
        return None
    choices = model.nothing()
    for c, option in zip(free, found.choices, strict=True):
        choices[c] = option
    return model.answer(_later_first(model, choices), min(found.bound, float(model.cost(choices))), "exact")


def _exact(model: _Model, margin_kw: float = 0.0) -> Curtailment | None:
    """The best by every rule in turn; None where the search ends without a proof."""
    sheds, exact_needs, one = model.rows()
    n = len(model.columns)
    needs = exact_needs + margin_kw
    costs = np.array([column.cost_ms for column in model.columns], dtype=np.float64)
    scale = max(1.0, float(costs.max()))
    reach = LinearConstraint(sheds, needs * (1 - 1e-9) - 1e-9, np.inf)
    single = LinearConstraint(one, -np.inf, 1)
    is_small = n <= TO_THE_LAST_UP_TO
    found = _search(costs / scale, [reach, single], gap=0.0 if is_small else CLOSE)
    if found is None:
        return None
    first, bound = found
    if not is_small:
        choices = model.trimmed(_picked(model, first))
        return None if model.missing(choices) else model.answer(choices, bound * scale, "exact")
    # Of what the columns stand for, not of what the solver's tolerance makes of them.
    bound_ms = float(model.cost(_picked(model, first)))
    # Among those that cost no more: fewest jobs, then least shed.
    dearest = LinearConstraint(csr_array(costs[None, :] / scale), -np.inf, bound_ms / scale + 1e-9)
    totals = model.sheds.sum(axis=1).astype(np.float64)
    touches = np.ones(n) + totals / (2.0 * max(1.0, float(totals.sum())))
    second = _search(touches, [reach, single, dearest], proved=False)
    choices = _picked(model, first if second is None else second[0])
    if model.missing(choices):
        # The solver calls a milliwatt too few enough; asked for two more it finds what is.
        return None if margin_kw else _exact(model, 2e-6)
    return model.answer(_later_first(model, choices), min(bound_ms, float(model.cost(choices))), "exact")


def _picked(model: _Model, columns: FloatArray) -> list[int]:
    choices = model.nothing()
    for i in np.flatnonzero(columns > 0.5).tolist():
        choices[model.columns[i].candidate] = model.columns[i].option
    return choices


def _search(
    costs: FloatArray, constraints: list[LinearConstraint], *, gap: float = 0.0, proved: bool = True
) -> tuple[FloatArray, float] | None:
    """(columns, lower bound); None where there are none, or where the search ends without the proof asked for."""
    with without_chatter():
        found = milp(
            costs,
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={
                "node_limit": MAX_NODES if proved else MAX_NODES // 10,
                "mip_rel_gap": gap,
                "disp": False,
            },
        )
    if found.x is None or (found.status != 0 and proved):
        return None
    return found.x, float(found.mip_dual_bound)


def _later_first(model: _Model, choices: list[int]) -> list[int]:
    """Of jobs that differ in nothing the later ones are touched, and the harder."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for c, candidate in enumerate(model.problem.candidates):
        alike.setdefault((candidate.tier, candidate.n_devices, candidate.options), []).append(c)
    settled = list(choices)
    for group in alike.values():
        for c, choice in zip(group, sorted(choices[c] for c in group), strict=True):
            settled[c] = choice
    return settled


def _relaxed(model: _Model) -> tuple[list[int], float] | None:
    """(choices, bound): the linear relaxation, every job that it splits given the heaviest of its parts, trimmed."""
    sheds, needs, one = model.rows()
    costs = np.array([column.cost_ms for column in model.columns], dtype=np.float64)
    scale = max(1.0, float(costs.max()))
    above = vstack([-sheds, one]).tocsr()
    limits = np.concatenate([-needs * (1 - 1e-9) + 1e-9, np.ones(one.shape[0])])
    found = linprog(costs / scale, A_ub=above, b_ub=limits, bounds=(0, 1), method="highs")
    if found.status != 0:
        return None
    choices = model.nothing()
    for i in np.flatnonzero(found.x > 1e-7).tolist():
        column = model.columns[i]
        held = choices[column.candidate]
        if not held or model.sheds[i].sum() > model.sheds[model.at[column.candidate, held]].sum():
            choices[column.candidate] = column.option
    if model.missing(choices):
        choices = _greedy_choices(model, choices)
    return model.trimmed(choices), float(found.fun) * scale


def _greedy_choices(model: _Model, choices: list[int] | None = None) -> list[int]:
    """The step that costs least for each watt that is still missing, again and again."""
    choices = model.nothing() if choices is None else list(choices)
    left = model.needs - model.shed(choices)
    of = np.array([column.candidate for column in model.columns])
    costs = np.array([column.cost_ms for column in model.columns], dtype=np.float64)
    base_shed = np.zeros_like(model.sheds)
    base_cost = np.zeros(len(costs))
    for c, choice in enumerate(choices):
        if choice:
            mine = of == c
            base_shed[mine] = model.sheds[model.at[c, choice]]
            base_cost[mine] = costs[model.at[c, choice]]
    while (left > 0).any():
        asks = np.flatnonzero(left > 0)
        more = model.sheds[:, asks] - base_shed[:, asks]
        useful = np.minimum(np.maximum(more, 0), left[asks]).sum(axis=1).astype(np.float64)
        # A step that gives back where something is missing is none.
        able = (useful > 0) & (more >= 0).all(axis=1)
        if not able.any():
            break
        score = np.where(able, np.maximum(costs - base_cost, 0.0) / np.maximum(useful, 1.0), np.inf)
        i = int(np.argmin(score))
        c = model.columns[i].candidate
        left = left - (model.sheds[i] - base_shed[i])
        choices[c] = model.columns[i].option
        mine = of == c
        base_shed[mine], base_cost[mine] = model.sheds[i], costs[i]
    return choices
