from django.db import migrations, models

FORWARD = """
CREATE FUNCTION jobs_note_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.transaction_id := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;
CREATE TRIGGER job_notes_transaction BEFORE INSERT OR UPDATE ON jobs_job
    FOR EACH ROW EXECUTE FUNCTION jobs_note_transaction();
"""
BACKWARD = """
DROP TRIGGER job_notes_transaction ON jobs_job;
DROP FUNCTION jobs_note_transaction();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0005_fewer_indexes'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='transaction_id',
            field=models.BigIntegerField(default=0, editable=False, help_text='The transaction that changed it last; a trigger writes it.'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['transaction_id'], name='job_by_transaction'),
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
