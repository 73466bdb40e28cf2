// Loaded before the C library, it sets the system's clock back for one program: by ECOTONE_TEST_BEHIND_S seconds. All other clocks go on as
// they are.

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static time_t behind_s;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("ECOTONE_TEST_BEHIND_S");
    behind_s = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long outcome = syscall(SYS_clock_gettime, clock, now);
    if (outcome == 0 && clock == CLOCK_REALTIME) now->tv_sec -= behind_s;
    return (int)outcome;
}
