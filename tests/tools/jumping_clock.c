/* Loaded before the C library, it makes the wall clock jump: each look shows a day more or a day less than the one before.
 * Other clocks stay as they are.
 *
 *   cc -shared -fPIC -o jumping_clock.so jumping_clock.c && LD_PRELOAD=./jumping_clock.so date
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static long looks;
    int failed = syscall(SYS_clock_gettime, clock, now) != 0;
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED) % 2 ? -43200 : 43200;
    return failed ? -1 : 0;
}
