"""Makes the demo facility, its people and its first work."""

from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import transaction

from apps.core import clock
from apps.inventory.models import Cluster
from apps.scheduling.demo import facility, people, work


class Command(BaseCommand):
    help = "Make the demo facility, its accounts and its first work in an empty installation; twice changes nothing."

    def handle(self, *args: Any, **options: Any) -> None:
        accounts_file = Path(settings.VAR_DIR) / "demo-accounts.json"
        if not Cluster.objects.exists():
            n_jobs = self._make(clock.now(), accounts_file)
            self.stdout.write(f"made the demo facility, with {n_jobs} jobs to begin with")
        else:
            self.stdout.write("there is a facility already; it is left as it is")
        people.publish_accounts(accounts_file)

    @transaction.atomic
    def _make(self, at: datetime, accounts_file: Path) -> int:
        # All of it or nothing: an installation that was interrupted here begins again.
        accounts = people.build(at)
        facility.build(at)
        people.entitle(at)
        n_jobs = work.fill(at)
        people.draft_accounts(accounts, accounts_file)
        return n_jobs
