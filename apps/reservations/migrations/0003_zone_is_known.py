"""A reservation's time zone has a name that the zone tables know; POSIX rules and made-up names are refused."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION reservations_zone_is_known() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- AT TIME ZONE alone would also take a POSIX rule such as 'LUNCH-3'.
    IF NEW.time_zone !~ '^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$' OR NEW.time_zone ~ '^[A-Za-z]+[+-]?[0-9]' THEN
        RAISE invalid_parameter_value;
    END IF;
    PERFORM NEW.starts_at AT TIME ZONE NEW.time_zone;
    RETURN NEW;
EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION '% is not the name of a time zone', NEW.time_zone
        USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_zone_is_known';
END
$$;
CREATE TRIGGER reservation_zone_is_known BEFORE INSERT OR UPDATE OF time_zone ON reservations_reservation
    FOR EACH ROW EXECUTE FUNCTION reservations_zone_is_known();
"""
BACKWARD = """
DROP TRIGGER reservation_zone_is_known ON reservations_reservation;
DROP FUNCTION reservations_zone_is_known();
"""


class Migration(migrations.Migration):
    dependencies = [("reservations", "0002_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
