"""What docs/planner.md says holds each technique is there: the tests, the checker's rules, the policy's fields."""

import re
from pathlib import Path

import pytest

from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.named import NAMED

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
CHECKER = (ROOT / "apps" / "scheduling" / "engine" / "checker.py").read_text(encoding="utf-8")
FILES: dict[str, str] = {}  # several rooms may have a file of the same name
for folder in ("apps", "tests"):
    for path in (ROOT / folder).rglob("test_*.py"):
        FILES[path.name] = FILES.get(path.name, "") + path.read_text(encoding="utf-8")


def _rows(heading):
    table = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = _rows("Techniques")
# Fields of jobs, teams, nodes and the site, by which a technique is tuned beside those of the policy.
OTHERS = {
    *(
        "accelerators",
        "topology",
        "topology.max_wait",
        "spread",
        "speed",
        "flexible",
        "time_limit",
        "replicas",
    ),
    *(
        "scaling",
        "preemptible",
        "checkpoint.on_resize",
        "grace_s",
        "member-limits",
        "lend_limit",
        "borrow_limit",
        "KEPT_DUMPS",
    ),
}


def test_the_table_is_read_and_whole():
    assert len(ROWS) > 30
    assert {len(row) for row in ROWS} == {6}
    assert all(all(row) for row in ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_technique_names_a_test_that_is_there(row):
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", row[5])

    assert named
    for file, test in named:
        assert file in FILES
        assert not test or f"def {test}(" in FILES[file], (file, test)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_technique_is_tuned_and_checked_by_what_is_there(row):
    fields = [name.split(":")[0] for name in re.findall(r"`([^`]+)`", row[3])]
    rules = re.findall(r"checker rule `(\w+)`", row[5])

    assert [name for name in fields if name not in Policy.__dataclass_fields__ and name not in OTHERS] == []
    assert [rule for rule in rules if f'"{rule}"' not in CHECKER] == []


def test_every_policy_with_a_name_is_in_its_table():
    told = {name for row in _rows("Policies with a name") for name in re.findall(r"`(\w+)`", row[0])}

    assert told == set(NAMED)
