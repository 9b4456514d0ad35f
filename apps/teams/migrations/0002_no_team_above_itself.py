"""A team is never its own ancestor, not even when two people move teams at the same moment."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION teams_team_is_not_above_itself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Moves of teams take turns: two of them, each harmless alone, could close a circle together.
    PERFORM pg_advisory_xact_lock(hashtext('teams_team_tree'));
    IF EXISTS (
        WITH RECURSIVE above(id) AS (
            SELECT NEW.parent_id
            UNION
            SELECT parent_id FROM teams_team JOIN above USING (id) WHERE parent_id IS NOT NULL
        )
        SELECT FROM above WHERE id = NEW.id
    ) THEN
        RAISE EXCEPTION 'team % would be above itself', NEW.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'team_is_not_above_itself';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER team_is_not_above_itself BEFORE INSERT OR UPDATE OF parent_id ON teams_team
    FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL) EXECUTE FUNCTION teams_team_is_not_above_itself();
"""
BACKWARD = """
DROP TRIGGER team_is_not_above_itself ON teams_team;
DROP FUNCTION teams_team_is_not_above_itself();
"""


class Migration(migrations.Migration):
    dependencies = [("teams", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
