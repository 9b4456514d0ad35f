"""What data sets there are, and where."""

from django.db.models import Prefetch, QuerySet

from apps.staging.models import Copy, Dataset
from apps.teams.models import User


def datasets_visible_to(viewer: User) -> QuerySet[Dataset]:
    """Everyone signed in sees what data sets there are, with their copies at hand."""
    copies = Copy.objects.select_related("domain").order_by("domain__name")
    datasets = Dataset.objects.prefetch_related(Prefetch("copies", copies))
    return datasets if viewer.is_authenticated else datasets.none()
