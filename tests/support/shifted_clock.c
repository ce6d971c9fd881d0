/* A wall clock that is off by what /etc/bireme-clock says, in seconds; tests/clocks.py loads it into every program.
 *
 * Only the wall clock: intervals are measured, and sleeps made, with the monotonic one, which stays what it is.
 * The file is mapped, so that a look at the clock costs no call of the kernel's more than before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *offset;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = open("/etc/bireme-clock", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real_clock ? real_clock(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    double seconds = *offset;
    long whole = (long)seconds;
    now->tv_sec += whole;
    now->tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (now->tv_nsec >= 1000000000L) {
        now->tv_nsec -= 1000000000L;
        now->tv_sec += 1;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
