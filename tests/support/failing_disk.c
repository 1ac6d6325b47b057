/* Gives EIO or delays at the paths that tests ask for; tests/support/failing_disk.py has the list of faults. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Return the second line of the file that switches `fault` on for this path, or 0; -1 when it is off. */
static long wanted(const char *fault, const char *path) {
    const char *directory = getenv("FAILING_DISK");
    char name[4096], where[4096];
    if (!directory) return -1;
    snprintf(name, sizeof name, "%s/%s", directory, fault);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t size = syscall(SYS_read, file, where, sizeof where - 1);
    close(file);
    if (size <= 0) return -1;
    where[size] = 0;
    char *line = strchr(where, '\n');
    if (line) *line++ = 0;
    return strstr(path, where) ? (line ? atol(line) : 0) : -1;
}

static long wanted_for(const char *fault, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return -1;
    path[length] = 0;
    return wanted(fault, path);
}

static int fails(const char *fault, int fd) {
    if (wanted_for(fault, fd) < 0) return 0;
    errno = EIO;
    return 1;
}

static void wait_for_disk(const char *fault, int fd) {
    for (long waited = 0; waited < wanted_for(fault, fd); waited += 5) usleep(5000);
}

int fdatasync(int fd) {
    wait_for_disk("sync", fd);
    return fails("write", fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
    wait_for_disk("sync", fd);
    return fails("write", fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    wait_for_disk("slow", fd);
    return fails("write", fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, position);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t position) { return pwrite64(fd, data, size, position); }

ssize_t pread64(int fd, void *data, size_t size, off64_t position) {
    return fails("read", fd) ? -1 : syscall(SYS_pread64, fd, data, size, position);
}

ssize_t pread(int fd, void *data, size_t size, off_t position) { return pread64(fd, data, size, position); }

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t position, int flags) {
    return fails("read", fd) ? -1 : syscall(SYS_preadv2, fd, parts, count, position, 0, flags);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    return preadv64v2(fd, parts, count, position, flags);
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t position) {
    return preadv64v2(fd, parts, count, position, 0);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t position) {
    return preadv64v2(fd, parts, count, position, 0);
}

ssize_t sendfile64(int out, int in, off64_t *position, size_t size) {
    return fails("read", in) ? -1 : syscall(SYS_sendfile, out, in, position, size);
}

ssize_t sendfile(int out, int in, off_t *position, size_t size) { return sendfile64(out, in, position, size); }

int rename(const char *old, const char *new) {
    if (wanted("rename", old) >= 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_rename, old, new);
}
