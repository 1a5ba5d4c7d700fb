/* Move the wall clock of one running process.
 *
 * Preloaded into a server, this answers the three calls by which a program asks for the time of day,
 * and adds an offset that a test may change at any moment: the first eight bytes of the file
 * HEADGATE_CLOCK_OFFSET, nanoseconds as a native 64-bit integer, mapped so that a change is seen at
 * once. The monotonic clock stays true, as it does when an operator sets the time of a machine.
 *
 * It drifts if HEADGATE_CLOCK_PER_MILLE says how many thousandths of a second it counts in a second, from the first time
 * that it is read. What the kernel waits for is not affected, so a program may wake too early or too late.
 *
 * clock_gettime asks the kernel itself: looking up the C library's version would allocate, and an
 * allocator that asks for the time would come back here before it is ready.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL

static const volatile long long *offset_ns;
static const long long no_offset_ns = 0;

static long long read_offset_ns(void) {
    if (!offset_ns) {
        const char *path = getenv("HEADGATE_CLOCK_OFFSET");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED
                                : mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        offset_ns = mapped == MAP_FAILED ? &no_offset_ns : mapped;
    }
    return *offset_ns;
}

static long long drifted_ns(long long now_ns) {
    static long long per_mille, begun_ns;
    if (!per_mille) {
        const char *given = getenv("HEADGATE_CLOCK_PER_MILLE");
        begun_ns = now_ns;
        per_mille = given ? atoll(given) : 1000;
    }
    return begun_ns + (now_ns - begun_ns) / 1000 * per_mille;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_MONOTONIC) {
        long long now_ns = drifted_ns(now->tv_sec * SECOND_NS + now->tv_nsec);
        now->tv_sec = now_ns / SECOND_NS;
        now->tv_nsec = now_ns % SECOND_NS;
    }
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long now_ns = now->tv_sec * SECOND_NS + now->tv_nsec + read_offset_ns();
        now->tv_sec = now_ns / SECOND_NS;
        now->tv_nsec = now_ns % SECOND_NS;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return (time_t)-1;
    if (seconds) *seconds = exact.tv_sec;
    return exact.tv_sec;
}
