"""What every test may count on: a PostgreSQL, and a word about programs the machine lacks.

The database is a throw-away server of our own, one for each worker of pytest-xdist: followers of the event log wait
for the oldest transaction of the whole server, so tests beside each other would hold each other up. DATABASE_URL names
another server. Tests that touch no database start none.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from apps.execution.tests.kubernetes_double import Double
    from scripts.slurm_cluster import SlurmCluster

_URL = "SWITCHYARD_TEST_DATABASE_URL"
_require_all = os.environ.get("REQUIRE_ALL") == "1"


class _ThrowAwayServer:
    """The run's own PostgreSQL, from its first use to the end of the run."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: object = None

    def url(self) -> str:
        from apps.core import embedded_postgres

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="switchyard-test-"))
            self._process = embedded_postgres.start_throw_away(self._folder / "pg")
        return embedded_postgres.url(self._folder / "pg")

    def stop(self) -> None:
        from apps.core import embedded_postgres

        if self._process is not None:
            embedded_postgres.stop(self._process)  # type: ignore[arg-type]  # imported late: no Django in pure tests
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._process = None


_server = _ThrowAwayServer()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("DATABASE_URL"):
        os.environ[_URL] = os.environ["DATABASE_URL"]


def pytest_unconfigure(config: pytest.Config) -> None:
    _server.stop()


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """A PostgreSQL that may be filled and thrown away."""
    return os.environ.get(_URL) or _server.url()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    postgres_url: str,
    django_db_modify_db_settings_parallel_suffix: None,
) -> None:
    """Point Django at the throw-away server before pytest-django makes the test database."""
    from django.db import connections

    from scheduler_site import environment

    described = environment.database(postgres_url)
    settings_dict = connections["default"].settings_dict
    settings_dict.update({key: described[key] for key in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")})
    if not settings_dict["TEST"].get("NAME"):
        settings_dict["TEST"]["NAME"] = f"test_{os.getpid()}_{described['NAME']}"


@pytest.fixture(scope="session")
def requires_program() -> Callable[..., str]:
    """`requires_program("chromium", "google-chrome")`: the path of the first that is here.

    Without any of them the test is skipped, and says what it needs.
    """

    def find(*names: str) -> str:
        for name in names:
            if found := shutil.which(name):
                return found
        pytest.skip(f"needs the program {' or '.join(names)}, which this machine lacks")

    return find


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _require_all and report.skipped and not hasattr(report, "wasxfail"):
        where = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL=1, but this was skipped: {where}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With REQUIRE_ALL=1 nothing may be left out: a skip is a failure."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for whole modules that skip themselves."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture
def no_memory() -> Generator[None]:
    """The planner's process begins as if it were new: it remembers nothing of another test's rows."""
    from apps.scheduling import admission, apply, line, snapshot

    for room in (snapshot, apply, admission, line):
        room.forget()
    yield
    for room in (snapshot, apply, admission, line):
        room.forget()


@pytest.fixture(scope="session")
def slurm_of_session() -> "Generator[SlurmCluster]":
    """A real Slurm for the whole run, started when the first test asks for it: nodes `here` and n1 to n7."""
    from scripts.slurm_cluster import SlurmCluster, missing_programs

    if missing := missing_programs():
        pytest.skip(f"needs Slurm, of which this machine lacks {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs to be root, to start a Slurm of its own")
    folder = Path(tempfile.mkdtemp(prefix="switchyard-slurm-"))
    cluster = SlurmCluster(folder, nodes=("here", *(f"n{number}" for number in range(1, 8))))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(slurm_of_session: "SlurmCluster") -> "Generator[SlurmCluster]":
    """The run's Slurm, whole and empty: what a test broke or left running is mended after it."""
    yield slurm_of_session
    slurm_of_session.mend()


@pytest.fixture
def kubernetes() -> "Generator[Double]":
    """A Kubernetes of the tests' own: nodes `here` and n1 to n3."""
    from apps.execution.backends.kubernetes import watching
    from apps.execution.tests.kubernetes_double import Double

    double = Double().up()
    for name in ("here", "n1", "n2", "n3"):
        double.add_node(name)
    try:
        yield double
    finally:
        watching.forget()
        double.down()
