"""Demand response: programmes, events, the plans made for them and what each does to a job."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


# What somebody committed to is what they saw: the database itself refuses to change or delete it. It may only be
# superseded, once.
FORWARD = """
CREATE FUNCTION power_committed_plan_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.committed_at IS NULL THEN
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE'
        AND to_jsonb(NEW) - 'state' = to_jsonb(OLD) - 'state'
        AND (NEW.state = OLD.state OR (OLD.state = 'committed' AND NEW.state = 'superseded'))
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a committed plan stays as it is: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'committed_plan_is_immutable';
END
$$;
CREATE TRIGGER committed_plan_is_immutable BEFORE UPDATE OR DELETE ON power_curtailmentplan
    FOR EACH ROW EXECUTE FUNCTION power_committed_plan_is_immutable();
"""
BACKWARD = """
DROP TRIGGER committed_plan_is_immutable ON power_curtailmentplan;
DROP FUNCTION power_committed_plan_is_immutable();
"""



class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0004_health_seen'),
        ('power', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='DemandResponseEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source', models.CharField(choices=[('operator', 'Operator'), ('openadr', 'Openadr'), ('schedule', 'Schedule'), ('emergency', 'Emergency')], max_length=10)),
                ('external_id', models.CharField(blank=True, help_text='What the source calls it; a later version replaces the one here.', max_length=200)),
                ('external_version', models.PositiveIntegerField(default=0)),
                ('priority', models.PositiveSmallIntegerField(default=1, help_text='0 goes first.')),
                ('target_kind', models.CharField(choices=[('shed_by', 'shed_by'), ('limit_to', 'limit_to'), ('level', 'level')], max_length=10)),
                ('value', models.FloatField(help_text='Watts; or a level, 0 to 3.')),
                ('notified_at', models.DateTimeField()),
                ('ramp_start_at', models.DateTimeField()),
                ('start_at', models.DateTimeField(help_text='The target binds from here.')),
                ('end_at', models.DateTimeField()),
                ('recovery_s', models.PositiveIntegerField(default=3600)),
                ('rebound_limit_share', models.FloatField(default=1.05, help_text='Of the reference: what the load may come back to during the recovery.')),
                ('tolerance', models.FloatField(default=0.05, help_text='Share of the target that may be missing.')),
                ('is_test', models.BooleanField(default=False, help_text='Everything but acting on jobs.')),
                ('is_emergency', models.BooleanField(default=False)),
                ('reference_w', models.FloatField(blank=True, help_text='Mean of the 15 minutes before the notice; frozen then.', null=True)),
                ('reference_quality', models.CharField(choices=[('ok', 'Ok'), ('estimated', 'Estimated'), ('missing', 'Missing'), ('bad', 'Bad')], default='missing', max_length=10)),
                ('cancelled_at', models.DateTimeField(blank=True, null=True)),
                ('opted_out_at', models.DateTimeField(blank=True, null=True)),
                ('released_at', models.DateTimeField(blank=True, help_text='Every action reverted, and the load within what is allowed.', null=True)),
                ('outcome', models.CharField(blank=True, choices=[('', 'not known yet'), ('met', 'Met'), ('partial', 'Partial'), ('missed', 'Missed'), ('cancelled', 'Cancelled'), ('opted_out', 'Opted Out')], default='', max_length=10)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('created_at', models.DateTimeField()),
                ('version', models.PositiveIntegerField(default=1)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('domain', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='demand_response_events', to='inventory.domain')),
            ],
            options={
                'ordering': ['start_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='CurtailmentPlan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField(help_text='Version of the plan, from 1 on for each event.')),
                ('event_version', models.PositiveIntegerField(help_text='Of the event, as it was when this was made.')),
                ('state', models.CharField(choices=[('draft', 'Draft'), ('previewed', 'Previewed'), ('committed', 'Committed'), ('superseded', 'Superseded')], default='draft', max_length=10)),
                ('inputs_hash', models.CharField(help_text='SHA-256, hex, of all it was decided from.', max_length=64)),
                ('plan', models.JSONField(help_text='{actions: [...], tier_breaches: [...], ...}')),
                ('predicted_shed_w', models.FloatField()),
                ('shortfall_w', models.FloatField(default=0)),
                ('lost_device_s', models.FloatField(default=0)),
                ('bound_device_s', models.FloatField(default=0, help_text='No plan with as little missing loses less.')),
                ('draw_w', models.FloatField(blank=True, help_text='Of the domain, when it was made.', null=True)),
                ('n_breaches', models.PositiveIntegerField(default=0, help_text='Jobs that would lose more than they allow.')),
                ('previewed_at', models.DateTimeField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('approved_at', models.DateTimeField(blank=True, help_text='By the first of two people.', null=True)),
                ('committed_at', models.DateTimeField(blank=True, null=True)),
                ('approved_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('committed_by', models.ForeignKey(blank=True, help_text='Empty: by policy.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('event', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='plans', to='power.demandresponseevent')),
            ],
            options={
                'ordering': ['event_id', 'number'],
            },
        ),
        migrations.CreateModel(
            name='Programme',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120, unique=True)),
                ('time_zone', models.CharField(default='UTC', help_text='Whose days are counted.', max_length=64)),
                ('notice_s', models.PositiveIntegerField(help_text='From the notice to the start, as promised.')),
                ('ramp_s', models.PositiveIntegerField(help_text='From the beginning of the ramp to the start.')),
                ('min_duration_s', models.PositiveIntegerField()),
                ('max_duration_s', models.PositiveIntegerField()),
                ('target_kind', models.CharField(choices=[('shed_by', 'shed_by'), ('limit_to', 'limit_to'), ('level', 'level')], max_length=10)),
                ('tolerance', models.FloatField(default=0.05, help_text='Share of the target that may be missing.')),
                ('baseline_method', models.CharField(choices=[('meter_before', 'mean of the 15 minutes before the notice'), ('10_of_10', 'same hour of the last ten days like it'), ('3_plus_2', 'same day: three hours before the event and two after')], max_length=20)),
                ('interval_s', models.PositiveIntegerField(help_text='What is settled at once.')),
                ('price_per_kwh', models.DecimalField(decimal_places=6, default=0, max_digits=12)),
                ('penalty_per_kwh', models.DecimalField(decimal_places=6, default=0, max_digits=12)),
                ('max_events_per_day', models.PositiveIntegerField(blank=True, help_text='Empty: no limit.', null=True)),
                ('max_events_per_season', models.PositiveIntegerField(blank=True, help_text='In a calendar year; empty: no limit.', null=True)),
                ('is_auto_commit', models.BooleanField(default=False, help_text='A plan that breaches no tier is committed without a person.')),
                ('two_person_above_w', models.FloatField(blank=True, help_text='A plan that sheds more needs two people; empty: never.', null=True)),
                ('emergency_policy', models.CharField(choices=[('none', 'nothing'), ('caps', 'caps down to the lowest'), ('caps_and_stops', 'caps, and stops of what is interruptible')], default='none', max_length=20)),
                ('asked_emergency_policy', models.CharField(blank=True, choices=[('none', 'nothing'), ('caps', 'caps down to the lowest'), ('caps_and_stops', 'caps, and stops of what is interruptible')], max_length=20)),
                ('version', models.PositiveIntegerField(default=1)),
                ('asked_emergency_policy_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('emergency_policy_by', models.ForeignKey(blank=True, help_text='Who approved it.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.AddField(
            model_name='demandresponseevent',
            name='programme',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='power.programme'),
        ),
        migrations.CreateModel(
            name='CurtailmentAction',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_id', models.BigIntegerField()),
                ('lever', models.CharField(max_length=10)),
                ('before', models.JSONField(help_text='What the job has now, and gets back.')),
                ('after', models.JSONField(help_text='What it gets.')),
                ('expected_w', models.FloatField(help_text='How much less it then draws, in watts of IT load.')),
                ('issue_at', models.DateTimeField(help_text='When it is asked for.')),
                ('effective_by_at', models.DateTimeField(help_text='When the draw is down at the latest.')),
                ('state', models.CharField(choices=[('requested', 'Requested'), ('acked', 'Acked'), ('verified', 'Verified'), ('failed', 'Failed'), ('reverted', 'Reverted')], default='requested', max_length=10)),
                ('state_since_at', models.DateTimeField()),
                ('idempotency_key', models.CharField(max_length=120, unique=True)),
                ('lease_until_at', models.DateTimeField(blank=True, help_text='Whoever carries it out goes back by itself after this.', null=True)),
                ('fence', models.PositiveBigIntegerField(default=0, help_text='A report with an older one is ignored.')),
                ('note', models.CharField(blank=True, max_length=500)),
                ('plan', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='actions', to='power.curtailmentplan')),
            ],
            options={
                'ordering': ['plan_id', 'issue_at', 'id'],
                'indexes': [models.Index(fields=['job_id'], name='curtailment_action_by_job'), models.Index(fields=['plan', 'state'], name='curtailment_action_by_state')],
                'constraints': [models.CheckConstraint(condition=models.Q(('lever__in', ('cap', 'shrink', 'pause', 'stop')), ('state__in', ['requested', 'acked', 'verified', 'failed', 'reverted'])), name='curtailment_action_words_are_known'), models.CheckConstraint(condition=models.Q(('expected_w__gte', 0), ('expected_w__lt', 1000000000000.0), models.Q(('idempotency_key', ''), _negated=True)), name='curtailment_action_numbers_are_sane'), models.CheckConstraint(condition=models.Q(('issue_at__lte', models.F('effective_by_at'))), name='curtailment_action_times_are_in_order')],
            },
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.UniqueConstraint(fields=('event', 'number'), name='one_plan_an_event_and_number'),
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'committed')), fields=('event',), name='one_committed_plan_an_event'),
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['draft', 'previewed', 'committed', 'superseded'])), name='curtailment_plan_state_is_known'),
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.CheckConstraint(condition=models.Q(('predicted_shed_w__gte', 0), ('predicted_shed_w__lt', 1000000000000.0), ('shortfall_w__gte', 0), ('shortfall_w__lt', 1000000000000.0), ('lost_device_s__gte', 0), ('lost_device_s__lt', 1000000000000.0), ('bound_device_s__gte', 0), ('bound_device_s__lt', 1000000000000.0), models.Q(('draw_w', None), models.Q(('draw_w__gte', 0), ('draw_w__lt', 1000000000000.0)), _connector='OR'), ('event_version__gte', 1), ('inputs_hash__regex', '^[0-9a-f]{64}$'), ('number__gte', 1)), name='curtailment_plan_numbers_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('committed_at', None), ('expires_at', None), ('previewed_at', None), ('state', 'draft')), models.Q(('committed_at', None), ('previewed_at__isnull', False), ('state', 'previewed')), models.Q(('committed_at__gte', models.F('previewed_at')), ('committed_at__isnull', False), ('previewed_at__isnull', False), ('state', 'committed')), ('state', 'superseded'), _connector='OR'), models.Q(models.Q(('expires_at', None), ('previewed_at', None)), models.Q(('expires_at__gt', models.F('previewed_at')), ('expires_at__isnull', False), ('previewed_at__isnull', False)), _connector='OR')), name='curtailment_plan_times_fit_its_state'),
        ),
        migrations.AddConstraint(
            model_name='curtailmentplan',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', None), ('committed_by', None), models.Q(('approved_by', models.F('committed_by')), _negated=True), _connector='OR'), name='curtailment_plan_is_approved_by_somebody_else'),
        ),
        migrations.AddConstraint(
            model_name='programme',
            constraint=models.CheckConstraint(condition=models.Q(('max_duration_s__lte', 31622400), ('notice_s__lte', 31622400), ('ramp_s__lte', 31622400), ('interval_s__gte', 1), ('interval_s__lte', 31622400), ('min_duration_s__gte', 1), ('tolerance__gte', 0), ('tolerance__lt', 1), models.Q(('two_person_above_w', None), models.Q(('two_person_above_w__gte', 0), ('two_person_above_w__lt', 1000000000000.0)), _connector='OR')), name='programme_numbers_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='programme',
            constraint=models.CheckConstraint(condition=models.Q(('min_duration_s__lte', models.F('max_duration_s'))), name='programme_durations_in_order'),
        ),
        migrations.AddConstraint(
            model_name='programme',
            constraint=models.CheckConstraint(condition=models.Q(('price_per_kwh__gte', 0), ('price_per_kwh__lt', 1000000), ('penalty_per_kwh__gte', 0), ('penalty_per_kwh__lt', 1000000)), name='programme_prices_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='programme',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('max_events_per_day', None), ('max_events_per_day__gte', 1), _connector='OR'), models.Q(('max_events_per_season', None), ('max_events_per_season__gte', 1), _connector='OR')), name='programme_counts_are_positive'),
        ),
        migrations.AddConstraint(
            model_name='programme',
            constraint=models.CheckConstraint(condition=models.Q(('asked_emergency_policy__in', ['', 'none', 'caps', 'caps_and_stops']), ('baseline_method__in', ['meter_before', '10_of_10', '3_plus_2']), ('emergency_policy__in', ['none', 'caps', 'caps_and_stops']), ('target_kind__in', ['shed_by', 'limit_to', 'level'])), name='programme_words_are_known'),
        ),
        migrations.AddIndex(
            model_name='demandresponseevent',
            index=models.Index(fields=['domain', 'start_at'], name='dr_event_by_domain'),
        ),
        migrations.AddIndex(
            model_name='demandresponseevent',
            index=models.Index(fields=['-start_at', '-id'], name='dr_event_by_start'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.UniqueConstraint(condition=models.Q(('external_id', ''), _negated=True), fields=('programme', 'external_id'), name='one_dr_event_a_programme_and_external_id', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(('notified_at__lte', models.F('ramp_start_at')), ('ramp_start_at__lte', models.F('start_at')), ('start_at__lt', models.F('end_at'))), name='dr_event_times_are_in_order'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(('value__gte', 0), ('value__lt', 1000000000000.0), models.Q(models.Q(('target_kind', 'level'), _negated=True), ('value__in', [0, 1, 2, 3]), _connector='OR')), name='dr_event_target_is_sane'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(('priority__lte', 1000), ('recovery_s__lte', 604800), ('rebound_limit_share__gt', 0), ('rebound_limit_share__lte', 10), ('tolerance__gte', 0), ('tolerance__lt', 1), models.Q(('reference_w', None), models.Q(('reference_w__gte', 0), ('reference_w__lt', 1000000000000.0)), _connector='OR')), name='dr_event_numbers_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(('outcome__in', ['', 'met', 'partial', 'missed', 'cancelled', 'opted_out']), ('reference_quality__in', ['ok', 'estimated', 'missing', 'bad']), ('source__in', ['operator', 'openadr', 'schedule', 'emergency']), ('target_kind__in', ['shed_by', 'limit_to', 'level'])), name='dr_event_words_are_known'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(('cancelled_at', None), ('opted_out_at', None), _connector='OR'), name='dr_event_is_given_up_one_way'),
        ),
        migrations.AddConstraint(
            model_name='demandresponseevent',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('cancelled_at__isnull', False), ('outcome', 'cancelled')), models.Q(('opted_out_at__isnull', False), ('outcome', 'opted_out')), models.Q(('cancelled_at', None), ('opted_out_at', None), models.Q(('outcome__in', ['cancelled', 'opted_out']), _negated=True)), _connector='OR'), name='dr_event_given_up_has_that_outcome'),
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
