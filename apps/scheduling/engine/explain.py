"""Why a job waits: the rules without which it would start now, with the numbers.

A rule binds when the job would start if that rule alone were left out. Where no single rule does it, the answer is a
smallest set of rules that do it together.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.scheduling.engine.calendar import Window
from apps.scheduling.engine.caps import caps_of, under_cap
from apps.scheduling.engine.facts import NONE, BoolArray, Gang, IntArray, Spread, Wait
from apps.scheduling.engine.placement import total_steps
from apps.scheduling.engine.rules import ALL, Rules
from apps.scheduling.engine.sums import Sums
from apps.scheduling.engine.units import BIG, FULL

if TYPE_CHECKING:
    from apps.scheduling.engine.planner import Blocked, Pass

_NOTHING = ("",)  # no rule binds: it waits by choice, for a kind that ends it earlier

Bound = tuple[tuple[str, ...], bool]  # the rules that bind, and whether they do so only together

# In the order in which they are named when several bind.
RULES = (
    "member_limit", "quota", "topology", "spread", "power", "reservation", "staging", "priority", "unhealthy",
    "resources",
)  # fmt: skip


def own_reason(walk: "Pass", gang: Gang, rank: int) -> Wait | None:
    """Why the gang itself is not ready, whatever the facility looks like."""
    now_s = walk.now_s
    if gang.is_held:
        return Wait(gang.id, "held", "It is held.", ("held",), {}, rank)
    if gang.waits_for:
        n = len(gang.waits_for)
        sentence = (
            f"It waits for {_list(gang.waits_for[:3])}"
            + (f" and {n - 3} more" if n > 3 else "")
            + " to finish well."
        )
        return Wait(gang.id, "dependency", sentence, ("dependency",), {"waits_for": n}, rank)
    not_before_s = max(gang.not_before_s, gang.retry_s)
    if not_before_s > now_s:
        walk.boundary_s = min(walk.boundary_s, not_before_s)
        left_s = not_before_s - now_s
        what = (
            "It is not to start before its time" if gang.not_before_s >= gang.retry_s else "It is tried again"
        )
        sentence = f"{what}, in {_duration(left_s)}."
        return Wait(gang.id, "not_before", sentence, ("not_before",), {"left_s": left_s}, rank, not_before_s)
    if gang.array != NONE and gang.array_max and walk.running_of_array.get(gang.array, 0) >= gang.array_max:
        sentence = f"{gang.array_max} jobs of its array run, which is as many as it allows."
        return Wait(gang.id, "dependency", sentence, ("dependency",), {"max_running": gang.array_max}, rank)
    if gang.shape.reservation != NONE:
        booking = walk.snapshot.bookings[gang.shape.reservation]
        if now_s >= booking.end_s:
            sentence = f"Its reservation {booking.name} is over."
            return Wait(gang.id, "reservation", sentence, ("reservation",), {}, rank)
        if now_s < booking.start_s:
            walk.boundary_s = min(walk.boundary_s, booking.start_s)
            sentence = f"Its reservation {booking.name} begins in {_duration(booking.start_s - now_s)}."
            return Wait(gang.id, "reservation", sentence, ("reservation",), {}, rank, booking.start_s)
    return None


_QUOTA = frozenset({"quota", "member_limit"})
_POWER, _RESOURCES = frozenset({"power"}), frozenset({"resources"})
_NONE: frozenset[str] = frozenset()
_ONE = {rule: frozenset({rule}) for rule in RULES}


@cache
def _rules_without(left_out: frozenset[str]) -> tuple[Rules, Rules, frozenset[str]]:
    """The rules that are left; the same without those of quota, which are looked at on their own; what those lack."""
    rules: Rules = replace(ALL, **dict.fromkeys(left_out, False))
    return rules, replace(rules, quota=False, member_limit=False), left_out - _QUOTA


def _is_own(code: str, facts: Mapping[str, Any]) -> bool:
    """Whether the sentence tells how long the job may run, so that none who may run longer or shorter shares it."""
    return code == "reservation" or (code == "power" and "falls_s" in facts)


class Explainer:
    """Answers for one pass; jobs of one shape, team and length share the answer.

    Args:
        other: An explainer of the same pass. What is promised may differ, what holds now does not.
    """

    def __init__(self, walk: "Pass", other: "Explainer | None" = None) -> None:
        self.walk = walk
        self._sums: Sums = Sums(walk.frame, walk.calendar.now) if other is None else other._sums
        # By shape: the kinds it accepts, each with the rules that sums alone show to forbid it now.
        self._forbidding: dict[int, tuple[tuple[int, frozenset[str]], ...]] = (
            {} if other is None else other._forbidding
        )
        # By needs, kind and rules: the longest window known to do, and the shortest known not to (in pinches).
        self._fits: dict[tuple[object, ...], tuple[float, float]] = {}
        self._words_of: dict[tuple[object, ...], tuple[str, Mapping[str, Any]]] = {}
        self._also: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._masks: dict[tuple[tuple[int, ...], int], BoolArray] = {}
        self._above: dict[int, IntArray] = {}
        self._binding: dict[tuple[int, bool, bool, bool], tuple[str, ...]] = {}
        self._known: dict[tuple[object, ...], tuple[str, tuple[str, ...], str, Mapping[str, Any]]] = {}
        # By account and what it asks of which kinds: the most states that it meets within quota, the fewest at quota.
        self._quota: dict[tuple[object, ...], tuple[float, float]] = {}
        # By all that tells them apart but the pinches they meet: what binds, by number of those, rising.
        self._bound: dict[tuple[object, ...], list[tuple[int, Bound]]] = {}

    def why_all(self, blocked: Sequence["Blocked"], expected_s: Mapping[int, float]) -> Iterator[Wait]:
        """Why none of these started: jobs of one shape that meet the same share the answer.

        Whose they are matters only at a quota, and where bookings are for some teams.
        """
        walk = self.walk
        known: dict[tuple[object, int], Wait] = {}
        families: dict[
            int, tuple[object, ...]
        ] = {}  # by class: of what it shares the answer with other teams
        within: dict[int, int] = {}  # by class: it is within quota where it meets so many states
        told: dict[
            tuple[int, int], Wait
        ] = {}  # by class and states that it meets: what is said of all of them
        promised, behind = walk.promised, walk.strictly_behind
        windows = walk.calendar.n_met([gang.limit_s for _, gang, _ in blocked])
        for (rank, gang, alike), n in zip(blocked, windows, strict=True):
            expected = expected_s.get(gang.id)
            is_apart = gang.limit_s == inf or gang.id in promised or behind is gang
            said = None if is_apart else told.get((alike, n))
            if said is not None:
                yield Wait(gang.id, said.code, said.sentence, said.blocked_by, said.facts, rank, expected)
                continue
            if is_apart or gang.shape.reservation != NONE:
                yield self.why(gang, rank, expected)
                continue
            at_quota = n > within.get(alike, 0)
            if at_quota:
                at_quota = self._is_at_quota(walk.least(gang), n)
                if not at_quota:
                    within[alike] = n
            family: object = alike
            if not at_quota:
                family = families.get(alike)
                if family is None:
                    family = families[alike] = (id(gang.shape), gang.datasets, walk.calendar.allowed(gang))
            family = (family, walk.calendar.yields(gang), gang.tier)
            said = known.get((family, n))
            if said is not None:
                told[alike, n] = said
                yield Wait(gang.id, said.code, said.sentence, said.blocked_by, said.facts, rank, expected)
                continue
            wait = self._why(gang, rank, expected)
            if not _is_own(wait.code, wait.facts):
                told[alike, n] = known[family, n] = wait
            yield wait

    def why(self, gang: Gang, rank: int, expected_s: float | None) -> Wait:
        """Why this gang did not start in the pass that is ending."""
        own = self.walk.promised.get(gang.id)
        if own is None:
            return self._why(gang, rank, expected_s)
        if self._is_certain(gang):
            return self._why(gang, rank, expected_s)
        # What is promised to it is not in its own way; what is found out without that holds for nobody else.
        calendar = self.walk.calendar
        calendar.withdraw(own)
        try:
            return Explainer(self.walk, self)._why(gang, rank, expected_s)
        finally:
            self.walk.promised[gang.id] = calendar.promise(gang, own.charge, own.start_s, own.end_s)

    def _why(self, gang: Gang, rank: int, expected_s: float | None) -> Wait:
        walk = self.walk
        gang = walk.least(gang)
        kinds = walk.kinds(gang.shape)
        windows: tuple[Window, ...]
        if gang.limit_s != inf:
            window = self._window(gang, kinds[0]) if kinds else (1, ())
            windows, at_quota = (window,), self._is_at_quota(gang, window[0])
        else:
            windows = tuple(self._window(gang, kind) for kind in kinds)
            at_quota = not all(
                walk.within_quota(gang, (window,), kind) for kind, window in zip(kinds, windows, strict=True)
            )
        # Jobs of one shape that see the same promises and bookings fare alike; whose they are matters only at a quota.
        key = (
            id(gang.shape),
            windows,
            walk.tree.account(gang) if at_quota else NONE,
            at_quota,
            gang.datasets,
            walk.strictly_behind is gang,
            walk.calendar.yields(gang),
            gang.tier,  # how little power it may start with
        )
        if key not in self._known:
            blocked_by, together = (
                self._blocked_in(gang, (walk.needs_of(gang.shape), kinds, *key[2:]), windows[0])
                if gang.limit_s != inf
                else self._blocked_by(gang)
            )
            code = blocked_by[0] if blocked_by and blocked_by != _NOTHING else "resources"
            sentence, said = self._say_better(gang) if blocked_by == _NOTHING else self._words(gang, code)
            if together:
                said["together"] = True
            self._known[key] = (code, () if blocked_by == _NOTHING else blocked_by, sentence, said)
        code, blocked_by, sentence, facts = self._known[key]
        if code == "priority":
            sentence, facts = self._say_priority(gang)  # who stands ahead is each job's own
        elif code == "reservation":
            sentence, own = self._say_reservation(gang)  # so is the limit with which it runs into one
            facts = {**facts, **own}
        elif _is_own(code, facts):
            sentence, own = self._words(gang, code)
            facts = {**facts, **own}
        return Wait(gang.id, code, sentence, blocked_by, facts, rank, expected_s)

    def _is_at_quota(self, gang: Gang, n: int) -> bool:
        """Whether its quota forbids the gang one of its kinds, in a window with so many states."""
        walk = self.walk
        key = walk.tree.account(gang), walk.steps(gang.shape), walk.kinds(gang.shape)
        within_to, at_from = self._quota.get(key, (-inf, inf))
        if within_to < n < at_from:  # what lasts longer meets more promises
            windows = ((n, ()),)
            if all(walk.within_quota(gang, windows, kind) for kind in walk.kinds(gang.shape)):
                within_to = n
            else:
                at_from = n
            self._quota[key] = within_to, at_from
        return n > within_to

    def _blocked_in(self, gang: Gang, alike: tuple[object, ...], window: Window) -> Bound:
        """As `_blocked_by`, for one of many that differ in how many promises they meet.

        Whatever starts without some rules does so for less time too. So where the same rules bind those that meet fewer
        promises and those that meet more, they bind those in between.
        """
        n, met = window
        known = self._bound.setdefault((*alike, met), [])
        place = bisect_left(known, n, key=itemgetter(0))
        if 0 < place < len(known) and known[place - 1][1] == known[place][1]:
            return known[place][1]
        found = self._blocked_by(gang)
        known.insert(place, (n, found))
        return found

    def unready(self, wait: Wait, gang: Gang, expected_s: float | None) -> Wait:
        """The same reason, and with it the rules that would bind the gang if it were ready."""
        if wait.expected_start_s is not None:
            expected_s = wait.expected_start_s
        blocked_by = wait.blocked_by
        if gang.shape.reservation == NONE:
            walk = self.walk
            gang = walk.least(gang)
            key = (
                id(gang.shape),
                gang.limit_s,
                gang.work_s,
                walk.tree.account(gang),
                gang.datasets,
                gang.tier,
            )
            also = self._also.get(key)
            if also is None:
                found, _ = self._blocked_by(gang)
                also = self._also[key] = () if found == _NOTHING else found
            blocked_by = (*blocked_by, *also)
        return replace(wait, blocked_by=blocked_by, expected_start_s=expected_s)

    def _window(self, gang: Gang, kind: int) -> Window:
        return self.walk.calendar.window_of(gang, self.walk.now_s + self.walk.duration_s(gang, kind))

    def _forbidden(self, gang: Gang) -> tuple[tuple[int, frozenset[str]], ...]:
        """The kinds it accepts, each with those rules of which sums alone show that they forbid it now."""
        shape = gang.shape
        known = self._forbidding.get(id(shape))
        if known is None:
            found: list[tuple[int, frozenset[str]]] = []
            for kind in self.walk.kinds(shape):
                needs = self.walk.needs.of(shape, kind)
                lacks_power = self._sums.lacks_power(needs, kind)
                lacks_devices = self._sums.lacks_devices(needs, kind)
                rules = (_POWER if lacks_power else _NONE) | (_RESOURCES if lacks_devices else _NONE)
                found.append((kind, rules))
            known = self._forbidding[id(shape)] = tuple(found)
        return known

    def _is_certain(self, gang: Gang) -> bool:
        """Whether the same rules bind a gang with a promise whether its promise is in its way or not.

        So it is if each kind is forbidden now by some rule, and the gang starts without each that could bind, even
        beside what it was promised itself.
        """
        gang = self.walk.least(gang)
        forbidden = self._forbidden(gang)
        if not all(rules for _, rules in forbidden):
            return False
        alone = {rules for _, rules in forbidden if len(rules) == 1}
        return bool(alone) and all(self._starts(gang, rules) for rules in alone)

    def _starts(self, gang: Gang, without: frozenset[str]) -> bool:
        walk = self.walk
        ahead = walk.strictly_behind
        if ahead is not None and ahead is not gang and "priority" not in without:
            return False
        rules, placing_rules, left_out = _rules_without(without)
        window: Window | None = None
        for kind, forbidden in self._forbidden(gang):
            if forbidden and not forbidden <= without:
                continue
            if window is None or gang.limit_s == inf:  # a declared limit is the same on every kind
                window = self._window(gang, kind)
            if not self._may_take(gang, kind, window, rules):
                continue
            # What lasts longer meets more promises: what fits does so for less, what does not will not for more.
            n_pinches, met = window
            gives = (walk.calendar.yields(gang), gang.tier)
            key = (walk.needs_of(gang.shape), kind, met, gang.datasets, left_out, gives)
            fits_to, fails_from = self._fits.get(key, (-inf, inf))
            if fits_to < n_pinches < fails_from:
                if self._has_place(gang, kind, placing_rules, by_all_rules=not without):
                    fits_to = n_pinches
                else:
                    fails_from = n_pinches
                self._fits[key] = fits_to, fails_from
            if n_pinches <= fits_to:
                return True
        return False

    def _has_place(self, gang: Gang, kind: int, rules: Rules, *, by_all_rules: bool) -> bool:
        walk = self.walk
        duration_s = walk.duration_s(gang, kind)
        if by_all_rules and gang.id not in walk.promised and walk.is_hopeless(gang, kind, duration_s):
            return (
                False  # it was looked for when no less was free; what is promised to it may stand aside now
            )
        now = walk.calendar.now
        return walk.fit(gang, kind, now, duration_s, rules=rules, named=False, whether=True) is not None

    def _may_take(self, gang: Gang, kind: int, window: Window, rules: Rules) -> bool:
        """Whether its team may, and its member: each as if the other were not asked."""
        walk, n = self.walk, window[0]
        tree, calendar, steps = walk.tree, walk.calendar, walk.steps(gang.shape)
        if rules.quota and steps and calendar.quota_left_now(gang.team, kind, n) < steps:
            return False
        account = tree.account(gang)
        if not rules.member_limit or tree.member_of(account) is None:
            return True
        return (
            calendar.member_left_now(account, kind, n) >= steps
            and calendar.member_left_now(account, tree.jobs, n) >= FULL
        )

    def _blocked_by(self, gang: Gang) -> Bound:
        """The rules that bind; and whether they do so only together."""
        is_limited = self.walk.tree.member_of(self.walk.tree.account(gang)) is not None
        key = (id(gang.shape), gang.team != NONE, is_limited, bool(gang.datasets))
        binding = self._binding.get(key)
        if binding is None:
            binding = self._binding[key] = tuple(rule for rule in RULES if self._may_bind(gang, rule))
        forbidden = self._forbidden(gang)
        if all(rules for _, rules in forbidden):
            # Sums have told of each kind what has to be left out at the least.
            alone = {rules for _, rules in forbidden}
            asked = tuple(rule for rule in binding if _ONE[rule] in alone)
        elif self._starts(gang, _NONE):
            return _NOTHING, False
        else:
            asked = binding
        single = tuple(rule for rule in asked if self._starts(gang, _ONE[rule]))
        if single:
            return single, False
        left_out = set(binding)
        if not self._starts(gang, frozenset(left_out)):
            return (), False
        for rule in reversed(RULES):  # keep as few as will do, and rather those that say more
            if rule in left_out and self._starts(gang, frozenset(left_out - {rule})):
                left_out.discard(rule)
        return tuple(rule for rule in RULES if rule in left_out), True

    def _may_bind(self, gang: Gang, rule: str) -> bool:
        walk = self.walk
        if rule == "member_limit":
            return walk.tree.member_of(walk.tree.account(gang)) is not None
        if rule == "quota":
            return bool(walk.tree.teams) and gang.team != NONE
        if rule == "topology":
            return any(ask.required is not None for ask in gang.shape.asks)
        if rule == "spread":
            return any(ask.spread is not None for ask in gang.shape.asks)
        if rule == "staging":
            return bool(gang.datasets)
        if rule == "power":
            return walk.frame.has_limits
        if rule == "reservation":
            return bool(walk.calendar.bookings)
        if rule == "priority":
            return walk.strictly_behind is not None or bool(walk.reserves)
        if rule == "unhealthy":
            return not bool(walk.snapshot.is_usable.all())
        return True

    # -- words --------------------------------------------------------------------------------------------------------

    def _words(self, gang: Gang, code: str) -> tuple[str, dict[str, Any]]:
        said: tuple[str, dict[str, Any]]
        is_own = code in ("priority", "reservation") or (
            code == "power" and bool(len(self.walk.calendar.limit_steps.times))
        )
        if is_own:  # each job's own
            said = getattr(self, f"_say_{code}")(gang)
            return said
        whose = self.walk.tree.account(gang) if code in _QUOTA else NONE
        key = (code, id(gang.shape), whose, gang.tier, gang.datasets)
        if key not in self._words_of:
            self._words_of[key] = getattr(self, f"_say_{code}")(gang)
        sentence, facts = self._words_of[key]
        return sentence, dict(facts)

    def _kind_names(self, gang: Gang) -> str:
        kinds = self.walk.kinds(gang.shape)
        if not total_steps(gang.shape):
            return "nodes"
        if len(kinds) == len(self.walk.frame.kinds) and len(kinds) > 1:
            return "devices"
        return " or ".join(self.walk.frame.kinds[k].name for k in kinds[:3]) or "devices"

    def _mask(self, gang: Gang) -> BoolArray:
        """(n,) nodes of the types it accepts that it may use."""
        walk = self.walk
        key = (walk.kinds(gang.shape), id(walk.may_use(gang)))  # the walk keeps what it answers
        if key not in self._masks:
            mask = np.zeros(walk.frame.n_nodes, dtype=bool)
            for kind in walk.kinds(gang.shape):
                mask |= walk.frame.kind_mask[kind]
            self._masks[key] = mask & walk.may_use(gang)
        return self._masks[key]

    def _say_better(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        frame = self.walk.frame
        kinds = frame.kinds
        promised = next((r for r in self.walk.reserves if r.job_id == gang.id), None)
        if promised is not None:
            best = int(frame.kind[promised.placing[0].node])
        else:
            best = max(self.walk.kinds(gang.shape), key=lambda k: kinds[k].speed)
        return f"It waits for {kinds[best].name}, on which it ends earlier.", {
            "accelerator": kinds[best].name
        }

    def _say_quota(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        kind = next(k for k in walk.kinds(gang.shape) if walk.tree.limited[k])
        state, tree, team = walk.calendar.now, walk.tree, gang.team
        used, owned = int(state.use[team, kind]), int(tree.subtree[team, kind])
        left = max(0, tree.available(state.use, team, kind))
        need = total_steps(gang.shape)
        name = walk.frame.kinds[kind].name
        facts = {
            "team": walk.snapshot.teams[team].name,
            "accelerator": name,
            "asked": _devices(need),
            "used": _devices(used),
            "entitled": _devices(owned),
            "left": _devices(left) if left < BIG else None,
        }
        sentence = (
            f"{facts['team']} is at quota: {facts['used']} of {facts['entitled']} {name} in use, "
            f"{facts['left']} left with borrowing; it asks {facts['asked']}."
        )
        return sentence, facts

    def _say_member_limit(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk, tree = self.walk, self.walk.tree
        account, steps = tree.account(gang), walk.steps(gang.shape)
        member = tree.member_of(account)
        assert member is not None
        use, team = walk.calendar.now.use[account], walk.snapshot.teams[member.team].name
        facts: dict[str, Any] = {"member": member.name, "team": team}

        def sentence(used: float, most: int, what: str, verb: str, asked: float | None) -> str:
            whose = f"they may {verb} in {team}" if member.is_named else f"one member of {team} may {verb}"
            asks = "" if asked is None else f"; it asks {asked}"
            if used + (asked or 1) <= most:  # not now, but while a promised one runs
                return f"The rest of the {most} {what} that {whose} is promised to earlier jobs of {member.name}{asks}."
            return f"{member.name} runs {used} of the {most} {what} that {whose}{asks}."

        limited = [k for k in walk.kinds(gang.shape) if k in member.devices and steps]
        most_jobs, jobs_left = member.running_jobs, walk.calendar.member_left_now(account, tree.jobs, 1)
        if most_jobs is not None and (jobs_left < FULL or not limited):
            n_jobs = int(use[tree.jobs]) // FULL
            facts |= {"running_jobs": n_jobs, "most_running_jobs": most_jobs}
            return sentence(n_jobs, most_jobs, "jobs", "run at once", None), facts
        kind = min(limited, key=lambda k: walk.calendar.member_left_now(account, k, 1))
        used, asked = _devices(int(use[kind])), _devices(steps)
        name, most = walk.frame.kinds[kind].name, member.devices[kind]
        facts |= {"accelerator": name, "asked": asked, "used": used, "most": most}
        return sentence(used, most, name, "hold", asked), facts

    def _say_topology(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        ask = next(ask for ask in gang.shape.asks if ask.required is not None)
        level = ask.required or ""
        free = np.where(self._mask(gang), np.maximum(walk.calendar.now.whole, 0), 0)
        room = free // ask.devices if ask.devices else free
        by_domain = np.bincount(walk.frame.level[level], weights=room)
        best = int(by_domain.max(initial=0))
        facts = {
            "level": level,
            "asked_replicas": ask.n_replicas,
            "best_replicas": best,
            "devices": ask.devices,
        }
        what = level.replace("_", "-")
        each = f" of {ask.devices} devices" if ask.devices > 1 else ""
        return f"No {what} has room for {ask.n_replicas} replicas{each}; the best has room for {best}.", facts

    def _say_spread(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        ask = next(ask for ask in gang.shape.asks if ask.spread is not None)
        spread = ask.spread
        assert spread is not None
        ids = self.walk.frame.domain_ids(spread.over)
        free = np.where(self._mask(gang), np.maximum(self.walk.calendar.now.whole, 0), 0)
        room = free // ask.devices if ask.devices else free
        n_free = len(np.unique(ids[(room > 0) & (ids != NONE)]))
        facts = {"over": spread.over, "asked_replicas": ask.n_replicas, "domains_with_room": n_free}
        if spread.max_per_domain is not None:
            facts["max_per_domain"] = spread.max_per_domain
        else:
            facts["max_skew"] = spread.max_skew or 0
        return f"It asks for {spread_words(spread)}; {n_free} such domains have room now.", facts

    def _say_staging(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        ready = walk.data.ready_s(gang)
        assert ready is not None
        mask = self._mask(gang)
        soonest_s = float(ready[mask].min(initial=inf))
        names = tuple(walk.snapshot.datasets[d].name for d in gang.datasets)
        left = (
            ""
            if soonest_s == inf
            else f" They could be there in {_duration(max(0.0, soonest_s - walk.now_s))}."
        )
        facts = {"datasets": list(names), "soonest_s": soonest_s}
        return f"The nodes that are free have no copy of {_list(names[:3])} yet.{left}", facts

    def _say_power(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        frame = walk.frame
        need_uw = 0
        kinds = walk.kinds(gang.shape)
        caps = caps_of(gang, frame.kinds[kinds[0]]) if kinds else ()
        # It would start under the deepest cap that its tier bears.
        least_shape = under_cap(gang, frame.kinds[kinds[0]], caps[-1][0]).shape if caps else gang.shape
        for ask in least_shape.asks:
            if ask.devices or ask.share_steps:
                kind = walk.kinds(gang.shape)[0]
                need_uw += frame.draw(ask.devices, ask.share_steps, kind, ask.peak_w) * ask.n_replicas
        head = walk.calendar.now.head[:-1]
        mask = self._mask(gang)
        if id(mask) not in self._above:
            above = np.unique(frame.paths[mask])
            self._above[id(mask)] = (
                above[above < len(head)] if (above < len(head)).any() else np.arange(len(head))
            )
        above = self._above[id(mask)]
        short = above[head[above] < need_uw]
        if not len(short) and (ahead := self._falls_ahead(gang, above, need_uw)) is not None:
            return ahead
        short = short if len(short) else above
        # The highest domain that is short names the trouble best: everything below it is short for the same reason.
        worst = int(short[np.lexsort((short, head[short], -frame.n_under[short]))[0]])
        domain = frame.domains[int(frame.limited[worst])]
        left_w = max(0.0, int(head[worst]) / 1e6)
        facts = {"domain": domain.name, "kind": domain.kind, "need_w": need_uw / 1e6, "headroom_w": left_w}
        least = "at least " if caps else ""
        sentence = f"{domain.name} has {_watts(left_w)} left; it needs {least}{_watts(need_uw / 1e6)}."
        rise = self._next_rise(worst)
        if rise is not None:
            at_s, limit_w = rise
            facts |= {"rises_s": at_s, "rises_to_w": None if limit_w == inf else limit_w}
            to = "ends" if limit_w == inf else f"rises to {_watts(limit_w)}"
            sentence += f" Its limit {to} in {_duration(at_s - walk.now_s)}."
        return sentence, facts

    def _falls_ahead(self, gang: Gang, above: IntArray, need_uw: int) -> tuple[str, dict[str, Any]] | None:
        """Where there is enough now: the first limit that falls too low before the job would end; None: none does."""
        walk, frame = self.walk, self.walk.frame
        until_s = walk.now_s + max((walk.duration_s(gang, k) for k in walk.kinds(gang.shape)), default=0.0)
        falls_s = set(walk.calendar.limit_steps.falls_s)
        for state in walk.calendar.pinches:
            if state.at_s >= until_s:
                break
            if state.at_s not in falls_s:
                continue
            head = walk.calendar.head_for(gang, state)
            short = above[head[above] < need_uw]
            if not len(short):
                continue
            worst = int(short[np.lexsort((short, head[short], -frame.n_under[short]))[0]])
            domain = frame.domains[int(frame.limited[worst])]
            left_w, in_s = max(0.0, int(head[worst]) / 1e6), state.at_s - walk.now_s
            limit_w = self._limit_at(int(frame.limited[worst]), state.at_s)
            facts = {
                "domain": domain.name,
                "kind": domain.kind,
                "need_w": need_uw / 1e6,
                "headroom_w": left_w,
                "falls_s": state.at_s,
                "falls_to_w": limit_w,
            }
            runs = (
                "it declares no limit" if until_s == inf else f"it may run {_duration(until_s - walk.now_s)}"
            )
            sentence = (
                f"The limit of {domain.name} falls to {_watts(limit_w)} in {_duration(in_s)}, which leaves"
                f" {_watts(left_w)}; it needs {_watts(need_uw / 1e6)}, and {runs}."
            )
            rise = self._next_rise(worst, state.at_s)
            if rise is not None:
                facts["rises_s"] = rise[0]
                sentence += f" It rises again in {_duration(rise[0] - walk.now_s)}."
            return sentence, facts
        return None

    def _limit_at(self, domain: int, at_s: float) -> float:
        """The limit of a domain then, as it is set."""
        known = [c for c in self.walk.snapshot.limit_changes if c.domain == domain and c.at_s <= at_s]
        last = max(known, key=lambda c: c.at_s, default=None)
        return self.walk.frame.domains[domain].limit_w if last is None else last.limit_w

    def _next_rise(self, limit: int, after_s: float = -inf) -> tuple[float, float] | None:
        """When a limit is next higher than now (or than at an instant), and how high; None: it stays, or falls."""
        domain = int(self.walk.frame.limited[limit])
        start_s = max(after_s, self.walk.now_s)
        now_w = self._limit_at(domain, start_s)
        rises = [
            (c.at_s, c.limit_w)
            for c in self.walk.snapshot.limit_changes
            if c.domain == domain and c.at_s > start_s and c.limit_w > now_w
        ]
        return min(rises, default=None)

    def _say_reservation(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        calendar = walk.calendar
        others = [b for i, b in enumerate(calendar.bookings) if i not in calendar.allowed(gang)]
        if gang.shape.reservation != NONE:
            booking = walk.snapshot.bookings[gang.shape.reservation]
            return f"It does not fit into what is left of its reservation {booking.name}.", {
                "reservation": booking.name
            }
        booking = min(others or calendar.bookings, key=lambda b: (b.start_s, b.end_s))
        facts: dict[str, Any] = {
            "reservation": booking.name,
            "start_s": booking.start_s,
            "end_s": booking.end_s,
        }
        if booking.start_s > walk.now_s:
            left = booking.start_s - walk.now_s
            facts["fits_under_s"] = left
            if gang.limit_s == inf:
                return f"It would run into {booking.name} in {_duration(left)}; it declares no limit.", facts
            return (
                f"It would run into {booking.name} in {_duration(left)}; its limit is {_duration(gang.limit_s)}.",
                facts,
            )
        return (
            f"{booking.name} holds what it would need, for another {_duration(booking.end_s - walk.now_s)}.",
            facts,
        )

    def _say_priority(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        if walk.strictly_behind is not None:
            return "It stands behind a job that waits, and the order is strict.", {"ahead": 1}
        useful = self._mask(gang)
        ahead = []
        for reserve in walk.reserves:
            if reserve.job_id == gang.id:
                break  # promises are made in order: those behind are in nobody's way here
            if any(useful[share.node] for share in reserve.placing):
                ahead.append(reserve)
        first_s = min((r.start_s for r in ahead), default=None)
        jobs = "1 job that ranks higher is" if len(ahead) == 1 else f"{len(ahead)} jobs that rank higher are"
        return f"{jobs} promised the devices it would need.", {"ahead": len(ahead), "first_start_s": first_s}

    def _say_unhealthy(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        kinds = np.zeros(walk.frame.n_nodes, dtype=bool)
        for kind in walk.kinds(gang.shape):
            kinds |= walk.frame.kind_mask[kind]
        out = int((kinds & ~walk.snapshot.is_usable).sum())
        return f"{out} of the {int(kinds.sum())} nodes it could use are out of service.", {
            "out": out,
            "of": int(kinds.sum()),
        }

    def _say_resources(self, gang: Gang) -> tuple[str, dict[str, Any]]:
        walk = self.walk
        mask = self._mask(gang)
        need = total_steps(gang.shape)
        names = self._kind_names(gang)
        capacity = int(walk.frame.n_devices[mask].sum())
        free_steps = int(np.add.reduceat(walk.calendar.now.dev, walk.frame.offset[:-1])[mask].sum())
        facts = {
            "asked": _devices(need),
            "free": _devices(free_steps),
            "capacity": capacity,
            "accelerator": names,
        }
        if not need:
            return "No node has the cpus or the memory it asks for free.", facts
        if need > capacity * FULL:
            return f"It asks {facts['asked']} {names}; {capacity} are in service.", facts
        if free_steps >= need:
            ask = max(gang.shape.asks, key=lambda a: a.devices)
            room = int(np.where(mask, walk.calendar.now.whole // max(ask.devices, 1), 0).clip(0).sum())
            facts["replicas_that_fit"] = room
            if ask.devices > 1 and room < ask.n_replicas:
                if ask.n_replicas == 1:
                    said = (
                        f"No node has {ask.devices} {names} free together; {facts['free']} are free in all."
                    )
                else:
                    said = (
                        f"It asks {ask.n_replicas} times {ask.devices} {names} together; of the {facts['free']} that "
                        f"are free, {room * ask.devices} lie so."
                    )
                return said, facts
            return (
                f"{facts['free']} {names} are free, but not with the cpus and the memory it asks for.",
                facts,
            )
        return f"{facts['free']} of the {facts['asked']} {names} it asks for are free.", facts


def spread_words(spread: Spread) -> str:
    """What a job asks when it wants its replicas apart."""
    over = spread.over.replace("_", "-")
    if spread.max_per_domain is not None:
        return f"at most {spread.max_per_domain} in one {over}"
    return f"a skew of at most {spread.max_skew} over {over} domains"


def _devices(steps: int) -> float | int:
    return steps // FULL if steps % FULL == 0 else round(steps / FULL, 6)


def _watts(watts: float) -> str:
    return f"{watts / 1000:.1f} kW" if watts >= 1000 else f"{watts:.0f} W"


def _duration(seconds: float) -> str:
    if seconds == inf:
        return "an unknown time"
    whole = round(seconds)
    parts = [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    words: list[str] = []
    for size, unit in parts:
        if whole >= size or (unit == "s" and not words):
            words.append(f"{whole // size} {unit}")
            whole %= size
        elif words:
            break
        if len(words) == 2:
            break
    return " ".join(words)


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
