"""Keeps passes for replay, in the database, so that any process of the site can hand them out.

Refused passes are always kept, the last few; every other pass only while `SWITCHYARD_KEPT_DUMPS` says so.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from apps.core.errors import NotFound
from apps.scheduling import dump, policies
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Fault, Plan
from apps.scheduling.models import Pass, PassDump
from apps.scheduling.snapshot import Taken, take_snapshot
from apps.teams.models import User

KEPT_REFUSED: Final = 20
_MOST_FAULTS: Final = 1000
_log = logging.getLogger(__name__)


def keep(this: Pass, taken: Taken, plan: Plan, faults: Sequence[Fault] = (), *, at: datetime) -> None:
    """Keep a pass if it was refused, or if every pass is to be kept. A pass never fails for this."""
    n_kept = KEPT_REFUSED if faults else settings.SWITCHYARD_KEPT_DUMPS
    if not n_kept:
        return
    try:
        content = dump.to_bytes(dump_of(taken, plan, faults, pass_id=this.pk))
    except Exception:
        # What cannot be dumped is a mistake of ours; what the pass decided must be written all the same.
        _log.exception("Pass %s cannot be dumped", this.pk)
        return
    with transaction.atomic():
        PassDump.objects.update_or_create(
            planner_pass=this,
            defaults={"kept_at": at, "is_refused": bool(faults), "content": content},
        )
        of_its_sort = PassDump.objects.filter(is_refused=bool(faults))
        newest = of_its_sort.order_by("-planner_pass").values("planner_pass")[:n_kept]
        of_its_sort.exclude(planner_pass__in=newest).delete()


def dump_of(
    taken: Taken, plan: Plan, faults: Sequence[Fault] = (), *, pass_id: int | None = None
) -> dump.Dump:
    """A pass of the present as a dump."""
    about: dict[str, Any] = {"at": taken.at.isoformat(), "pass_id": pass_id}
    if faults:
        about["faults"] = [
            {"rule": fault.rule, "job_id": fault.job_id, "message": fault.message}
            for fault in faults[:_MOST_FAULTS]
        ]
    return dump.Dump(taken.snapshot, taken.policy, plan, about)


def dump_now(at: datetime) -> dump.Dump:
    """What a pass would see and decide now; nothing of it is written."""
    taken = take_snapshot(at)
    return dump_of(taken, planner.plan(taken.snapshot, taken.policy))


def kept(pass_id: int | None = None) -> bytes:
    """The dump of a pass, or of the last pass that was kept; raises NotFound."""
    found = PassDump.objects.order_by("-planner_pass")
    if pass_id is not None:
        found = found.filter(planner_pass=pass_id)
    content = found.values_list("content", flat=True).first()
    if content is None:
        what = "No pass was kept." if pass_id is None else "This pass was not kept, or not for so long."
        raise NotFound(what, pass_id=pass_id)
    return bytes(content)


def kept_for(viewer: User, pass_id: int) -> bytes:
    """The dump of a pass for one who looks after the facility or audits it, without names of jobs: a dump is made
    to be handed on. Raises Forbidden, NotFound.
    """
    policies.require_may_read_dumps(viewer)
    return dump.to_bytes(dump.anonymous(dump.from_bytes(kept(pass_id))))
