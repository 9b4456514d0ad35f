"""The settlement as it is handed out."""

import csv
import json
from decimal import Decimal
from io import StringIO

import pytest

from apps.power.settlement.report import Settlement, Touched, as_csv, as_dict
from apps.power.settlement.settle import settle
from apps.power.settlement.tests.hall import TERMS, at, call, event_day, flat, meter, p12


def settlement(**changes) -> Settlement:
    event, baseline, readings = p12()
    told = {
        "event": event,
        "terms": TERMS,
        "baseline": baseline,
        "statement": settle(event, TERMS, baseline, readings),
        "committed_by": "ada",
        "plan_hash": "5f0c",
        "jobs": (Touched(8, "batch", "pause", 172_800), Touched(7, "train", "cap", Decimal("103680"))),
        "versions": {"programme": 3, "plan": 2},
    }
    return Settlement(**(told | changes))


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(StringIO(text)))


def test_the_dict_holds_all_that_was_counted_and_goes_through_json():
    told = json.loads(json.dumps(as_dict(settlement())))

    assert told["event"]["id"] == "heat-7"
    assert told["versions"] == {"plan": 2, "programme": 3}
    assert told["baseline"]["method"] == "10_of_10"
    assert told["baseline"]["n_days"] == told["baseline"]["n_wanted"] == 10
    assert Decimal(told["baseline"]["adjustment"]["ratio"]) == Decimal("1.0625")
    assert [one["quality"] for one in told["intervals"]] == ["ok"] * 3
    assert (told["payment"], told["penalty"], told["net"]) == ("20.10", "7.50", "12.60")
    assert told["outcome"] == "partial"
    assert Decimal(told["lost_device_h"]) == Decimal("76.8")
    assert [job["id"] for job in told["jobs"]] == [7, 8]
    assert (told["committed_by"], told["plan_hash"]) == ("ada", "5f0c")


def test_the_file_holds_every_field_of_the_dict():
    made = settlement()
    fields = {row[0] for row in rows(as_csv(made)) if len(row) == 2}
    told = as_dict(made)

    assert {"event.id", "versions.plan", "baseline.adjustment.applied", "net", "plan_hash"} <= fields
    assert {key for key, value in told.items() if isinstance(value, str)} <= fields


def test_the_file_has_a_line_for_every_interval_and_job():
    lines = rows(as_csv(settlement()))
    table = lines[lines.index(["intervals"]) + 1 :][:4]
    jobs = lines[lines.index(["jobs"]) + 1 :]

    assert [row[table[0].index("delivered_w")] for row in table[1:]] == [
        "22250.000000",
        "19250.000000",
        "14250.000000",
    ]
    assert [row[1] for row in jobs] == ["name", "train", "batch"]


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", '=HYPERLINK("http://x")']
)
def test_no_text_of_the_file_runs_as_a_formula(text):
    made = settlement(
        committed_by=text, plan_hash=text, versions={text: text}, jobs=(Touched(1, text, text, 0),)
    )

    for row in rows(as_csv(made)):
        for cell in row:
            assert cell[:1] not in ("=", "+", "@", "\t", "\r", "＝")
            assert not cell.startswith("-")
            assert not cell.lstrip().startswith("=")


def test_a_negative_number_stays_a_number():
    event = call()
    baseline = flat(event)
    done = settle(event, TERMS, baseline, meter(*event_day((150, 150, 150))))

    lines = rows(as_csv(settlement(event=event, baseline=baseline, statement=done)))

    assert ["net", "-108.00"] in lines


def test_a_cancelled_event_has_a_settlement_too():
    event = call(cancelled_at=at(13.8))
    baseline = flat(event)
    done = settle(event, TERMS, baseline, meter())

    told = as_dict(settlement(event=event, baseline=baseline, statement=done, jobs=()))

    assert told["outcome"] == "cancelled"
    assert told["event"]["settled_until"] is None
    assert told["intervals"] == told["jobs"] == []
    assert told["performance_factor"] is None
