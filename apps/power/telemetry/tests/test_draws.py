"""What a device draws under a job: quantiles that are never below what was measured, and whose word counts."""

from math import ceil, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.telemetry.draws import (
    BIN_W,
    LEAST_LOOKS,
    Draws,
    JobPower,
    Source,
    bin_of,
    counted,
    measured_of,
    over_types,
    power_of,
)

watts = st.floats(0, 2_000, allow_nan=False)


def seen(looks: list[list[float]]) -> Draws:
    draws = Draws()
    for look in looks:
        draws = draws.with_look(counted(look))
    return draws


@given(st.lists(watts, min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_quantile_is_the_true_one_or_at_most_a_bin_above(draws_w: list[float], share: float):
    found = Draws(counted(draws_w), 1).quantile_w(share)
    truth = sorted(draws_w)[max(0, ceil(share * len(draws_w)) - 1)]

    assert truth - 1e-6 <= found <= truth + BIN_W


@given(st.lists(st.lists(watts, min_size=1, max_size=8), min_size=1, max_size=20))
def test_looks_add_up_in_any_order(looks: list[list[float]]):
    assert seen(looks) == seen(looks[::-1])
    assert seen(looks).n_samples == sum(map(len, looks))


def test_many_devices_at_one_moment_are_no_measurement():
    few = seen([[700.0] * 10_000] * (LEAST_LOOKS - 1))

    assert few.measured is None
    assert few.with_look({70: 1}).measured == (700.0, 700.0)


def test_a_long_past_fades_and_rare_peaks_stay():
    draws = Draws({10: 400_000, 70: 1}, 500)
    for _ in range(5):
        draws = draws.with_look({40: 100})

    assert draws.counts[70] == 1
    assert draws.n_samples < 205_000


@pytest.mark.parametrize("draw_w", [nan, inf, -inf, -1.0, 100_001.0])
def test_what_is_no_draw_is_in_no_bin(draw_w: float):
    assert bin_of(draw_w) is None


def test_measured_goes_before_declared_before_the_type():
    assert power_of(measured=(300, 420), power_w=500, peak_w=650, tdp_w=700) == JobPower(
        300, 420, Source.MEASURED
    )
    assert power_of(measured=None, power_w=500, peak_w=650, tdp_w=700) == JobPower(500, 650, Source.DECLARED)
    assert power_of(measured=None, power_w=500, peak_w=None, tdp_w=700) == JobPower(500, 500, Source.DECLARED)
    assert power_of(measured=None, power_w=None, peak_w=650, tdp_w=700) == JobPower(650, 650, Source.DECLARED)
    assert power_of(measured=None, power_w=None, peak_w=None, tdp_w=700) == JobPower(
        700, 700, Source.TDP_DERIVED
    )
    # More than the type can draw is the bin's edge, or a slip.
    assert power_of(measured=(700, 710), power_w=None, peak_w=None, tdp_w=695) == JobPower(
        695, 695, Source.MEASURED
    )


def test_a_job_that_has_not_shown_its_peak_yet_is_held_to_its_class():
    assert measured_of((150.0, 160.0), (600.0, 690.0)) == (600.0, 690.0)
    assert measured_of(None, (600.0, 690.0)) == (600.0, 690.0)
    assert measured_of(None, None) is None


def test_over_several_types_the_highest_counts_and_the_weakest_word():
    each = [JobPower(300, 420, Source.MEASURED), JobPower(400, 400, Source.TDP_DERIVED)]

    assert over_types(each) == JobPower(400, 420, Source.TDP_DERIVED)
