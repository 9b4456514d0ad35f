"""Settlements of demand-response events, each version as it was made."""

import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models


# What somebody was paid by is kept: the database itself refuses to change or delete it. A later version stands beside.
FORWARD = """
CREATE FUNCTION power_settlement_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a settlement stays as it is: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'settlement_is_immutable';
END
$$;
CREATE TRIGGER settlement_is_immutable BEFORE UPDATE OR DELETE ON power_settlementreport
    FOR EACH ROW EXECUTE FUNCTION power_settlement_is_immutable();
"""
BACKWARD = """
DROP TRIGGER settlement_is_immutable ON power_settlementreport;
DROP FUNCTION power_settlement_is_immutable();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('power', '0007_holds'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='SettlementReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField(help_text='Version of the report, from 1 on for each event.')),
                ('event_version', models.PositiveIntegerField(help_text='Of the event, as it was when this was made.')),
                ('settled_at', models.DateTimeField()),
                ('outcome', models.CharField(choices=[('', 'not known yet'), ('met', 'Met'), ('partial', 'Partial'), ('missed', 'Missed'), ('cancelled', 'Cancelled'), ('opted_out', 'Opted Out')], max_length=10)),
                ('performance', models.DecimalField(blank=True, decimal_places=6, help_text='Empty: it never bound.', max_digits=7, null=True)),
                ('target_wh', models.DecimalField(decimal_places=6, max_digits=20)),
                ('delivered_wh', models.DecimalField(decimal_places=6, help_text='Negative: more was drawn.', max_digits=20)),
                ('credited_wh', models.DecimalField(decimal_places=6, max_digits=20)),
                ('shortfall_wh', models.DecimalField(decimal_places=6, max_digits=20)),
                ('payment', models.DecimalField(decimal_places=2, max_digits=20)),
                ('penalty', models.DecimalField(decimal_places=2, max_digits=20)),
                ('net', models.DecimalField(decimal_places=2, max_digits=20)),
                ('currency', models.CharField(max_length=3)),
                ('lost_device_h', models.DecimalField(decimal_places=6, max_digits=20)),
                ('lost_source', models.CharField(choices=[('actions', 'counted from what was done to each job'), ('plan', 'as the plan predicted'), ('none', 'nothing was done to any job')], max_length=10)),
                ('n_jobs', models.PositiveIntegerField(help_text='That were curtailed.')),
                ('n_readings', models.PositiveIntegerField(help_text='That it was made from.')),
                ('digest', models.CharField(help_text='SHA-256, hex, of the document.', max_length=64)),
                ('document', models.JSONField(help_text='settlement.report.as_dict(), and what else is told of it.')),
                ('event', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='settlements', to='power.demandresponseevent')),
                ('settled_by', models.ForeignKey(blank=True, help_text='Empty: by itself.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['event_id', 'number'],
                'constraints': [models.UniqueConstraint(fields=('event', 'number'), name='one_settlement_an_event_and_number'), models.CheckConstraint(condition=models.Q(('lost_source__in', ['actions', 'plan', 'none']), ('outcome__in', ['met', 'partial', 'missed', 'cancelled', 'opted_out'])), name='settlement_words_are_known'), models.CheckConstraint(condition=models.Q(('digest__regex', '^[0-9a-f]{64}$'), ('event_version__gte', 1), ('number__gte', 1), ('credited_wh__gte', 0), ('lost_device_h__gte', 0), ('shortfall_wh__gte', 0), ('target_wh__gte', 0), ('credited_wh__lte', models.F('target_wh')), ('payment__gte', 0), ('penalty__gte', 0), models.Q(('performance', None), models.Q(('performance__gte', 0), ('performance__lte', 1)), _connector='OR')), name='settlement_numbers_are_sane'), models.CheckConstraint(condition=models.Q(('net', django.db.models.expressions.CombinedExpression(models.F('payment'), '-', models.F('penalty')))), name='settlement_net_is_payment_less_penalty')],
            },
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
