from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0015_resizes'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='worked_s',
            field=models.FloatField(default=0, help_text='What ended attempts did and kept, as running time at the preferred size.'),
        ),
        # At which size it was done nobody wrote down: as it was counted until now.
        migrations.RunSQL(
            'UPDATE jobs_job SET worked_s = ran_s - lost_s WHERE ran_s > lost_s', migrations.RunSQL.noop
        ),
        migrations.RemoveConstraint(model_name='job', name='job_numbers_are_sane'),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('n_devices__gte', 0), models.Q(('time_limit_s', None), ('time_limit_s__gt', 0), _connector='OR'), models.Q(('runtime_s', None), ('runtime_s__gt', 0), _connector='OR'), ('lost_s__gte', 0), ('ran_s__gte', 0), ('worked_s__gte', 0)), name='job_numbers_are_sane'),
        ),
    ]
