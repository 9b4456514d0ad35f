"""Brings the database and the static files up to date, and makes the demo facility on first use.

One process for all of it, because starting Django three times costs seconds at each start of the site.
"""

import hashlib
import os
import sys
from pathlib import Path

import django

from scheduler_site import environment


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    django.setup()
    from django.conf import settings
    from django.core.management import call_command, get_commands

    call_command("migrate", interactive=False, verbosity=0)
    _collect_static(Path(settings.STATIC_ROOT))
    wants_demo = environment.flag("SWITCHYARD_DEMO", True)
    if wants_demo and "demo" in get_commands() and not (settings.VAR_DIR / "demo-accounts.json").exists():
        print("making the demo facility", flush=True)
        call_command("demo")
    return 0


def _collect_static(root: Path) -> None:
    """Collect, hash and compress, unless nothing has changed since the last time."""
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    digest = hashlib.sha256()
    for finder in get_finders():
        for name, storage in finder.list([]):
            path = Path(storage.path(name))
            digest.update(f"{name} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    stamp = root / ".stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    print("collecting static files", flush=True)
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(digest.hexdigest())


if __name__ == "__main__":
    sys.exit(main())
