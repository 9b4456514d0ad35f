from django.db import migrations, models
from django.db.models.functions import Now

FORWARD = """
CREATE FUNCTION scheduling_note_facility_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduling_facilitychange DEFAULT VALUES;
    RETURN NULL;
END $$;
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OR DELETE ON inventory_acceleratortype
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OR DELETE ON inventory_domain
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OF name, backend, is_enabled OR DELETE ON inventory_cluster
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OF name, accelerator_type_id, n_devices, cpus, memory_gib,
        scale_up_id, leaf_id, power_id, cooling_id, storage_id, idle_w, speed, measured_speed, cluster_id
        OR DELETE ON inventory_node
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OR DELETE ON power_powerlimit
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
CREATE TRIGGER facility_changes AFTER INSERT OR UPDATE OF name, parent_id OR DELETE ON teams_team
    FOR EACH STATEMENT EXECUTE FUNCTION scheduling_note_facility_change();
-- The newest row is never deleted: where there is none, nothing has changed since this migration.
INSERT INTO scheduling_facilitychange DEFAULT VALUES;
"""
BACKWARD = """
DROP TRIGGER facility_changes ON inventory_acceleratortype;
DROP TRIGGER facility_changes ON inventory_domain;
DROP TRIGGER facility_changes ON inventory_cluster;
DROP TRIGGER facility_changes ON inventory_node;
DROP TRIGGER facility_changes ON power_powerlimit;
DROP TRIGGER facility_changes ON teams_team;
DROP FUNCTION scheduling_note_facility_change();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0004_health_seen'),
        ('power', '0001_initial'),
        ('teams', '0005_health_scope'),
        ('scheduling', '0004_earmark'),
    ]

    operations = [
        migrations.CreateModel(
            name='FacilityChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
