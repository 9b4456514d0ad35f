/* A driver for tests: eight devices of 700 W, their limits in files DEVICE of a folder that is built in. */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static void place(char *path, size_t size, const char *name) { snprintf(path, size, "%s/%s", FOLDER, name); }

static void of_device(char *path, size_t size, void *device) {
    char name[32];
    snprintf(name, sizeof name, "%d", (int)(intptr_t)device - 1);
    place(path, size, name);
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 4 ? "Insufficient Permissions" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(intptr_t)(index + 1); return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *mw) { (void)device; *mw = 700000; return 0; }
int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *least, unsigned *most) {
    (void)device; *least = 200000; *most = 700000; return 0;
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) {
    char path[4096];
    of_device(path, sizeof path, device);
    FILE *file = fopen(path, "r");
    *mw = 700000;
    if (file) { if (fscanf(file, "%u", mw) != 1) *mw = 700000; fclose(file); }
    return 0;
}
int nvmlDeviceSetPowerManagementLimit(void *device, unsigned mw) {
    char path[4096];
    place(path, sizeof path, "refuses");
    if (access(path, F_OK) == 0) return 4;
    of_device(path, sizeof path, device);
    FILE *file = fopen(path, "w");
    if (!file) return 999;
    fprintf(file, "%u", mw);
    fclose(file);
    return 0;
}
