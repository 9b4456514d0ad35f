"""The browsable page of the API, from files of our own: no network needed."""

from csp.decorators import csp_replace
from django.contrib.auth.mixins import LoginRequiredMixin
from django.utils.decorators import method_decorator
from drf_spectacular.views import SpectacularSwaggerSplitView

# Swagger UI sets style attributes and embeds small pictures; nothing else on the site may.
_POLICY = {
    "style-src": ["'self'", "'unsafe-inline'"],
    "script-src": ["'self'", "'unsafe-inline'"],
    "img-src": ["'self'", "data:"],
}


@method_decorator(csp_replace(_POLICY), name="dispatch")
class DocsView(LoginRequiredMixin, SpectacularSwaggerSplitView):
    """Swagger UI over /api/schema, for people who are signed in."""

    url_name = "schema"
