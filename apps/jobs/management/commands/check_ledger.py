"""`manage.py check_ledger`: does the ledger add up?"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from apps.jobs.selectors import ledger_faults


class Command(BaseCommand):
    help = "Compare devices, claims, allocations and jobs with each other. Exit status 1 if they disagree."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            faults = ledger_faults()
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"The ledger does not add up: {len(faults)} faults.")
        self.stdout.write("The ledger adds up.")
