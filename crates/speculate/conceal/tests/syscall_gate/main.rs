//! Effects beyond files wait for the commit. Needs root, `/dev/fuse` and Python.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixListener},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use conceal::{members::Members, world::World};
use tempfile::TempDir;

mod context;

use context::{Begun, Context, STEP_TIMEOUT, other};

#[test]
fn network_calls_wait() {
    let context = Context::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("bound").port();
    let script = format!(
        "import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'here'); print('said')"
    );
    let mut begun = context.begin(&script);
    begun.waits("the network");
    assert!(listener.accept().is_err(), "something leaked");
    assert_eq!(begun.goes_on(&context), "said\n");
    let mut said = String::new();
    let (mut client, _) = listener.accept().expect("it has come");
    client.set_nonblocking(false).expect("a socket");
    client.read_to_string(&mut said).expect("text");
    assert_eq!(said, "here");
}

#[test]
fn only_foreign_signals_wait() {
    let context = Context::new();
    let mut other = other();
    let script = format!(
        "import os, signal, subprocess
child = subprocess.Popen(['sleep', '1000']); child.kill(); child.wait()
child = subprocess.Popen(['sleep', '1000'], start_new_session=True); os.killpg(child.pid, 15); child.wait()
signal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True)); signal.raise_signal(signal.SIGUSR1)
os.kill({pid}, 0)
os.kill({pid}, signal.SIGKILL)",
        pid = other.id()
    );
    let mut begun = context.begin(&script);
    begun.waits("a signal to another process");
    assert!(
        other.try_wait().expect("it runs").is_none(),
        "something leaked"
    );
    assert_eq!(begun.goes_on(&context), "heard\n");
    assert!(!other.wait().expect("it was killed").success());
}

#[test]
fn only_foreign_sockets_wait() {
    let context = Context::new();
    let path = context.directory.path().join("theirs");
    let listener = UnixListener::bind(&path).expect("a socket");
    let known = SocketAddr::from_abstract_name(&context.known).expect("short");
    let known = UnixListener::bind_addr(&known).expect("a socket");
    let script = format!(
        "import socket
def pair(name):
    a, b = (socket.socket(socket.AF_UNIX) for _ in 'ab')
    a.bind(name); a.listen(); b.connect(name); a.accept()[0].sendall(b'own'); return b.recv(9)
assert pair('own') == b'own'
s = socket.socket(socket.AF_UNIX); s.connect(b'\\0{}')
s = socket.socket(socket.AF_UNIX); s.connect('theirs'); print(s.recv(9).decode(), end='')",
        context.known
    );
    let mut begun = context.begin(&script);
    begun.waits("a socket of another process");
    known.accept().expect("it has come");
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_err(), "something leaked");
    let answer = thread::spawn(move || {
        listener.set_nonblocking(false).expect("a socket");
        let (mut client, _) = listener.accept().expect("it comes");
        std::io::Write::write_all(&mut client, b"theirs").expect("it listens");
    });
    assert_eq!(begun.goes_on(&context), "theirs");
    answer.join().expect("answered");
    assert!(fs::symlink_metadata(context.directory.path().join("own")).is_ok());
}

#[test]
fn pending_connect_blocks_no_other_call() {
    let context = Context::new();
    let listener = UnixListener::bind(context.directory.path().join("theirs")).expect("a socket");
    rustix::net::listen(&listener, 0).expect("a socket");
    // The first client fills the backlog: when the second client connects, that client waits.
    let script = format!(
        "import os, socket, threading, time
def speak():
    s = socket.socket(socket.AF_UNIX); s.connect('theirs'); return s
first = speak(); second = threading.Thread(target=speak); second.start()
while open(f'/proc/self/task/{{second.native_id}}/syscall').read().split()[0] != '{}': time.sleep(0.005)
os.mkdir('made'); second.join(); print('said')",
        libc::SYS_connect
    );
    let mut begun = context.begin(&script);
    begun.waits("a socket of another process");
    let made = context.directory.path().join("made");
    let answer = thread::spawn(move || {
        let began = Instant::now();
        while !made.exists() && began.elapsed() < STEP_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
        let is_made = made.exists();
        let clients = [(); 2].map(|()| listener.accept().expect("it comes"));
        (is_made, clients)
    });
    assert_eq!(begun.goes_on(&context), "said\n");
    assert!(answer.join().expect("answered").0, "it was kept waiting");
}

#[test]
fn waiting_call_ends_with_abort() {
    let context = Context::new();
    let mut begun = context.begin("import socket; socket.socket()");
    begun.waits("the network");
    let Begun {
        mut child, outside, ..
    } = begun;
    child.kill().expect("it waits");
    assert!(!child.wait().expect("it ends").success());
    assert_eq!(outside.waiting(), []);
}

