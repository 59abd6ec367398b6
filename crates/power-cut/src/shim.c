/* Preloaded into a program, records its changes to the files below one folder.
 *
 * Every call that changes a file or a folder is made and logged under one lock, so that the log has the order in which the
 * calls took effect. A sync is logged twice, when it begins and after it has returned, and is made outside the lock: it may
 * or may not cover concurrent writes, which the log has between the two.
 *
 * A record is a kind, two numbers of 8 bytes, the lengths of two texts of 4 bytes each (all in the machine's byte order), and
 * the texts. `log.rs` describes each kind.
 *
 * Calls go to the kernel directly, since these functions replace those of libc. What can't be recorded is logged with the
 * kind '!', which makes the replay fail.
 */
#define _GNU_SOURCE
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
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KNOWN_MAX = 1 << 16, PATH_BYTES = 2 * PATH_MAX };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_len;
static dev_t root_device;
static char acks[PATH_MAX];
static ino_t acks_inode;
static uint64_t next_sync = 1;
/* Inodes that were created below the folder, an open hash table; 0 is free. */
static ino_t known[KNOWN_MAX];
static unsigned known_count;

static void give_up(const char *why) {
	dprintf(2, "power-cut recorder: %s: %s\n", why, strerror(errno));
	abort();
}

static void append(const struct iovec *parts, int count) {
	for (int i = 0; i < count; i++) {
		const char *bytes = parts[i].iov_base;
		size_t left = parts[i].iov_len;
		while (left > 0) {
			long written = syscall(SYS_write, log_fd, bytes, left);
			if (written < 0 && errno == EINTR) continue;
			if (written <= 0) give_up("can't write the log");
			bytes += written;
			left -= (size_t)written;
		}
	}
}

/* Writes a record. The first text is `first`, the second the first `len` bytes of `parts`. */
static void record(char kind, uint64_t a, uint64_t b, const char *first, const struct iovec *parts, int count, size_t len) {
	char header[25];
	uint32_t first_len = (uint32_t)strlen(first), second_len = (uint32_t)len;
	header[0] = kind;
	memcpy(header + 1, &a, 8);
	memcpy(header + 9, &b, 8);
	memcpy(header + 17, &first_len, 4);
	memcpy(header + 21, &second_len, 4);
	struct iovec front[2] = {{header, sizeof header}, {(void *)first, first_len}};
	append(front, 2);
	for (int i = 0; i < count && len > 0; i++) {
		struct iovec part = parts[i];
		if (part.iov_len > len) part.iov_len = len;
		append(&part, 1);
		len -= part.iov_len;
	}
}

static void record_paths(char kind, ino_t inode, const char *first, const char *second) {
	struct iovec text = {(void *)second, strlen(second)};
	record(kind, inode, 0, first, &text, 1, text.iov_len);
}

static void cant_record(const char *what, const char *path) {
	record_paths('!', 0, what, path);
}

static unsigned place_of(ino_t inode) {
	unsigned place = (unsigned)((inode * 0x9e3779b97f4a7c15ull) >> 48);
	while (known[place] != 0 && known[place] != inode) place = (place + 1) % KNOWN_MAX;
	return place;
}

static void learn(ino_t inode) {
	unsigned place = place_of(inode);
	if (known[place] == inode) return;
	if (++known_count > KNOWN_MAX / 2) give_up("too many files");
	known[place] = inode;
}

/* The inode of a descriptor, if it was created below the folder or is the file of acknowledgements; 0 otherwise. */
static ino_t inode_of(int fd) {
	struct stat about;
	if (fstat(fd, &about) != 0 || about.st_dev != root_device) return 0;
	if (about.st_ino == acks_inode) return about.st_ino;
	return known[place_of(about.st_ino)] == about.st_ino ? about.st_ino : 0;
}

