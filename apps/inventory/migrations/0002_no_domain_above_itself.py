"""A domain is never its own ancestor, not even when two people move domains at the same moment."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION inventory_domain_is_not_above_itself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Moves of domains take turns: two of them, each harmless alone, could close a circle together.
    PERFORM pg_advisory_xact_lock(hashtext('inventory_domain_tree'));
    IF EXISTS (
        WITH RECURSIVE above(id) AS (
            SELECT NEW.parent_id
            UNION
            SELECT parent_id FROM inventory_domain JOIN above USING (id) WHERE parent_id IS NOT NULL
        )
        SELECT FROM above WHERE id = NEW.id
    ) THEN
        RAISE EXCEPTION 'domain % would be above itself', NEW.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'domain_is_not_above_itself';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER domain_is_not_above_itself BEFORE INSERT OR UPDATE OF parent_id ON inventory_domain
    FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL) EXECUTE FUNCTION inventory_domain_is_not_above_itself();
"""
BACKWARD = """
DROP TRIGGER domain_is_not_above_itself ON inventory_domain;
DROP FUNCTION inventory_domain_is_not_above_itself();
"""


class Migration(migrations.Migration):
    dependencies = [("inventory", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
