"""People, the tree of teams they belong to, what each team may use, and the tokens they sign in with."""

from django.contrib.auth.models import AbstractUser
from django.db import connection, models
from django.db.models import F, Q


class FacilityRole(models.TextChoices):
    NONE = "", "none"
    AUDITOR = "auditor", "auditor"
    OPERATOR = "operator", "operator"
    POWER_ADMIN = "power_admin", "power admin"
    ADMIN = "admin", "administrator"


class User(AbstractUser):
    """A person or a service account."""

    facility_role = models.CharField(
        max_length=20, choices=FacilityRole.choices, default=FacilityRole.NONE, blank=True
    )
    preferences = models.JSONField(default=dict, blank=True)

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                condition=Q(facility_role__in=FacilityRole.values), name="user_role_is_known"
            ),
        ]

    @property
    def is_administrator(self) -> bool:
        return self.is_active and (self.is_superuser or self.facility_role == FacilityRole.ADMIN)

    @property
    def is_auditor(self) -> bool:
        return self.is_active and not self.is_superuser and self.facility_role == FacilityRole.AUDITOR

    @property
    def is_operator(self) -> bool:
        return self.is_administrator or (self.is_active and self.facility_role == FacilityRole.OPERATOR)

    def team_ids(self) -> frozenset[int]:
        """Teams this person acts for: those they are in, and all below those they lead."""
        # An auditor changes nothing, whatever team they were in before.
        if not self.is_active or self.is_auditor:
            return frozenset()
        with connection.cursor() as cursor:
            cursor.execute(_TEAMS_OF_USER, [self.pk, self.pk])
            return frozenset(row[0] for row in cursor.fetchall())

    def sees_events_of(self) -> frozenset[int] | None:
        """Teams whose business this person may read; None: every team's."""
        return None if self.is_operator or self.is_auditor else self.team_ids()

    def sees_private_events(self) -> bool:
        """Whether what is for auditors and administrators alone (who signs in how, and from where) is for them."""
        return self.is_administrator or self.is_auditor


_TEAMS_OF_USER = """
WITH RECURSIVE led(id) AS (
    SELECT team_id FROM teams_membership WHERE user_id = %s AND role = 'lead'
    UNION
    SELECT team.id FROM teams_team team JOIN led ON team.parent_id = led.id
)
SELECT id FROM led UNION SELECT team_id FROM teams_membership WHERE user_id = %s
"""


class Team(models.Model):
    """A node of the tree of teams. Siblings form a cohort: they lend to each other."""

    name = models.CharField(max_length=120, unique=True)
    parent = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="children")
    weight = models.FloatField(default=1.0)
    priority_ceiling = models.IntegerField(default=100, help_text="Highest priority a member may give a job.")
    version = models.PositiveIntegerField(
        default=1, help_text="Counts changes; a save names the version it read."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(weight__gt=0) & Q(weight__lt=1e9), name="team_weight_is_positive"
            ),
            models.CheckConstraint(condition=~Q(parent=F("id")), name="team_is_not_its_own_parent"),
        ]

    def __str__(self) -> str:
        return self.name


class MemberRole(models.TextChoices):
    MEMBER = "member"
    LEAD = "lead"


class Membership(models.Model):
    team = models.ForeignKey(Team, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=MemberRole.choices, default=MemberRole.MEMBER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="one_membership_a_person_and_team"),
            models.CheckConstraint(condition=Q(role__in=MemberRole.values), name="membership_role_is_known"),
        ]


