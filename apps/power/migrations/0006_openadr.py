"""Servers of OpenADR, what they said last, and what became of it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0004_health_seen'),
        ('power', '0005_telemetry'),
    ]

    operations = [
        migrations.CreateModel(
            name='VtnConnection',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120, unique=True)),
                ('base_url', models.CharField(max_length=500)),
                ('token_url', models.CharField(blank=True, help_text='Empty: asked of the VTN.', max_length=500)),
                ('protocol', models.CharField(choices=[('3.0.1', 'V3 0 1'), ('3.1.0', 'V3 1 0')], default='3.1.0', max_length=10)),
                ('client_id', models.CharField(max_length=200)),
                ('sealed_secret', models.TextField(help_text='The client secret, encrypted; never shown.')),
                ('scope', models.CharField(blank=True, max_length=200)),
                ('ven_name', models.CharField(max_length=128)),
                ('poll_s', models.PositiveIntegerField(default=60)),
                ('silent_after_s', models.PositiveIntegerField(default=300, help_text='Without a complete listing for so long, the VTN counts as silent.')),
                ('is_enabled', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField()),
                ('version', models.PositiveIntegerField(default=1)),
                ('fence', models.PositiveBigIntegerField(default=0)),
                ('next_poll_at', models.DateTimeField(blank=True, help_text='Empty: at once.', null=True)),
                ('polled_at', models.DateTimeField(blank=True, null=True)),
                ('listed_at', models.DateTimeField(blank=True, help_text='Of the last complete listing.', null=True)),
                ('last_error', models.CharField(blank=True, max_length=500)),
                ('n_failures', models.PositiveIntegerField(default=0, help_text='One after the other.')),
                ('silent_since_at', models.DateTimeField(blank=True, null=True)),
                ('notes', models.JSONField(blank=True, default=list, help_text='What was passed over in the last listing.')),
                ('ven_id', models.CharField(blank=True, help_text='Ours, at the VTN.', max_length=128)),
                ('registered_version', models.PositiveIntegerField(default=0, help_text='Of the connection, when we last registered by it.')),
                ('domain', models.ForeignKey(help_text='What it speaks for.', on_delete=django.db.models.deletion.PROTECT, related_name='+', to='inventory.domain')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='VtnEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('external_id', models.CharField(max_length=128)),
                ('programme_external_id', models.CharField(blank=True, max_length=128)),
                ('name', models.CharField(blank=True, max_length=500)),
                ('modified_at', models.DateTimeField(blank=True, help_text='The newest version ever seen.', null=True)),
                ('signal', models.JSONField(blank=True, help_text='The last good version, in our words; empty: none.', null=True)),
                ('revision', models.PositiveIntegerField(default=0, help_text='Counts the versions taken in.')),
                ('first_listed_at', models.DateTimeField()),
                ('gone_at', models.DateTimeField(blank=True, help_text='Since when it is not listed.', null=True)),
                ('trouble', models.CharField(blank=True, choices=[('', 'none'), ('refused', 'cannot be what is meant'), ('needs_person', 'needs a person')], default='', max_length=20)),
                ('trouble_text', models.CharField(blank=True, max_length=500)),
                ('trouble_fingerprint', models.CharField(blank=True, help_text='Of what was in trouble.', max_length=64)),
                ('is_acceptable', models.BooleanField(default=False, help_text='It is acted on once a person says that it is meant.')),
                ('accepted_fingerprint', models.CharField(blank=True, help_text='Of the version that a person said is meant.', max_length=64)),
                ('connection', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='vtn_events', to='power.vtnconnection')),
            ],
            options={
                'ordering': ['connection_id', '-first_listed_at', 'external_id'],
            },
        ),
        migrations.CreateModel(
            name='VtnAnnouncement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(help_text='External id of our event.', max_length=200)),
                ('asked', models.CharField(help_text='Digest of what it asks; the same again is not told again.', max_length=64)),
                ('heard_at', models.DateTimeField(help_text='It binds from here at the earliest.')),
                ('told_at', models.DateTimeField(help_text='When it was last announced or changed.')),
                ('withdrawn_at', models.DateTimeField(blank=True, null=True)),
                ('event', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='vtn_announcement', to='power.demandresponseevent')),
                ('connection', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='announcements', to='power.vtnconnection')),
                ('vtn_event', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='announcements', to='power.vtnevent')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='VtnProgramme',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('external_id', models.CharField(max_length=128)),
                ('default_units', models.CharField(blank=True, default='KW', help_text='Of power without units; empty: refused.', max_length=2)),
                ('is_shed_negative', models.BooleanField(default=False, help_text='A reduction by DISPATCH_SETPOINT_RELATIVE is a negative number.')),
                ('is_test', models.BooleanField(default=False, help_text='All its events are drills.')),
                ('test_marker', models.CharField(blank=True, help_text='An event whose name holds this is a drill.', max_length=50)),
                ('has_fallback', models.BooleanField(default=False, help_text='The subscribed import capacity binds while the VTN is silent.')),
                ('connection', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='programmes', to='power.vtnconnection')),
                ('programme', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='power.programme')),
            ],
            options={
                'ordering': ['connection_id', 'external_id'],
            },
        ),
        migrations.CreateModel(
            name='VtnReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('position', models.PositiveIntegerField(help_text="Of the request among the event's.")),
                ('payload_type', models.CharField(max_length=128)),
                ('sequence', models.IntegerField(default=-1, help_text='Of the last one that is done with; -1: none.')),
                ('sent_at', models.DateTimeField(blank=True, null=True)),
                ('next_try_at', models.DateTimeField(blank=True, null=True)),
                ('n_failures', models.PositiveIntegerField(default=0)),
                ('last_error', models.CharField(blank=True, max_length=500)),
                ('vtn_event', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reports', to='power.vtnevent')),
            ],
            options={
                'ordering': ['vtn_event_id', 'position'],
            },
        ),
        migrations.CreateModel(
            name='VtnResource',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=128)),
                ('connection', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='resources', to='power.vtnconnection')),
                ('domain', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='inventory.domain')),
            ],
            options={
                'ordering': ['connection_id', 'name'],
            },
        ),
        migrations.AddConstraint(
            model_name='vtnconnection',
            constraint=models.CheckConstraint(condition=models.Q(('protocol__in', ['3.0.1', '3.1.0'])), name='vtn_connection_protocol_is_known'),
        ),
        migrations.AddConstraint(
            model_name='vtnconnection',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('name', ''), _negated=True), models.Q(('base_url', ''), _negated=True), models.Q(('client_id', ''), _negated=True), models.Q(('sealed_secret', ''), _negated=True), models.Q(('ven_name', ''), _negated=True)), name='vtn_connection_is_whole'),
        ),
        migrations.AddConstraint(
            model_name='vtnconnection',
            constraint=models.CheckConstraint(condition=models.Q(('poll_s__gte', 10), ('poll_s__lte', 3600), ('silent_after_s__gte', models.F('poll_s')), ('silent_after_s__lte', 86400)), name='vtn_connection_times_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='vtnconnection',
            constraint=models.CheckConstraint(condition=models.Q(('n_failures', 0), models.Q(('last_error', ''), _negated=True), _connector='OR'), name='vtn_connection_failure_has_a_reason'),
        ),
        migrations.AddIndex(
            model_name='vtnevent',
            index=models.Index(fields=['connection', 'gone_at'], name='vtn_event_by_gone'),
        ),
        migrations.AddConstraint(
            model_name='vtnevent',
            constraint=models.UniqueConstraint(fields=('connection', 'external_id'), name='one_vtn_event_a_connection_and_id'),
        ),
        migrations.AddConstraint(
            model_name='vtnevent',
            constraint=models.CheckConstraint(condition=models.Q(('external_id__regex', '^[a-zA-Z0-9_-]{1,128}$')), name='vtn_event_id_is_one'),
        ),
        migrations.AddConstraint(
            model_name='vtnevent',
            constraint=models.CheckConstraint(condition=models.Q(('trouble__in', ['', 'refused', 'needs_person']), models.Q(('is_acceptable', False), ('trouble', 'needs_person'), _connector='OR'), models.Q(models.Q(('trouble', ''), ('trouble_text', '')), models.Q(models.Q(('trouble', ''), _negated=True), models.Q(('trouble_text', ''), _negated=True)), _connector='OR')), name='vtn_event_trouble_has_a_reason'),
        ),
        migrations.AddConstraint(
            model_name='vtnevent',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('revision', 0), ('signal', None)), models.Q(('modified_at__isnull', False), ('revision__gte', 1), ('signal__isnull', False)), _connector='OR'), name='vtn_event_signal_has_a_version'),
        ),
        migrations.AddConstraint(
            model_name='vtnannouncement',
            constraint=models.UniqueConstraint(fields=('connection', 'key'), name='one_vtn_announcement_a_connection_and_key'),
        ),
        migrations.AddConstraint(
            model_name='vtnannouncement',
            constraint=models.CheckConstraint(condition=models.Q(('asked__regex', '^[0-9a-f]{64}$')), name='vtn_announcement_digest'),
        ),
        migrations.AddConstraint(
            model_name='vtnprogramme',
            constraint=models.UniqueConstraint(fields=('connection', 'external_id'), name='one_vtn_programme_a_connection_and_id'),
        ),
        migrations.AddConstraint(
            model_name='vtnprogramme',
            constraint=models.CheckConstraint(condition=models.Q(('external_id__regex', '^[a-zA-Z0-9_-]{1,128}$'), ('default_units__in', ['', 'W', 'KW', 'MW'])), name='vtn_programme_words_are_known'),
        ),
        migrations.AddConstraint(
            model_name='vtnreport',
            constraint=models.UniqueConstraint(fields=('vtn_event', 'position'), name='one_vtn_report_a_request'),
        ),
        migrations.AddConstraint(
            model_name='vtnreport',
            constraint=models.CheckConstraint(condition=models.Q(('sequence__gte', -1)), name='vtn_report_numbers_are_sane'),
        ),
        migrations.AddConstraint(
            model_name='vtnresource',
            constraint=models.UniqueConstraint(fields=('connection', 'name'), name='one_vtn_resource_a_connection_and_name'),
        ),
        migrations.AddConstraint(
            model_name='vtnresource',
            constraint=models.UniqueConstraint(fields=('connection', 'domain'), name='one_vtn_resource_a_connection_and_domain'),
        ),
        migrations.AddConstraint(
            model_name='vtnresource',
            constraint=models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='vtn_resource_has_a_name'),
        ),
    ]
