"""In which order the queue is looked at, and the words that explain it."""

from collections.abc import Sequence

from apps.scheduling.engine.facts import NONE, Gang, Policy, Snapshot, Team

OrderKey = tuple[object, ...]


def fair_shares(teams: Sequence[Team], capacity: Sequence[int]) -> list[float]:
    """Each team's decayed use against its weight: the largest over kinds of use by its subtree over capacity.

    Args:
        teams: The tree; `decayed_use_s` of a team is its own jobs' use.
        capacity: Devices of each kind.

    Returns:
        Device-seconds per device of capacity and unit of weight, (t,). Lower goes first.

    Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, with decayed use in place of current holdings.
    """
    use: list[dict[int, float]] = [dict(team.decayed_use_s) for team in teams]
    for i in sorted(range(len(teams)), key=lambda i: -_depth(teams, i)):
        parent = teams[i].parent
        if parent != NONE:
            for kind, seconds in use[i].items():
                use[parent][kind] = use[parent].get(kind, 0.0) + seconds
    return [
        # Rounded: what differs by less than a millionth of a second a device is equal.
        round(
            max((s / max(capacity[k], 1) for k, s in sorted(use[i].items())), default=0.0) / teams[i].weight,
            6,
        )
        for i in range(len(teams))
    ]


def _depth(teams: Sequence[Team], i: int) -> int:
    depth = 0
    while teams[i].parent != NONE:
        i, depth = teams[i].parent, depth + 1
    return depth


def order_queue(snapshot: Snapshot, policy: Policy) -> list[Gang]:
    """The queue, first come first: priority, fair share, submit time, deadline, then what was logged first."""
    if policy.order == "submit":
        return sorted(snapshot.queue, key=lambda g: (g.submitted_s, g.deadline_s, g.sequence))
    facility = snapshot.facility
    capacity = [0] * len(facility.kinds)
    for kind, devices in zip(facility.kind.tolist(), facility.n_devices.tolist(), strict=True):
        capacity[kind] += devices
    shares = fair_shares(snapshot.teams, capacity)
    paths: list[tuple[float, ...]] = []
    for i in range(len(snapshot.teams)):
        path, at = [], i
        while at != NONE:
            path.append(shares[at])
            at = snapshot.teams[at].parent
        paths.append(tuple(reversed(path)))  # compared from the top of the tree down

    def key(gang: Gang) -> OrderKey:
        share = paths[gang.team] if gang.team != NONE and paths else ()
        last = (gang.submitted_s, gang.deadline_s, gang.sequence)
        if policy.order != "shortest":
            return (-gang.priority, share, *last)
        # Whoever has waited too long is served in order of submission, so that nobody is passed for ever.
        starves = snapshot.now_s - gang.submitted_s >= policy.starving_s
        expected_s = 0.0 if starves else min(gang.predicted_s, gang.limit_s, gang.work_s)
        return (-gang.priority, not starves, share, expected_s, *last)

    return sorted(snapshot.queue, key=key)
