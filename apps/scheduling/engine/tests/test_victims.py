"""What sums say of victims: who finds nobody by them finds nobody by trying either."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.engine.facts import Gang, Policy, Snapshot
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.preempt import Preemptor, Room
from apps.scheduling.engine.tests.scenes import elastic_scenes, scenes
from apps.scheduling.engine.tests.test_invariants import SCENES

_on_kind, _rights_of = Preemptor._on_kind, Preemptor._rights_of


@SCENES
@given(st.one_of(scenes(), elastic_scenes()))
def test_nobody_is_refused_by_sums_who_finds_victims_by_trying(scene: Snapshot) -> None:
    def both(self: Preemptor, gang: Gang, kind: int, duration_s: float) -> Room | None:
        room = _on_kind(self, gang, kind, duration_s)
        if room is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Preemptor, "_rights_of", lambda *_: None)
                assert _on_kind(self, gang, kind, duration_s) is None
        return room

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preemptor, "_on_kind", both)
        plan(scene, Policy(backfill_depth=1, explain=False))
