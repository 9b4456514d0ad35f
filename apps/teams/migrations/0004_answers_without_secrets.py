from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("teams", "0003_tally")]

    operations = [
        migrations.AlterField(
            model_name="idempotentanswer", name="created_at", field=models.DateTimeField(db_index=True)
        ),
        # Answers about jobs and clusters held what not everybody may see; what is needed to make them anew stays.
        migrations.RunSQL(
            "UPDATE teams_idempotentanswer SET body = jsonb_build_object('id', body->'id')"
            " WHERE jsonb_typeof(body) = 'object' AND body ? 'is_private_shown';"
            "UPDATE teams_idempotentanswer SET body = jsonb_build_object('name', body->'name')"
            " WHERE jsonb_typeof(body) = 'object' AND body ? 'config'",
            migrations.RunSQL.noop,
        ),
    ]
