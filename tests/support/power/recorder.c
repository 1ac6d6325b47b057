/* A recorder of a process's effects on the files below one directory, in the order in which they happen.
 *
 * Loaded with LD_PRELOAD. POWER_ROOT names the directory, POWER_TRACE the file that records are appended to. One lock is
 * held over each call and its record, so the order of records is the order of effects. Stores into shared mappings are
 * noticed at the next recorded call: each mapped file is compared with a copy, and changed pages are recorded as writes.
 *
 * Record: u32 size of the rest | u8 operation | u64 inode | i64 number | u32 size of text | text | data
 * Operations are listed in trace.py. SQLite's -shm is left out: it is rebuilt by the first process that opens the store.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define LONGEST (2 * PATH_MAX)
#define MAPPINGS 256
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int trace = -1;
static char root[PATH_MAX];
static size_t root_size;
static struct mapping { int fd; uint64_t inode; char *copy; size_t size; } mappings[MAPPINGS];
static int mapping_count;

/* Begin to record once the variables are there. A forked process gets them after its libraries were loaded. */
__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("POWER_TRACE"), *directory = getenv("POWER_ROOT");
    if (!file || !directory) return;
    pthread_mutex_lock(&lock);
    if (trace < 0 && realpath(directory, root)) {
        root_size = strlen(root);
        trace = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CLOEXEC);
    }
    pthread_mutex_unlock(&lock);
}

static int records(void) {
    if (trace < 0) begin();
    return trace >= 0;
}

static int is_below(const char *path) {
    return records() && !strncmp(path, root, root_size) && (!path[root_size] || path[root_size] == '/');
}

static void put(char operation, uint64_t inode, int64_t number, const char *text, const void *data, size_t size) {
    uint32_t text_size = strlen(text), total = 1 + 8 + 8 + 4 + text_size + size;
    char head[25 + LONGEST * 2 + 2];
    memcpy(head, &total, 4);
    head[4] = operation;
    memcpy(head + 5, &inode, 8);
    memcpy(head + 13, &number, 8);
    memcpy(head + 21, &text_size, 4);
    memcpy(head + 25, text, text_size);
    struct iovec parts[2] = {{head, 25 + text_size}, {(void *)data, size}};
    if (syscall(SYS_writev, trace, parts, size ? 2 : 1) != (ssize_t)(4 + total)) abort();
}

/* The path of an argument as the kernel would take it; 0 when it is not below the root. */
static int resolve(int at, const char *path, char *out) { /* LONGEST bytes */
    if (!path || !records()) return 0;
    char base[PATH_MAX] = "";
    if (path[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0) return 0;
        base[size] = 0;
    }
    char joined[LONGEST], parent[PATH_MAX];
    snprintf(joined, sizeof joined, base[0] ? "%s/%s" : "%s%s", base, path);
    size_t end = strlen(joined);
    while (end > 1 && joined[end - 1] == '/') joined[--end] = 0;
    char *name = strrchr(joined, '/');
    if (!name || name == joined) return 0;
    *name++ = 0;
    if (!realpath(joined, parent)) return 0;
    snprintf(out, LONGEST, "%s/%s", parent, name);
    return is_below(out);
}

