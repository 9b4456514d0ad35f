"""What was logged stays as it was: the database itself refuses to change or delete an event."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION events_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Test runs empty their tables between tests; Django names their databases test_*.
    IF TG_OP = 'TRUNCATE' AND current_database() LIKE 'test\\_%' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'events are append-only: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'event_is_append_only';
END
$$;
CREATE TRIGGER event_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events_event
    FOR EACH STATEMENT EXECUTE FUNCTION events_event_is_append_only();
"""
BACKWARD = """
DROP TRIGGER event_is_append_only ON events_event;
DROP FUNCTION events_event_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