/* The path of `path` relative to the folder. False when it is not below the folder. */
static int is_below(int dirfd, const char *path, char *relative) {
	char full[PATH_BYTES], parent[PATH_MAX];
	if (path[0] == '/' || dirfd == AT_FDCWD) snprintf(full, sizeof full, "%s", path);
	else snprintf(full, sizeof full, "/proc/self/fd/%d/%s", dirfd, path);
	size_t len = strlen(full);
	while (len > 1 && full[len - 1] == '/') full[--len] = 0;
	char *slash = strrchr(full, '/');
	const char *name = slash ? slash + 1 : full;
	if (*name == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return 0;
	const char *before = ".";
	if (slash == full) before = "/";
	else if (slash) { *slash = 0; before = full; }
	if (!realpath(before, parent) || strncmp(parent, root, root_len) != 0) return 0;
	if (parent[root_len] == 0) return snprintf(relative, PATH_MAX, "%s", name) < PATH_MAX;
	if (parent[root_len] != '/') return 0;
	return snprintf(relative, PATH_MAX, "%s/%s", parent + root_len + 1, name) < PATH_MAX;
}

__attribute__((constructor)) static void begin(void) {
	const char *folder = getenv("POWER_CUT_FOLDER"), *log = getenv("POWER_CUT_LOG"), *to = getenv("POWER_CUT_ACKS");
	if (!folder || !log || !to) return;
	struct stat about;
	if (!realpath(folder, root) || stat(root, &about) != 0) give_up("no folder to record");
	root_len = strlen(root);
	root_device = about.st_dev;
	snprintf(acks, sizeof acks, "%s", to);
	learn(about.st_ino);
	int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0) give_up("can't open the log");
	log_fd = fd;
	record_paths('R', about.st_ino, "", "");
}

/* Opening files. */

static int do_open(int dirfd, const char *path, int flags, mode_t mode) {
	char relative[PATH_MAX];
	int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
	if (log_fd < 0 || !writes) return (int)syscall(SYS_openat, dirfd, path, flags, mode);
	pthread_mutex_lock(&lock);
	int below = is_below(dirfd, path, relative);
	struct stat about;
	int was_there = below && fstatat(dirfd, path, &about, 0) == 0;
	int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode), saved = errno;
	if (fd >= 0 && fstat(fd, &about) == 0) {
		if (strcmp(path, acks) == 0) acks_inode = about.st_ino;
		if ((flags & O_TMPFILE) == O_TMPFILE && below) cant_record("a file without a name", relative);
		else if (below && !was_there) { learn(about.st_ino); record_paths('C', about.st_ino, relative, ""); }
				else if (below && !inode_of(fd)) cant_record("a file older than the recording", relative);
		else if (below && (flags & O_TRUNC)) record('T', about.st_ino, 0, "", NULL, 0, 0);
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return fd;
}

#define MODE_OF(flags) \
	mode_t mode = 0; \
	if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE_OF(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int dirfd, const char *path, int flags, ...) { MODE_OF(flags) return do_open(dirfd, path, flags, mode); }
