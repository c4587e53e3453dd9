"""Calls on descriptors, and what comes of each. Arguments: a directory for files, and a file that is opened before the calls."""

import ctypes, errno, fcntl, mmap, os, shutil, stat, sys

libc = ctypes.CDLL(None, use_errno=True)
place, gate = map(os.path.abspath, sys.argv[1:])
shutil.rmtree(place, ignore_errors=True)
os.makedirs(place)
os.chdir(place)


def result(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def by_number(name, *arguments):
    done = getattr(libc, name)(*arguments)
    return done if done >= 0 else errno.errorcode[ctypes.get_errno()]


def about(f):
    it = os.fstat(f)
    modified = int(it.st_mtime) if it.st_mtime < 1e9 else "now"
    return stat.filemode(it.st_mode), it.st_nlink, it.st_size, it.st_uid, it.st_gid, modified


def mapped(f):
    with mmap.mmap(f, 20) as memory:
        memory[0:3] = b"map"
    return os.pread(f, 3, 0)


def with_other(copy):
    other = os.open("other", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(other, b"0123456789")
    try:
        return copy(other)
    finally:
        os.close(other)


def spliced(f):
    end, begin = os.pipe()
    os.write(begin, b"spliced")
    try:
        return os.splice(end, f, 7, offset_dst=40)
    finally:
        os.close(end), os.close(begin)


def again(g):
    try:
        return os.write(g, b"again"), os.ftruncate(g, 50)
    finally:
        os.close(g)


def calls(f):
    long, exclusive = ctypes.c_long, fcntl.LOCK_EX | fcntl.LOCK_NB
    yield "fstat", lambda: about(f)
    yield "write", lambda: os.write(f, b"hello")
    yield "pwrite", lambda: os.pwrite(f, b"there", 10)
    yield "writev", lambda: os.writev(f, [b"a", b"b"])
    yield "ftruncate", lambda: os.ftruncate(f, 20)
    yield "fstat", lambda: about(f)
    yield "ftruncate", lambda: os.ftruncate(f, 12)
    yield "lseek", lambda: [os.lseek(f, *to) for to in ((0, 0), (0, 1), (0, 2), (3, 0))]
    yield "SEEK_DATA", lambda: os.lseek(f, 0, os.SEEK_DATA)
    yield "pread", lambda: os.pread(f, 100, 0)
    yield "fchmod", lambda: os.fchmod(f, 0o640)
    yield "fchown", lambda: os.fchown(f, 7, 8)
    yield "futimens", lambda: os.utime(f, (1000, 1000))
    yield "fstat", lambda: about(f)
    yield "fsync", lambda: os.fsync(f)
    yield "fdatasync", lambda: os.fdatasync(f)
    yield "sync_file_range", lambda: by_number("sync_file_range", f, long(0), long(0), 2)
    yield "posix_fallocate", lambda: os.posix_fallocate(f, 0, 100)
    yield "posix_fadvise", lambda: os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "flock", lambda: fcntl.flock(f, exclusive)
    yield "lockf", lambda: fcntl.lockf(f, exclusive)
    yield "F_GETFL", lambda: fcntl.fcntl(f, fcntl.F_GETFL) & os.O_ACCMODE
    yield "mmap", lambda: mapped(f)
    yield "fstat", lambda: about(f)
    yield "sendfile", lambda: with_other(lambda other: os.sendfile(f, other, 0, 10))
    yield "copy_file_range", lambda: with_other(lambda other: os.copy_file_range(other, f, 5, 0, 15))
    yield "splice", lambda: spliced(f)
    yield "open once more", lambda: again(os.open(f"/proc/self/fd/{f}", os.O_RDWR))
    yield "dup", lambda: again(os.dup(f))
    yield "O_APPEND", lambda: (fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND), os.write(f, b"end"))
    yield "fstat", lambda: about(f)
    yield "pread", lambda: os.pread(f, 200, 0)


def calls_at(d):
    at = {"dir_fd": d}
    both = {"src_dir_fd": d, "dst_dir_fd": d}
    yield "openat", lambda: os.close(os.open("f", os.O_RDWR | os.O_CREAT, **at))
    yield "mkdirat", lambda: os.mkdir("e", **at)
    yield "symlinkat", lambda: os.symlink("f", "l", **at)
    yield "linkat", lambda: os.link("f", "g", **both)
    yield "renameat", lambda: os.rename("g", "h", **both)
    yield "fchmodat", lambda: os.chmod("h", 0o600, **at)
    yield "utimensat", lambda: os.utime("h", (5, 5), **at)
    yield "readdir", lambda: sorted(os.listdir(d))
    yield "unlinkat", lambda: os.unlink("h", **at)
    yield "AT_REMOVEDIR", lambda: os.rmdir("e", **at)
    yield "fchmod", lambda: os.fchmod(d, 0o750)
    yield "futimens", lambda: os.utime(d, (5, 5))
    yield "fsync", lambda: os.fsync(d)
    yield "fstat", lambda: stat.filemode(os.fstat(d).st_mode)
    yield "fchdir", lambda: (os.fchdir(d), sorted(os.listdir(".")))
    yield "flock", lambda: fcntl.flock(d, fcntl.LOCK_EX | fcntl.LOCK_NB)


def tell(what, calls):
    for name, call in calls:
        print(what, name, result(call))
    os.chdir(place)


ways = {"r+": os.O_RDWR, "w": os.O_WRONLY, "w+": os.O_RDWR | os.O_TRUNC, "a": os.O_RDWR | os.O_APPEND, "x": os.O_RDWR | os.O_EXCL}
opened = [(what, os.open(what, flags | os.O_CREAT, 0o644)) for what, flags in ways.items()]
for what, f in opened[:2]:
    tell(f"{what} before", calls(f))
open(gate, "w").close()
for what, f in opened:
    tell(what, calls(f))
    os.close(f)
f = os.open("r+", os.O_RDWR | os.O_TRUNC)
tell("there already", calls(f))
os.rename("r+", "moved")
with open("r+", "w") as another:
    another.write("another")
tell("moved", calls(f))
os.unlink("moved")
tell("removed", calls(f))
os.close(f)
f = os.open("w", os.O_RDONLY)
tell("read only", calls(f))
os.close(f)
os.mkdir("d")
d = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
tell("directory", calls_at(d))
os.rename("d", "e")
tell("moved directory", calls_at(d))
shutil.rmtree("e")
tell("removed directory", calls_at(d))
os.mkfifo("fifo")
f = os.open("fifo", os.O_RDWR)
tell("fifo", [("write", lambda: os.write(f, b"x")), ("read", lambda: os.read(f, 1)), ("fchmod", lambda: os.fchmod(f, 0o600))])
for name in sorted(os.listdir(".")):
    it = os.lstat(name)
    print(name, stat.filemode(it.st_mode), it.st_nlink, it.st_size)
