"""What people keep of pages: views of the queue that have a name."""

from django.db import models
from django.db.models import Q

from apps.teams.models import Team, User

LONGEST_QUERY = 1000


class SavedView(models.Model):
    """A name for filters of the queue, of one person; shared with a team, its members see it too."""

    owner = models.ForeignKey(User, models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    query = models.CharField(
        max_length=LONGEST_QUERY, help_text="The filters, as in the address of the page."
    )
    team = models.ForeignKey(Team, models.SET_NULL, null=True, blank=True, related_name="saved_views")

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="one_saved_view_a_person_and_name"),
            models.CheckConstraint(condition=~Q(name="") & ~Q(query=""), name="saved_view_says_something"),
        ]

    def __str__(self) -> str:
        return self.name