int openat64(int dirfd, const char *path, int flags, ...) { MODE_OF(flags) return do_open(dirfd, path, flags, mode); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return do_open(dirfd, path, flags, 0); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* Writing bytes. */

/* Writes at `offset`, or at the descriptor's position if it is -1; `flags` are those of pwritev2. */
static ssize_t do_write(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
	ino_t inode = 0;
	if (log_fd >= 0 && fd != log_fd) {
		pthread_mutex_lock(&lock);
		inode = inode_of(fd);
		if (!inode) pthread_mutex_unlock(&lock);
	}
	int modes = inode ? fcntl(fd, F_GETFL) : 0;
	off_t at = offset;
	if (inode && (modes & O_APPEND)) {
		struct stat about;
				if (fstat(fd, &about) == 0) at = about.st_size; /* Linux appends whatever offset is given */
	} else if (inode && offset < 0) {
		at = lseek(fd, 0, SEEK_CUR);
	}
	ssize_t written = offset < 0 && flags == 0
		? syscall(SYS_writev, fd, parts, count)
		: syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
	if (!inode) return written;
	int saved = errno;
	if (written > 0 && inode == acks_inode) {
		record('A', 0, 0, "", parts, count, (size_t)written);
	} else if (written > 0) {
		record('W', inode, (uint64_t)at, "", parts, count, (size_t)written);
		if ((modes & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC))) record('P', inode, 0, "", NULL, 0, 0);
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return written;
}

ssize_t write(int fd, const void *bytes, size_t len) {
	if (log_fd < 0) return syscall(SYS_write, fd, bytes, len);
	struct iovec part = {(void *)bytes, len};
	return do_write(fd, &part, 1, -1, 0);
}
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset) {
	if (log_fd < 0 || offset < 0) return syscall(SYS_pwrite64, fd, bytes, len, offset);
	struct iovec part = {(void *)bytes, len};
	return do_write(fd, &part, 1, offset, 0);
}
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t offset) { return pwrite64(fd, bytes, len, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return do_write(fd, parts, count, -1, 0); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) { return do_write(fd, parts, count, offset, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) { return do_write(fd, parts, count, offset, flags); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return do_write(fd, parts, count, offset, 0); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return do_write(fd, parts, count, offset, 0); }

/* Copies inside the kernel are refused: programs then copy by reading and writing. */

static int is_recorded(int fd) {
	if (log_fd < 0) return 0;
	pthread_mutex_lock(&lock);
	int recorded = inode_of(fd) != 0;
	pthread_mutex_unlock(&lock);
	return recorded;
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
	if (is_recorded(out)) { errno = ENOSYS; return -1; }
	return syscall(SYS_copy_file_range, in, in_at, out, out_at, len, flags);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t len) {
	if (is_recorded(out)) { errno = ENOSYS; return -1; }
	return syscall(SYS_sendfile, out, in, at, len);
}
ssize_t sendfile(int out, int in, off_t *at, size_t len) { return sendfile64(out, in, at, len); }
ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
	if (is_recorded(out)) { errno = EINVAL; return -1; }
	return syscall(SYS_splice, in, in_at, out, out_at, len, flags);
}

/* Changing the length of files. */

int ftruncate64(int fd, off64_t len) {
	if (log_fd < 0) return (int)syscall(SYS_ftruncate, fd, len);
	pthread_mutex_lock(&lock);
	ino_t inode = inode_of(fd);
	int done = (int)syscall(SYS_ftruncate, fd, len), saved = errno;
	if (done == 0 && inode) record('T', inode, (uint64_t)len, "", NULL, 0, 0);
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}
int ftruncate(int fd, off_t len) { return ftruncate64(fd, len); }

int truncate64(const char *path, off64_t len) {
	int fd = do_open(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
	if (fd < 0) return -1;
	int done = ftruncate64(fd, len), saved = errno;
	close(fd);
	errno = saved;
	return done;
}
int truncate(const char *path, off_t len) { return truncate64(path, len); }

int fallocate64(int fd, int mode, off64_t offset, off64_t len) {
	if (log_fd < 0) return (int)syscall(SYS_fallocate, fd, mode, offset, len);
	pthread_mutex_lock(&lock);
	ino_t inode = inode_of(fd);
	int done = (int)syscall(SYS_fallocate, fd, mode, offset, len), saved = errno;
	if (done == 0 && inode && mode == 0) record('F', inode, (uint64_t)(offset + len), "", NULL, 0, 0);
	else if (done == 0 && inode && mode != FALLOC_FL_KEEP_SIZE) cant_record("a hole in a file", "");
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}
int fallocate(int fd, int mode, off_t offset, off_t len) { return fallocate64(fd, mode, offset, len); }
int posix_fallocate64(int fd, off64_t offset, off64_t len) { return fallocate64(fd, 0, offset, len) == 0 ? 0 : errno; }
int posix_fallocate(int fd, off_t offset, off_t len) { return posix_fallocate64(fd, offset, len); }

/* Syncing. */

static int do_sync(long call, int fd) {
	if (log_fd < 0) return (int)syscall(call, fd);
	pthread_mutex_lock(&lock);
	ino_t inode = inode_of(fd);
	uint64_t number = next_sync++;
	if (inode) record('S', inode, number, "", NULL, 0, 0);
	pthread_mutex_unlock(&lock);
	int done = (int)syscall(call, fd), saved = errno;
	if (done == 0 && inode) {
		pthread_mutex_lock(&lock);
		record('E', inode, number, "", NULL, 0, 0);
		pthread_mutex_unlock(&lock);
	}
	errno = saved;
	return done;
}

int fsync(int fd) { return do_sync(SYS_fsync, fd); }
int fdatasync(int fd) { return do_sync(SYS_fdatasync, fd); }

/* Entries of folders. */

static int do_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
	char a[PATH_MAX], b[PATH_MAX];
	if (log_fd < 0) return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
	pthread_mutex_lock(&lock);
	int a_below = is_below(from_dir, from, a), b_below = is_below(to_dir, to, b);
	int done = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), saved = errno;
	if (done == 0 && a_below && b_below && !(flags & RENAME_EXCHANGE)) record_paths('N', 0, a, b);
		else if (done == 0 && (a_below || b_below)) cant_record("a rename into or out of the folder, or an exchange", from);
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}

