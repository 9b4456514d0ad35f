"""What holds of every settlement."""

from datetime import timedelta
from decimal import Decimal, localcontext
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.power.settlement.baseline import Baseline, Calendar, Method, adjusted, ten_of_ten
from apps.power.settlement.facts import Quality, Reading, Readings, TargetKind, Terms, Window
from apps.power.settlement.settle import Outcome, settle
from apps.power.settlement.tests.hall import at, call, event_day, meter, usual

watts = st.one_of(
    st.integers(0, 10**9), st.floats(0, 1e9), st.decimals(0, 10**9, places=4), st.integers(90_000, 150_000)
)
readings = st.lists(
    st.builds(
        Reading,
        st.integers(-30, 210).map(lambda minutes: at(14) + timedelta(minutes=minutes)),
        watts,
        st.sampled_from([Quality.OK] * 6 + list(Quality)),
    ),
    max_size=40,
    unique_by=lambda reading: reading.start,
)
events = st.builds(
    call,
    target_kind=st.sampled_from(TargetKind),
    value_w=watts,
    cancelled_at=st.none() | st.integers(0, 240).map(lambda minutes: at(13.75) + timedelta(minutes=minutes)),
)
others = st.lists(
    st.builds(
        lambda priority, start, length: (priority, at(14 + start / 60), at(14 + (start + length) / 60)),
        st.integers(0, 2),
        st.integers(-15, 170),
        st.integers(1, 120),
    ),
    max_size=3,
).map(
    lambda found: [
        call(event_id=f"other-{n}", priority=priority, start_at=start, end_at=end, notified_at=at(12))
        for n, (priority, start, end) in enumerate(found)
    ]
)
terms = st.builds(
    Terms,
    price_per_kwh=st.decimals(0, 10, places=4),
    penalty_per_kwh=st.decimals(0, 10, places=4),
    tolerance_share=st.decimals(0, 1, places=3),
    interval_s=st.sampled_from([300, 900, 1800, 3600, 7200]),
    is_unproven_short=st.booleans(),
    pays_overlap_once=st.booleans(),
)


@st.composite
def cases(draw):
    """An event, its terms, a baseline and what was metered, with the other events of the meter."""
    event, agreed = draw(events), draw(terms)
    windows = event.windows(agreed.interval_s)
    base = tuple(Decimal(draw(st.integers(0, 200_000))) for _ in windows)
    return event, agreed, Baseline(Method.TEN_OF_TEN, windows, base, base), draw(readings), draw(others)


def settled(case, *, max_age_s=900):
    event, agreed, baseline, metered, beside = case
    return settle(event, agreed, baseline, Readings(metered, max_age_s=max_age_s), others=beside)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_no_more_is_credited_than_was_asked_or_shed(case):
    done = settled(case)

    assert 0 <= done.credited_wh <= done.target_wh
    for interval in done.intervals:
        assert 0 <= interval.credited_wh <= interval.target_wh
        assert interval.credited_wh <= max(0, interval.delivered_wh)
        assert interval.is_proved or interval.credited_wh == 0


@given(cases())
@settings(max_examples=150, deadline=None)
def test_the_performance_factor_is_a_share(case):
    done = settled(case)

    assert (done.performance is None) == (done.outcome is Outcome.CANCELLED)
    assert done.performance is None or 0 <= done.performance <= 1


@given(cases())
@settings(max_examples=100, deadline=None)
def test_the_table_adds_up_to_the_totals_and_the_net_to_the_cent(case):
    done = settled(case)

    assert done.credited_wh == sum(one.credited_wh for one in done.intervals)
    assert done.shortfall_wh == sum(one.shortfall_wh for one in done.intervals)
    assert done.net == done.payment - done.penalty
    assert {money.as_tuple().exponent for money in (done.payment, done.penalty, done.net)} == {-2}


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_neither_the_order_of_readings_nor_a_second_run_nor_the_decimal_context_matters(case, random):
    event, agreed, baseline, metered, beside = case
    shuffled, turned = random.sample(metered, len(metered)), beside[::-1]

    with localcontext() as context:
        context.prec = 3
        again = settled((event, agreed, baseline, shuffled, turned))

    assert again == settled(case)


@given(cases(), watts)
@settings(max_examples=100, deadline=None)
def test_an_order_to_shed_never_costs_a_penalty_on_more_than_was_asked(case, value_w):
    event, agreed, *rest = case
    done = settled((call(value_w=value_w, cancelled_at=event.cancelled_at), agreed, *rest))

    assert done.shortfall_wh <= done.target_wh


@given(cases())
@settings(max_examples=60, deadline=None)
def test_paying_an_overlap_once_never_pays_more(case):
    event, agreed, baseline, metered, _ = case

    assert settled(case).payment <= settled((event, agreed, baseline, metered, [])).payment


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(0, 400), st.randoms())
@settings(max_examples=60, deadline=None)
def test_a_baseline_does_not_depend_on_the_order_of_readings_and_stays_within_its_cap(
    loads_kw, window_kw, random
):
    told = [*usual(loads_kw), *event_day(window_kw=window_kw)]
    event = call()

    def found(order):
        made = ten_of_ten(meter(*order), event.windows(3600), Calendar())
        return adjusted(made, meter(*order), window=Window.of(at(10), at(12)), notified_at=at(13))

    baseline = found(told)

    assert baseline == found(random.sample(told, len(told)))
    assert baseline.n_days == min(10, len(loads_kw))
    for raw, counted in zip(baseline.raw_w, baseline.baseline_w, strict=True):
        assert abs(Fraction(counted) - Fraction(raw)) <= Fraction(raw) / 5 + Fraction(1, 10**6)