/* Whether a descriptor is a file or directory below the root. */
static int is_ours(int fd, struct stat *status, char *path) {
    char link[64];
    if (!records() || fd == trace || fstat(fd, status) || !(S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static ssize_t read_at(int fd, void *data, size_t size, off_t position) {
    return syscall(SYS_pread64, fd, data, size, position);
}

static void note_stores(void) {
    char page[PAGE];
    for (int i = 0; i < mapping_count; i++) {
        struct mapping *each = &mappings[i];
        struct stat status;
        if (fstat(each->fd, &status)) continue;
        if ((size_t)status.st_size != each->size) {
            each->copy = realloc(each->copy, status.st_size + 1);
            if ((size_t)status.st_size > each->size) memset(each->copy + each->size, 0, status.st_size - each->size);
            each->size = status.st_size;
        }
        for (size_t at = 0; at < each->size; at += PAGE) {
            ssize_t size = read_at(each->fd, page, PAGE, at);
            if (size > 0 && memcmp(page, each->copy + at, size)) {
                memcpy(each->copy + at, page, size);
                put('W', each->inode, at, "", page, size);
            }
        }
    }
}

static void enter(void) {
    pthread_mutex_lock(&lock);
    if (records()) note_stores();
}

static void leave(void) {
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
}

static void wrote(int fd, off_t position, const void *data, ssize_t size) {
    struct stat status;
    char path[PATH_MAX];
    int error = errno;
    if (size > 0 && is_ours(fd, &status, path)) {
        for (int i = 0; i < mapping_count; i++)
            if (mappings[i].inode == status.st_ino && (size_t)(position + size) <= mappings[i].size)
                memcpy(mappings[i].copy + position, data, size);
        put('W', status.st_ino, position, "", data, size);
    }
    errno = error;
}

static void resized(int fd, int64_t size, int result) {
    struct stat status;
    char path[PATH_MAX];
    if (!result && is_ours(fd, &status, path)) put('T', status.st_ino, size < 0 ? status.st_size : size, "", 0, 0);
}

static int opened(int fd, const char *path, int is_new, int flags) {
    struct stat status;
    int error = errno;
    if (fd >= 0 && !fstat(fd, &status) && S_ISREG(status.st_mode)) {
        if (is_new) put('C', status.st_ino, 0, path, 0, 0);
        else if (flags & O_TRUNC) put('T', status.st_ino, 0, "", 0, 0);
    }
    errno = error;
    return fd;
}

static int open_at(int at, const char *path, int flags, mode_t mode) {
    char full[LONGEST];
    struct stat status;
    if (!(flags & (O_CREAT | O_TRUNC)) || !resolve(at, path, full)) return syscall(SYS_openat, at, path, flags, mode);
    enter();
    int is_new = lstat(full, &status) != 0;
    int fd = opened(syscall(SYS_openat, at, path, flags, mode), full, is_new, flags);
    leave();
    return fd;
}

#define MODE mode_t mode = 0; if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }
int open(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return open_at(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

ssize_t write(int fd, const void *data, size_t size) {
    struct stat status;
    char path[PATH_MAX];
    if (!is_ours(fd, &status, path)) return syscall(SYS_write, fd, data, size);
    enter();
    ssize_t done = syscall(SYS_write, fd, data, size);
    if (done > 0) wrote(fd, lseek(fd, 0, SEEK_CUR) - done, data, done);
    leave();
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    enter();
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, position);
    wrote(fd, position, data, done);
    leave();
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t position) { return pwrite64(fd, data, size, position); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t position) {
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = pwrite64(fd, parts[i].iov_base, parts[i].iov_len, position + total);
        if (done < 0) return total ? total : done;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) { return pwritev64(fd, parts, count, position); }

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t size, unsigned flags) {
    enter();
    ssize_t done = syscall(SYS_copy_file_range, in, in_at, out, out_at, size, flags);
    if (done > 0 && out_at) {
        char *data = malloc(done);
        if (read_at(out, data, done, *out_at - done) == done) wrote(out, *out_at - done, data, done);
        free(data);
    }
    leave();
    return done;
}

int ftruncate64(int fd, off64_t size) {
    enter();
    int result = syscall(SYS_ftruncate, fd, size);
    resized(fd, size, result);
    leave();
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t position, off64_t size) {
    enter();
    int result = NEXT(posix_fallocate64)(fd, position, size);
    resized(fd, -1, result);
    leave();
    return result;
}
int posix_fallocate(int fd, off_t position, off_t size) { return posix_fallocate64(fd, position, size); }

int fallocate64(int fd, int mode, off64_t position, off64_t size) {
    enter();
    int result = NEXT(fallocate64)(fd, mode, position, size);
    resized(fd, -1, result);
    leave();
    return result;
}
int fallocate(int fd, int mode, off_t position, off_t size) { return fallocate64(fd, mode, position, size); }

/* A sync makes earlier writes durable once it has returned, so it has two records: begin and end. The lock is not held
 * between them, because other threads write meanwhile. */
static int synced(int fd, long call) {
    static int64_t syncs;
    struct stat status;
    char path[PATH_MAX];
    if (!is_ours(fd, &status, path)) return syscall(call, fd);
    enter();
    int64_t number = syncs++ << 20 | getpid();
    put('B', status.st_ino, number, "", 0, 0);
    leave();
    int result = syscall(call, fd);
    enter();
    if (!result) put(S_ISDIR(status.st_mode) ? 'D' : 'S', status.st_ino, number, path, 0, 0);
    leave();
    return result;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int msync(void *address, size_t size, int flags) {
    return syscall(SYS_msync, address, size, flags); /* promises nothing here: files are synced by descriptor */
}

static int named(char operation, int result, const char *old, const char *new) {
    char both[LONGEST * 2 + 2];
    snprintf(both, sizeof both, new ? "%s\n%s" : "%s", old, new);
    if (!result) put(operation, 0, 0, both, 0, 0);
    return result;
}

static int rename_at(int from, const char *old, int to, const char *new, unsigned flags) {
    char a[LONGEST], b[LONGEST];
    if (!resolve(from, old, a) || !resolve(to, new, b)) return syscall(SYS_renameat2, from, old, to, new, flags);
    enter();
    int result = named('R', syscall(SYS_renameat2, from, old, to, new, flags), a, b);
    leave();
    return result;
}
int rename(const char *old, const char *new) { return rename_at(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return rename_at(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) { return rename_at(from, old, to, new, flags); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char a[LONGEST], b[LONGEST];
    if (!resolve(from, old, a) || !resolve(to, new, b)) return syscall(SYS_linkat, from, old, to, new, flags);
    enter();
    int result = named('L', syscall(SYS_linkat, from, old, to, new, flags), a, b);
    leave();
    return result;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int at, const char *path, int flags) {
    char full[LONGEST];
    if (!resolve(at, path, full)) return syscall(SYS_unlinkat, at, path, flags);
    enter();
    int result = named(flags & AT_REMOVEDIR ? 'X' : 'U', syscall(SYS_unlinkat, at, path, flags), full, 0);
    leave();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat status;
    return !lstat(path, &status) && S_ISDIR(status.st_mode) ? rmdir(path) : unlink(path);
}

int mkdirat(int at, const char *path, mode_t mode) {
    char full[LONGEST];
    if (!resolve(at, path, full)) return syscall(SYS_mkdirat, at, path, mode);
    enter();
    int result = named('M', syscall(SYS_mkdirat, at, path, mode), full, 0);
    leave();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t position) {
    void *mapped = (void *)syscall(SYS_mmap, address, size, protection, flags, fd, position);
    struct stat status;
    char path[PATH_MAX];
    if (mapped == MAP_FAILED || !(flags & MAP_SHARED) || !(protection & PROT_WRITE) || fd < 0) return mapped;
    if (!is_ours(fd, &status, path) || strstr(path, "-shm")) return mapped;
    enter();
    int known = 0;
    for (int i = 0; i < mapping_count; i++) {
        struct stat other;
        known |= mappings[i].inode == status.st_ino && !fstat(mappings[i].fd, &other) && other.st_nlink;
    }
    if (!known) {
        if (mapping_count == MAPPINGS) abort();
        struct mapping *each = &mappings[mapping_count++];
        each->fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
        each->inode = status.st_ino;
        each->size = status.st_size;
        each->copy = calloc(1, status.st_size + 1);
        read_at(fd, each->copy, status.st_size, 0);
    }
    leave();
    return mapped;
}
void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t position) {
    return mmap64(address, size, protection, flags, fd, position);
}
