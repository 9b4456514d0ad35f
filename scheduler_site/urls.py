"""Every address of the site. An app that has `api/urls.py` or `urls.py` is found by it."""

from importlib.util import find_spec

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from apps.core import health
from apps.core import metrics as core_metrics
from apps.core.api.docs import DocsView
from scheduler_site import metrics

metrics.register(core_metrics.registry)

# The order is the order of the schema.
_APPS = (
    "jobs",
    "scheduling",
    "execution",
    "inventory",
    "teams",
    "reservations",
    "staging",
    "power",
    "events",
    "dashboard",
)


def _patterns_of(module: str) -> list[str]:
    return [module] if find_spec(module) else []


api_v1 = [
    path("", include(module))
    for app in _APPS
    if find_spec(f"apps.{app}.api")
    for module in _patterns_of(f"apps.{app}.api.urls")
]

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", health.metrics),
    path("api/v1/", include(api_v1)),
    path("api/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs", DocsView.as_view(), name="api-docs"),
    *(path("", include(module)) for module in _patterns_of("apps.dashboard.urls")),
]

handler404 = "apps.core.api.problems.page_or_problem_404"
handler500 = "apps.core.api.problems.page_or_problem_500"
