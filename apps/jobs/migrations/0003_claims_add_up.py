"""What a device says is claimed of it is what its open claims add up to, at every commit.

A transaction writes devices and claims in either order, so the sums can only be compared at its end; PostgreSQL
defers triggers a row at a time, and one look-up a claim would cost more than the claim itself. So each statement
notes the devices it touched in a variable of the transaction, and the first deferred trigger compares them all
at once; those after it find the variable empty and go home.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION jobs_note_claimed_devices() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text;
BEGIN
    IF TG_TABLE_NAME = 'jobs_deviceclaim' THEN
        SELECT string_agg(device_id::text, ',') INTO touched FROM changed;
    ELSE
        SELECT string_agg(id::text, ',') INTO touched FROM changed;
    END IF;
    IF touched IS NOT NULL THEN
        PERFORM set_config(
            'switchyard.claimed_devices',
            concat_ws(',', nullif(current_setting('switchyard.claimed_devices', true), ''), touched),
            true
        );
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_claimed_devices_of_insert AFTER INSERT ON jobs_deviceclaim
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION jobs_note_claimed_devices();
CREATE TRIGGER note_claimed_devices_of_update AFTER UPDATE ON jobs_deviceclaim
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION jobs_note_claimed_devices();
CREATE TRIGGER note_claimed_devices_of_delete AFTER DELETE ON jobs_deviceclaim
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION jobs_note_claimed_devices();
CREATE TRIGGER note_claimed_devices AFTER UPDATE ON inventory_device
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION jobs_note_claimed_devices();

-- By index, always: a plan made while the tables were empty would read all claims for each device for ever after.
CREATE FUNCTION jobs_check_claims(touched text) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    fault record;
BEGIN
    SELECT device.id, device.claimed_share AS said, coalesce(held.share, 0) AS held INTO fault
        FROM (SELECT DISTINCT unnest(string_to_array(touched, ',')::bigint[]) AS id) noted
        JOIN inventory_device device ON device.id = noted.id
        LEFT JOIN LATERAL (
            SELECT sum(claim.share) AS share FROM jobs_deviceclaim claim
            WHERE claim.device_id = noted.id AND claim.released_at IS NULL
        ) held ON true
        WHERE device.claimed_share <> coalesce(held.share, 0);  -- any of them will do
    IF FOUND THEN
        RAISE EXCEPTION 'device % says that % of it is claimed, its open claims add up to %',
            fault.id, fault.said, fault.held USING ERRCODE = 'check_violation', CONSTRAINT = 'claims_add_up';
    END IF;
END
$$;
CREATE FUNCTION jobs_require_claims_to_add_up() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text := current_setting('switchyard.claimed_devices', true);
BEGIN
    IF touched IS NULL OR touched = '' THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('switchyard.claimed_devices', '', true);
    PERFORM jobs_check_claims(touched);
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER claims_add_up AFTER INSERT OR UPDATE OR DELETE ON jobs_deviceclaim
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION jobs_require_claims_to_add_up();
CREATE CONSTRAINT TRIGGER claims_add_up AFTER UPDATE ON inventory_device
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.claimed_share IS DISTINCT FROM NEW.claimed_share) EXECUTE FUNCTION jobs_require_claims_to_add_up();
"""
BACKWARD = """
DROP TRIGGER claims_add_up ON inventory_device;
DROP TRIGGER claims_add_up ON jobs_deviceclaim;
DROP FUNCTION jobs_require_claims_to_add_up();
DROP FUNCTION jobs_check_claims(text);
DROP TRIGGER note_claimed_devices ON inventory_device;
DROP TRIGGER note_claimed_devices_of_insert ON jobs_deviceclaim;
DROP TRIGGER note_claimed_devices_of_update ON jobs_deviceclaim;
DROP TRIGGER note_claimed_devices_of_delete ON jobs_deviceclaim;
DROP FUNCTION jobs_note_claimed_devices();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_initial"), ("inventory", "0002_no_domain_above_itself")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
