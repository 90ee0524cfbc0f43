/* Preloaded into a process, it makes each sync of a file take as many milliseconds longer as the file that
   SLOW_DISK names has in it: a disk that is slow for as long as a test wants. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_disk(void) {
    const char *path = getenv("SLOW_DISK");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned milliseconds = 0;
    if (file) {
        if (fscanf(file, "%u", &milliseconds) != 1) milliseconds = 0;
        fclose(file);
    }
    usleep(milliseconds * 1000);
}

int fsync(int file) {
    int (*sync_file)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return sync_file(file);
}

int fdatasync(int file) {
    int (*sync_file)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return sync_file(file);
}
