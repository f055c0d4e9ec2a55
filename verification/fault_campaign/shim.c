/* What a process sees of its disk and its clock, as the controller wants it.
 *
 * Loaded into a process with LD_PRELOAD. The controller and the process share one page, which is
 * a file that CAMPAIGN_BOARD names:
 *
 *     clock_offset_ns   added to the wall clock; the monotonic clock never jumps
 *     sync_delay_us     every fsync and fdatasync takes so much longer
 *     sync_fails_in     counts down with every sync: the one that makes it 0 fails with EIO
 *     sync_failed       how many have failed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct board {
    _Atomic int64_t clock_offset_ns;
    _Atomic int64_t sync_delay_us;
    _Atomic int64_t sync_fails_in;
    _Atomic int64_t sync_failed;
};

static struct board *board;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

extern void *dlsym(void *, const char *);
#define NEXT ((void *)-1l)

__attribute__((constructor)) static void look(void)
{
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(NEXT, "clock_gettime");
    const char *path = getenv("CAMPAIGN_BOARD");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        board = page;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int result = real_clock_gettime ? real_clock_gettime(which, now)
                                    : (int)syscall(SYS_clock_gettime, which, now);
    if (result == 0 && board && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t all_ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + board->clock_offset_ns;
        now->tv_sec = all_ns / 1000000000;
        now->tv_nsec = all_ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}

static int sync_one(long number, int file)
{
    if (board) {
        if (board->sync_delay_us)
            usleep((useconds_t)board->sync_delay_us);
        if (board->sync_fails_in > 0 && atomic_fetch_sub(&board->sync_fails_in, 1) == 1) {
            atomic_fetch_add(&board->sync_failed, 1);
            errno = EIO;
            return -1;
        }
    }
    return (int)syscall(number, file);
}

int fsync(int file)
{
    return sync_one(SYS_fsync, file);
}

int fdatasync(int file)
{
    return sync_one(SYS_fdatasync, file);
}
