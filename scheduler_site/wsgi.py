"""What the web server calls."""

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")

application = get_wsgi_application()

# Load every view before the first request waits for it. All of that stays for good: the collector need not go over
# it again each time a bulk of jobs has made enough objects to call it.
get_resolver().url_patterns  # noqa: B018 - reading it loads
gc.collect()
gc.freeze()