#[test]
fn remaining_processes_are_known() {
    let context = Context::new();
    let script = "import os
reads, writes = os.pipe()
if os.fork() == 0:
    os.close(1); os.setsid(); os.close(writes); os.read(reads, 1); os._exit(0)
if os.fork() == 0:
    os.close(1); os.execvp('sleep', ['sleep', '1000'])
os._exit(0)";
    let Begun {
        mut child,
        outside,
        members,
        ..
    } = context.begin(script);
    assert!(outside.is_anybody_left());
    assert!(child.wait().expect("it ends").success());
    assert!(outside.is_anybody_left(), "the one that sleeps");
    assert!(members.kill() > 0);
    let began = Instant::now();
    while outside.is_anybody_left() {
        assert!(began.elapsed() < STEP_TIMEOUT, "nobody is left");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn waiting_call_is_not_interrupted() {
    let context = Context::new();
    let around = TempDir::new_in("/var/lib").expect("a directory");
    let script = format!(
        "import os, signal; signal.signal(signal.SIGALRM, lambda *_: print('heard'))
signal.setitimer(signal.ITIMER_REAL, 0.1); os.mkdir('{0}/made'); os.rmdir('{0}/made')",
        around.path().display()
    );
    let mut begun = context.begin(&script);
    begun.waits("outside of what is concealed");
    assert_eq!(begun.goes_on(&context), "heard\n");
}

#[test]
fn waiting_depends_on_path_target() {
    let context = Context::new();
    let mut other = other();
    let (leak, pid) = (context.directory.path().join("leak"), other.id());
    let link = "os.symlink('/proc/sys/vm/drop_caches', '/tmp/link'); open('/tmp/link', 'r+')";
    context.is_held(link, "the kernel's state");
    let link = "os.symlink('/etc/outlive-test', 'link'); open('link', 'w')";
    context.is_held(link, "outside of what is concealed");
    let root = format!("open('/proc/{pid}/root{}', 'w')", leak.display());
    context.is_held(&root, "another process");
    let memory = format!("os.chdir('/proc/{pid}'); open('mem', 'r+b')");
    context.is_held(&memory, "another process");
    let again = "f = open('/etc/passwd'); open(f'/proc/self/fd/{f.fileno()}', 'r+')";
    context.is_held(again, "outside of what is concealed");
    assert!(!leak.exists() && !Path::new("/etc/outlive-test").exists());
    other.kill().expect("it runs");
    other.wait().expect("it ends");
}

#[test]
fn own_files_do_not_wait() {
    let context = Context::new();
    context.is_not_held(
        "import subprocess
open('/proc/self/comm', 'w').write('me'); open('/proc/thread-self/oom_score_adj', 'w').write('5')
open('/dev/stdout', 'w').write('said'); open('/dev/fd/1', 'w').write('said'); open('/dev/null', 'w')
open('/proc/self/cwd/own', 'w'); open('/proc/self/root/tmp/own', 'w'); open('/dev/shm/own', 'w')
child = subprocess.Popen(['sleep', '1000']); open(f'/proc/{child.pid}/comm', 'w').write('it'); child.kill()
import ctypes, struct
os.makedirs('root/etc'); how = struct.pack('QQQ', os.O_WRONLY | os.O_CREAT, 0o600, 16) # RESOLVE_IN_ROOT
assert ctypes.CDLL(None).syscall(437, os.open('root', 0), b'/etc/own', how, 24) >= 0 and os.path.exists('root/etc/own')
os.mkdir('d'); os.symlink(os.getcwd(), 'd/back'); open('d/back/d/file', 'w'); os.chroot('d'); open('/x', 'w')",
    );
}

#[test]
fn waiting_surroundings_change_blocks_no_other_call() {
    let context = Context::new();
    let there = "['empty', 'file', 'other']";
    let changes: [(&str, &str); 13] = [
        ("open('new', 'w')", "['empty', 'file', 'new', 'other']"),
        (
            "os.open('new', os.O_CREAT)",
            "['empty', 'file', 'new', 'other']",
        ),
        ("os.mkdir('new')", "['empty', 'file', 'new', 'other']"),
        ("os.mkfifo('new')", "['empty', 'file', 'new', 'other']"),
        (
            "os.symlink('file', 'new')",
            "['empty', 'file', 'new', 'other']",
        ),
        (
            "os.link('file', 'new')",
            "['empty', 'file', 'new', 'other']",
        ),
        ("os.unlink('file')", "['empty', 'other']"),
        ("os.rmdir('empty')", "['file', 'other']"),
        ("os.rename('file', 'new')", "['empty', 'new', 'other']"),
        ("os.chmod('file', 0o600)", there),
        ("os.utime(os.open('file', 0))", there),
        ("os.truncate('file', 2)", there),
        ("os.fchown(os.open('file', 0), 1, 1)", there),
    ];
    // All directories exist at the same time: otherwise knowledge about a removed directory would be used for the next
    // directory.
    let directories = changes.map(|_| TempDir::new_in("/var/lib").expect("a directory"));
    for ((change, after), around) in changes.into_iter().zip(&directories) {
        let at = |name: &str| around.path().join(name);
        fs::create_dir(at("empty")).expect("a directory");
        fs::write(at("file"), "text").expect("a file");
        fs::write(at("other"), "").expect("a file");
        let list = "print(sorted(os.listdir()))";
        let inside = format!("import os; os.chdir('{}')", around.path().display());
        let mut waits = context.begin(&format!("{inside}; {change}; {list}"));
        waits.waits("outside of what is concealed");
        assert!(context.world.around().waiting().is_empty(), "{change}");
        let looks = format!("{inside}; [os.path.exists(str(n)) for n in range(9)]; {list}");
        let seen = context.begin(&looks).ends_by_itself();
        assert_eq!(seen, format!("{there}\n"), "{change}");
        let said = waits.goes_on(&context);
        assert_eq!(said, format!("{after}\n"), "{change}");
        context.may_change.store(false, Ordering::Release);
    }
}

#[test]
fn aborted_surroundings_changes_never_happen() {
    let context = Context::new();
    let around = "outside of what is concealed";
    context.is_held("os.mkdir('/etc/outlive-test')", around);
    context.is_held("os.mkdir('/dev/outlive-test')", around);
    context.is_held("os.unlink('/dev/zero')", around);
    context.is_held("os.chmod('/dev/zero', 0o666)", "a device");
    context.is_held("os.chmod('/proc/sys/vm', 0o777)", "the kernel's state");
    context.is_held(
        "os.mkdir('/sys/fs/cgroup/outlive-test')",
        "the kernel's state",
    );
    context.is_held(
        "os.rename('/etc/passwd', '/etc/passwd-outlive-test')",
        around,
    );
    assert!(Path::new("/dev/zero").exists() && !Path::new("/etc/outlive-test").exists());
}

#[test]
fn extended_attributes_of_machine_files_wait() {
    let context = Context::new();
    let set = "os.setxattr('/dev/zero', 'user.outlive-test', b'')";
    context.is_held(set, "a device");
    let remove = "os.removexattr('/sys/fs/cgroup', 'user.outlive-test')";
    context.is_held(remove, "the kernel's state");
    let open = "os.setxattr(os.open('/dev', 0), 'user.outlive-test', b'')";
    context.is_held(open, "outside of what is concealed");
    context.is_not_held(
        "import errno; open('own', 'w'); open('/dev/shm/own', 'w')
for path in 'own', '/etc/passwd':
    try: os.setxattr(path, 'user.outlive-test', b'')
    except OSError as error: assert error.errno == errno.ENOTSUP, error
    else: assert False
try: os.setxattr('/dev/shm/own', 'user.outlive-test', b'')
except OSError: pass",
    );
}

#[test]
fn asking_process_ends_without_supervisor() {
    let directory = TempDir::new_in("/var/lib").expect("a directory");
    let trees = [directory.path().to_owned()];
    let world = World::new(&trees, Arc::new(|_| panic!("for this test")), &[], &[]);
    let world = world.expect("root and /dev/fuse");
    let view = world.begin(world.encapsulation());
    let mut command = Command::new("mkdir");
    command.arg("/etc/outlive-test");
    let (_concealing, view) = view.expect("a view");
    let (mut child, outside) = view.spawn(&mut command, directory.path()).expect("mkdir");
    outside.release();
    let began = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if began.elapsed() > STEP_TIMEOUT {
            let _ = child.kill();
            panic!("it waits for ever");
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!Path::new("/etc/outlive-test").exists());
}

#[test]
fn failing_calls_do_not_wait() {
    let context = Context::new();
    context.is_not_held(
        "import errno
def fails(what, with_):
    try: what()
    except OSError as error: assert error.errno == with_, error
    else: assert False
fails(lambda: os.mkdir('/etc'), errno.EEXIST); fails(lambda: os.mkdir('/'), errno.EEXIST)
fails(lambda: os.symlink('x', '/etc/passwd'), errno.EEXIST)
fails(lambda: os.unlink('/etc/outlive-test'), errno.ENOENT)
fails(lambda: os.rename('/etc/outlive-test', '/etc/other'), errno.ENOENT)
fails(lambda: os.chmod('/etc/outlive-test', 0), errno.ENOENT)
fails(lambda: os.open('/etc/passwd', os.O_CREAT | os.O_EXCL | os.O_RDWR), errno.EEXIST)
fails(lambda: os.rename('/etc/passwd', 'passwd'), errno.EXDEV)
fails(lambda: os.kill(-2**31, 15), errno.ESRCH); fails(lambda: os.setpriority(os.PRIO_PGRP, -2**31, 9), errno.ESRCH)
os.close(os.open('/etc/passwd', os.O_RDONLY | os.O_CREAT)); os.makedirs('/var/lib', exist_ok=True)",
    );
}

#[test]
fn own_pseudo_terminals_do_not_wait() {
    let context = Context::new();
    context.is_not_held(
        "import pty; m, s = pty.openpty(); n = os.ttyname(s); os.close(s); open(n, 'w')",
    );
    let mut other = Command::new("python3")
        .args([
            "-c",
            "import os, pty, sys; m, s = pty.openpty(); print(os.ttyname(s), flush=True); sys.stdin.read()",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut name = String::new();
    let out = other.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut name).expect("a name");
    context.is_held(&format!("open('{}', 'w')", name.trim()), "a device");
    drop(other.stdin.take());
    other.wait().expect("it ends");
}

#[test]
fn process_with_new_mounts_is_member_by_ancestry() {
    let context = Context::new();
    let mut begun =
        context.begin("import subprocess; subprocess.run(['unshare', '-m', 'sleep', '1000'])");
    begun.waits("the state of the machine");
    let its = begun.members;
    begun.outside.release();
    let is_apart = |process: u32| Members::with(process).is_ok_and(|apart| apart != its);
    let members = || {
        its.all()
            .into_iter()
            .map(|it| it.as_raw_pid().cast_unsigned())
    };
    let began = Instant::now();
    while !members().any(is_apart) {
        assert!(
            began.elapsed() < STEP_TIMEOUT,
            "it has no mounts of its own"
        );
        thread::sleep(Duration::from_millis(5));
    }
    assert!(members().all(|process| its.has(process)));
    assert!(!its.has(std::process::id()) && !its.has(1));
    assert_eq!(its.kill(), 2);
    assert!(!begun.child.wait().expect("it ends").success());
    while its.kill() > 0 {
        assert!(began.elapsed() < STEP_TIMEOUT, "they do not end");
    }
}

#[test]
fn other_foreign_effects_wait() {
    let context = Context::new();
    let mut other = other();
    let pid = other.id();
    let (socket, process) = ("a socket of another process", "another process");
    let name = format!("{}-pairs", context.known);
    let pairs = SocketAddr::from_abstract_name(&name).expect("short");
    let pairs = UnixDatagram::bind_addr(&pairs).expect("a socket");
    pairs.set_nonblocking(true).expect("a socket");
    let call = "import ctypes, resource, socket; call = ctypes.CDLL(None, use_errno=True).syscall";
    for (what, why) in [
        ("socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)", socket),
        (
            &format!(
                "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'said', b'\\0{name}')"
            ),
            socket,
        ),
        (
            "socket.socket(socket.AF_UNIX).bind(b'\\0outlive-test')",
            socket,
        ),
        (
            "socket.socket(socket.AF_UNIX).bind('/etc/outlive-test')",
            "outside of what is concealed",
        ),
        (
            &format!("resource.prlimit({pid}, resource.RLIMIT_CORE, (0, 0))"),
            process,
        ),
        (
            &format!("os.setpriority(os.PRIO_PROCESS, {pid}, 5)"),
            process,
        ),
        ("os.setpriority(os.PRIO_USER, 0, 0)", process),
        (&format!("os.sched_setaffinity({pid}, [0])"), process),
        (
            &format!(
                "call({}, {pid}, 0, 0, 0, 0, 0)",
                libc::SYS_process_vm_writev
            ),
            process,
        ),
        (
            &format!("call({}, 0)", libc::SYS_adjtimex),
            "the state of the machine",
        ),
        (
            &format!("call({}, 0)", libc::SYS_keyctl),
            "the state of the machine",
        ),
    ] {
        context.is_held(&format!("{call}; {what}"), why);
    }
    assert!(pairs.recv(&mut [0; 9]).is_err(), "something leaked");
    context.is_not_held(
        "import resource, socket, subprocess
child = subprocess.Popen(['sleep', '1000'])
for pid in 0, os.getpid(), child.pid:
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)); os.sched_setaffinity(pid, [0])
    os.setpriority(os.PRIO_PROCESS, pid, 5)
os.nice(1); os.setpriority(os.PRIO_PGRP, os.getpgrp(), 7); child.kill()
a, b = socket.socketpair(); a.send(b'own'); assert b.recv(9) == b'own'
socket.socket(socket.AF_UNIX).bind('own'); socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    );
    other.kill().expect("it runs");
    other.wait().expect("it ends");
}