int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return do_rename(from_dir, from, to_dir, to, 0); }
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) { return do_rename(from_dir, from, to_dir, to, flags); }

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
	char a[PATH_MAX], b[PATH_MAX];
	if (log_fd < 0) return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
	pthread_mutex_lock(&lock);
	int a_below = is_below(from_dir, from, a), b_below = is_below(to_dir, to, b);
	int done = (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags), saved = errno;
	if (done == 0 && a_below && b_below) record_paths('L', 0, a, b);
		else if (done == 0 && b_below) cant_record("a link into the folder", from);
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int symlinkat(const char *target, int dirfd, const char *path) {
	char relative[PATH_MAX];
	int done = (int)syscall(SYS_symlinkat, target, dirfd, path), saved = errno;
	if (log_fd >= 0 && done == 0) {
		pthread_mutex_lock(&lock);
		if (is_below(dirfd, path, relative)) cant_record("a symbolic link", relative);
		pthread_mutex_unlock(&lock);
	}
	errno = saved;
	return done;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int dirfd, const char *path, int flags) {
	char relative[PATH_MAX];
	if (log_fd < 0) return (int)syscall(SYS_unlinkat, dirfd, path, flags);
	pthread_mutex_lock(&lock);
	int below = is_below(dirfd, path, relative);
	int done = (int)syscall(SYS_unlinkat, dirfd, path, flags), saved = errno;
	if (done == 0 && below) record_paths('U', 0, relative, "");
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
	char relative[PATH_MAX];
	struct stat about;
	if (log_fd < 0) return (int)syscall(SYS_mkdirat, dirfd, path, mode);
	pthread_mutex_lock(&lock);
	int below = is_below(dirfd, path, relative);
	int done = (int)syscall(SYS_mkdirat, dirfd, path, mode), saved = errno;
	if (done == 0 && below && fstatat(dirfd, path, &about, 0) == 0) {
		learn(about.st_ino);
		record_paths('K', about.st_ino, relative, "");
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return done;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Mapping files into memory. */

void *mmap64(void *address, size_t len, int protection, int flags, int fd, off64_t offset) {
	void *mapped = (void *)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
	int shares = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
	if (log_fd >= 0 && mapped != MAP_FAILED && fd >= 0 && shares && (protection & PROT_WRITE)) {
		pthread_mutex_lock(&lock);
		ino_t inode = inode_of(fd);
		if (inode) record('M', inode, 0, "", NULL, 0, 0);
		pthread_mutex_unlock(&lock);
	}
	return mapped;
}
void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset) { return mmap64(address, len, protection, flags, fd, offset); }