class Quota(models.Model):
    """What a team owns of one accelerator type, and how far it borrows and lends. No row: nothing is owned.

    A team divides what it owns among its sub-teams: their entitlements add up to at most its own, and the rest is
    kept back (and lent when free).
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="quotas")
    accelerator_type = models.ForeignKey("inventory.AcceleratorType", models.CASCADE, related_name="quotas")
    entitlement = models.PositiveIntegerField(default=0, help_text="Devices.")
    borrow_limit = models.PositiveIntegerField(null=True, blank=True, help_text="Devices; empty: unlimited.")
    lend_limit = models.PositiveIntegerField(null=True, blank=True, help_text="Devices; empty: unlimited.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "accelerator_type"], name="one_quota_a_team_and_type"),
        ]


class LoanState(models.TextChoices):
    PROPOSED = "proposed"  # one side asks or offers; the other has not answered
    AGREED = "agreed"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


class QuotaLoan(models.Model):
    """So many devices of what one team has for itself count as another's, for a while. Time alone begins and ends it.

    What is lent is what a team has not given to its sub-teams. Nothing that runs is stopped at either end: devices
    that somebody still holds are borrowed from then on, and may be taken back.
    """

    lender = models.ForeignKey(Team, models.PROTECT, related_name="loans_out")
    borrower = models.ForeignKey(Team, models.PROTECT, related_name="loans_in")
    accelerator_type = models.ForeignKey("inventory.AcceleratorType", models.PROTECT, related_name="+")
    n_devices = models.PositiveIntegerField()
    start_at = models.DateTimeField()
    end_at = models.DateTimeField(help_text="A recall moves it forward.")
    notice_s = models.FloatField(default=0, help_text="The lender may end it so long after saying so.")
    state = models.CharField(max_length=10, choices=LoanState.choices, default=LoanState.PROPOSED)
    is_asked = models.BooleanField(default=False, help_text="The borrower proposed it.")
    reason = models.CharField(max_length=500, blank=True)
    proposed_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    proposed_at = models.DateTimeField()
    answered_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    answered_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(n_devices__gt=0, n_devices__lte=1_000_000), name="loan_is_of_devices"
            ),
            models.CheckConstraint(condition=Q(end_at__gte=F("start_at")), name="loan_ends_after_it_starts"),
            models.CheckConstraint(condition=~Q(lender=F("borrower")), name="loan_is_to_another_team"),
            models.CheckConstraint(
                condition=Q(notice_s__gte=0, notice_s__lte=366 * 86_400), name="loan_notice_is_a_time"
            ),
            models.CheckConstraint(condition=Q(state__in=LoanState.values), name="loan_state_is_known"),
            models.CheckConstraint(
                condition=Q(state=LoanState.PROPOSED) ^ Q(answered_at__isnull=False),
                name="loan_is_answered_once",
            ),
        ]
        indexes = [
            models.Index(fields=["end_at"], condition=Q(state="agreed"), name="loan_agreed_by_end"),
        ]


class RequestState(models.TextChoices):
    OPEN = "open", "open"
    GRANTED = "granted", "granted"
    REFUSED = "refused", "refused"
    WITHDRAWN = "withdrawn", "taken back"


class QuotaRequest(models.Model):
    """A team asks those above it for more devices of its own. One at a time for each type; an answer closes it."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="quota_requests")
    accelerator_type = models.ForeignKey("inventory.AcceleratorType", models.PROTECT, related_name="+")
    n_devices = models.PositiveIntegerField(help_text="More than it is entitled to now.")
    reason = models.CharField(max_length=500)
    state = models.CharField(max_length=10, choices=RequestState.choices, default=RequestState.OPEN)
    asked_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    asked_at = models.DateTimeField()
    answered_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    answered_at = models.DateTimeField(null=True, blank=True)
    answer = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "accelerator_type"],
                condition=Q(state="open"),
                name="one_open_quota_request_a_team_and_type",
            ),
            models.CheckConstraint(
                condition=Q(n_devices__gt=0, n_devices__lte=1_000_000) & ~Q(reason=""),
                name="quota_request_is_of_devices_for_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(state__in=RequestState.values), name="quota_request_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(state=RequestState.OPEN) ^ Q(answered_at__isnull=False),
                name="quota_request_is_answered_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.team_id} asks for {self.n_devices} more"


class LimitedUse(models.TextChoices):
    DEVICES = "devices", "devices held at once, of one accelerator type"
    RUNNING_JOBS = "running_jobs", "jobs running at once"
    WAITING_JOBS = "waiting_jobs", "jobs waiting at once"


class MemberLimit(models.Model):
    """How much one member may have at once of what their team has. No row: no limit.

    What is said of a person stands in place of what is said of every member, thing by thing. The jobs of the team
    itself count; a sub-team has limits of its own.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="member_limits")
    user = models.ForeignKey(
        User, models.CASCADE, null=True, blank=True, related_name="+", help_text="Empty: every other member."
    )
    what = models.CharField(max_length=20, choices=LimitedUse.choices)
    accelerator_type = models.ForeignKey(
        "inventory.AcceleratorType", models.CASCADE, null=True, blank=True, related_name="+"
    )
    most = models.PositiveIntegerField(
        null=True, blank=True, help_text="Empty: this person has no limit, whatever holds for the others."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "user", "what", "accelerator_type"],
                nulls_distinct=False,
                name="one_limit_a_member_and_use",
            ),
            models.CheckConstraint(condition=Q(what__in=LimitedUse.values), name="member_limit_use_is_known"),
            models.CheckConstraint(
                condition=Q(what=LimitedUse.DEVICES) ^ Q(accelerator_type=None),
                name="member_limit_of_devices_names_a_type",
            ),
            models.CheckConstraint(
                condition=Q(most__isnull=False) | Q(user__isnull=False),
                name="limit_of_every_member_is_a_number",
            ),
        ]


READ, WRITE = "read", "write"
HEALTH = "health"  # report the health of nodes, and nothing else: for agents
SCOPES = (READ, WRITE, HEALTH)


class Token(models.Model):
    """A bearer token; only its digest is kept."""

    user = models.ForeignKey(User, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=120)
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the secret, hex.")
    hint = models.CharField(max_length=8, help_text="First characters, to tell tokens apart.")
    scopes = models.JSONField(default=list, help_text='["read"], ["read", "write"] or ["health"]')
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)


class IdempotentAnswer(models.Model):
    """The answer already given to a POST with an Idempotency-Key, for a day: the same key acts once.

    Nothing is kept here that is not for everybody.
    """

    user = models.ForeignKey(User, models.CASCADE)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="Of method, path and body.")
    status = models.PositiveSmallIntegerField(
        null=True, help_text="Empty while the first request is under way."
    )
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_answer_a_user_and_key")]


class Tally(models.Model):
    """How often something was tried lately; see `throttles.py`."""

    key = models.CharField(max_length=64, primary_key=True, help_text="Digest of what is counted.")
    n = models.PositiveIntegerField()
    since_at = models.DateTimeField()
    last_at = models.DateTimeField(db_index=True)
