"""The page of a domain's limit: why it holds, what comes, and the forms of power administrators."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from apps.dashboard.envelope_lines import Line, line_of
from apps.dashboard.tests.facility import Facility, signed_in
from apps.inventory.models import Domain
from apps.power import services
from apps.power.budget import EVERY_DAY, Step, mask_of
from apps.power.models import EnvelopeStep, PowerLimit
from apps.teams import services as teams
from apps.teams.models import FacilityRole

BERLIN = ZoneInfo("Europe/Berlin")


def hall_of(facility: Facility) -> Domain:
    return Domain.objects.filter(kind="hall").order_by("pk").first()


def path_of(domain: Domain) -> str:
    return f"/power/domains/{domain.pk}/limit/"


@pytest.fixture
def admin(facility: Facility):
    user = teams.create_user(
        username="pia",
        password=None,
        facility_role=FacilityRole.POWER_ADMIN,
        actor=None,
        at=datetime.now(UTC),
    )
    return signed_in(user)


def numbers(domain: Domain, **more) -> dict[str, str]:
    row = PowerLimit.objects.filter(domain=domain).first()
    said = {
        "part": "limit",
        "version": "1" if row is None else str(row.version),
        "derate": "0.8",
        "reserve_w": "0",
    }
    return {**said, "max_age_s": "300", **more}


def lines(domain: Domain, *rows: tuple[str, str, str, str], **more):
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    row = PowerLimit.objects.filter(domain=domain).first()
    said = dict(zip(("days", "begins", "ends", "watts"), (list(column) for column in columns), strict=True))
    version = 1 if row is None else row.version
    return {"part": "envelope", "version": str(version), "time_zone": "UTC", **said, **more}


def test_everybody_sees_why_a_limit_holds_and_nobody_else_may_change_it(facility):
    hall = hall_of(facility)
    services.set_limit(
        domain_id=hall.pk,
        changes={"rated_w": 2e6, "derate": 0.8, "hard_limit_w": 1.7e6, "limit_w": None},
        actor=None,
        at=datetime.now(UTC),
    )
    services.set_envelope(
        domain_id=hall.pk, steps=[Step(1e6, EVERY_DAY)], time_zone="UTC", actor=None, at=datetime.now(UTC)
    )
    viewer = signed_in(facility.viewer)
    answer = viewer.get(path_of(hall))
    told = {bound.label: (bound.limit_w, bound.is_binding) for bound in answer.context["bounds"]}
    assert told == {
        "Rating, derated": (1.6e6, False),
        "Hard limit": (1.7e6, False),
        "Envelope at this hour": (1e6, True),
    }
    text = answer.content.decode()
    assert "every day, 00:00 to 24:00" in text
    assert 'name="part"' not in text
    assert viewer.post(path_of(hall), numbers(hall, limit_w="5")).status_code == 403
    assert viewer.post(path_of(hall), lines(hall)).status_code == 403
    assert signed_in(facility.operator).post(path_of(hall), lines(hall)).status_code == 403
    assert EnvelopeStep.objects.count() == 1


def test_a_power_administrator_sets_numbers_and_an_envelope(facility, admin):
    hall = hall_of(facility)
    sent = numbers(hall, rated_w="2000000", derate="0.8", reserve_w="100000", reason="survey")
    assert admin.post(path_of(hall), sent).status_code == 302
    row = PowerLimit.objects.get(domain=hall)
    assert (row.rated_w, row.reserve_w, row.hard_limit_w) == (2e6, 1e5, None)

    rows = [
        ("Mon-Fri", "13:00", "19:00", "900000"),
        ("", "", "", ""),
        ("2027-12-24 to 2027-12-26", "18:00", "6:00", "5e5"),
    ]
    assert admin.post(path_of(hall), lines(hall, *rows, time_zone="Europe/Berlin")).status_code == 302
    weekly, dated = EnvelopeStep.objects.order_by("id")
    assert (weekly.weekdays, weekly.from_minute, weekly.until_minute) == (31, 780, 1140)
    assert (dated.start_at, dated.limit_w) == (datetime(2027, 12, 24, 17, tzinfo=UTC), 5e5)
    assert dated.end_at == datetime(2027, 12, 26, 5, tzinfo=UTC)
    shown = admin.get(path_of(hall)).context["envelope"]
    assert [line.days for line in shown if not line.is_empty] == ["Mon-Fri", "2027-12-24 to 2027-12-26"]
    assert admin.post(path_of(hall), lines(hall, time_zone="UTC")).status_code == 302
    assert not EnvelopeStep.objects.exists()


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (("someday", "13:00", "19:00", "5"), "days"),
        (("Mon-Fri", "1pm", "19:00", "5"), "begins"),
        (("Mon-Fri", "13:00", "13:00", "5"), "ends"),
        (("Mon-Fri", "13:00", "19:00", "-5"), "watts"),
        (("Mon-Fri", "13:00", "19:00", "nan"), "watts"),
        (("2026-02-30", "13:00", "19:00", "5"), "days"),
        (("2026-03-05 to 2026-03-01", "13:00", "19:00", "5"), "days"),
    ],
)
def test_a_line_that_means_nothing_is_refused_where_it_stands_and_kept(facility, admin, row, field):
    hall = hall_of(facility)
    answer = admin.post(path_of(hall), lines(hall, row))
    assert answer.status_code == 400
    (line,) = [one for one in answer.context["envelope"] if not one.is_empty]
    assert (line.days, line.begins, line.ends, line.watts) == row
    assert list(line.faults) == [field]
    assert not EnvelopeStep.objects.exists()


def test_what_somebody_saved_meanwhile_is_shown(facility, admin):
    hall = hall_of(facility)
    stale = lines(hall, ("Mon", "13:00", "19:00", "5"))
    services.set_limit(domain_id=hall.pk, changes={"max_age_s": 90.0}, actor=None, at=datetime.now(UTC))
    services.set_limit(domain_id=hall.pk, changes={"max_age_s": 80.0}, actor=None, at=datetime.now(UTC))
    answer = admin.post(path_of(hall), {**stale, "version": "1"})
    assert answer.status_code == 409
    assert not EnvelopeStep.objects.exists()


def test_an_unknown_zone_is_refused_at_its_field(facility, admin):
    answer = admin.post(path_of(hall_of(facility)), lines(hall_of(facility), time_zone="Mars/Base"))
    assert (answer.status_code, answer.context["zone_fault"]) == (
        400,
        "must be a time zone such as America/Chicago",
    )


@pytest.mark.parametrize(
    "step",
    [
        Step(9e5, mask_of(["Mon", "Tue", "Wed", "Sun"]), 780, 1140),
        Step(9e5, mask_of(["Sat", "Sun"]), 0, 1440),
        Step(1234.5, EVERY_DAY, 1320, 360),
        Step(
            5e6,
            start_at=datetime(2026, 12, 24, 17, tzinfo=UTC),
            end_at=datetime(2026, 12, 24, 20, tzinfo=UTC),
        ),
        Step(
            5e6, start_at=datetime(2026, 3, 28, 17, tzinfo=UTC), end_at=datetime(2026, 3, 30, 5, tzinfo=UTC)
        ),
    ],
)
def test_a_step_reads_back_from_its_line(step):
    line = line_of(step, BERLIN)
    again = Line(line.days, line.begins, line.ends, line.watts).step(BERLIN)
    assert again is not None, line.faults
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    for hour in range(24 * 40):
        at = begin + timedelta(hours=hour)
        assert again.holds_at(BERLIN, at) == step.holds_at(BERLIN, at)
    assert again.limit_w == step.limit_w
