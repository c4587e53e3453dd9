//! A client's connection continues with a socket that was made at the connection's sequence numbers.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use libc::{c_int, c_void};
use north_host::repair::{Blueprint, Options, is_gone, say_again};
use wire::SeqNumber;

fn get<T: Copy + Default>(socket: &TcpStream, name: c_int) -> T {
    let mut value = T::default();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).expect("small");
    let at: *mut c_void = (&raw mut value).cast();
    // SAFETY: a value of the option's type, and its size.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            at,
            &raw mut length,
        )
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    value
}

fn set(socket: &TcpStream, name: c_int, value: c_int) {
    let length = libc::socklen_t::try_from(size_of::<c_int>()).expect("small");
    let at: *const c_void = (&raw const value).cast();
    // SAFETY: a value of the option's type, and its size.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, at, length) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// The state of the socket, which is then closed in repair: no segment goes to the client.
fn take_down(socket: TcpStream) -> Blueprint {
    set(&socket, libc::TCP_REPAIR, 1);
    set(&socket, libc::TCP_REPAIR_QUEUE, 2);
    let sent: u32 = get(&socket, libc::TCP_QUEUE_SEQ);
    set(&socket, libc::TCP_REPAIR_QUEUE, 1);
    let received: u32 = get(&socket, libc::TCP_QUEUE_SEQ);
    let window: [u32; 5] = get(&socket, libc::TCP_REPAIR_WINDOW);
    let information: [u8; 8] = get(&socket, libc::TCP_INFO);
    Blueprint {
        local: socket.local_addr().expect("an address"),
        peer: socket.peer_addr().expect("an address"),
        acknowledged: SeqNumber(sent),
        expected: SeqNumber(received),
        options: Options {
            mss: Some(1400),
            window_scales: Some((information[6] & 15, information[6] >> 4)),
            sack: true,
        },
        timestamp: Some(get(&socket, libc::TCP_TIMESTAMP)),
        send_window: window[1],
        receive_window: window[3],
    }
}

/// Bytes that the other end has not acknowledged.
fn unacknowledged(socket: &TcpStream) -> libc::c_int {
    let mut count = 0;
    // SAFETY: the kernel writes a number, which lives as long as the call.
    let told = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    assert_eq!(told, 0, "SIOCOUTQ");
    count
}

fn goes_on(address: SocketAddr, said: usize) {
    let listener = TcpListener::bind(address).expect("a port");
    let mut client =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let (mut server, _) = listener.accept().expect("accepted");
    let mut heard = [0; 5];
    client.write_all(b"hello").expect("written");
    server.read_exact(&mut heard).expect("heard");
    server.write_all(b"world").expect("written");
    client.read_exact(&mut heard).expect("heard");
    while unacknowledged(&server) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let blueprint = take_down(server);
    let said: Vec<u8> = (0..said)
        .map(|index| u8::try_from(index % 251).expect("small"))
        .collect();
    let mut server = blueprint.build().expect("built");
    say_again(&server, &said).expect("said");
    let mut again = vec![0; said.len()];
    client.read_exact(&mut again).expect("heard");
    assert_eq!(again, said);
    client.write_all(b"still").expect("written");
    server.read_exact(&mut heard).expect("heard");
    assert_eq!(&heard, b"still");
    drop(server);
    assert_eq!(client.read(&mut heard).expect("the end"), 0);
}

#[test]
fn accepted_connection_moves_to_new_socket() {
    goes_on((Ipv4Addr::LOCALHOST, 0).into(), 0);
}

/// A socket built from the kernel's answers continues an upstream connection.
#[test]
fn opened_connection_moves_to_new_socket() {
    for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("an address"));
        let mut ours = ours.expect("connected");
        let (mut other, _) = listener.accept().expect("accepted");
        let seen = Blueprint::of(ours.as_fd()).expect("looked at");
        let seen = seen.expect("nothing was said");
        ours.write_all(b"hello").expect("it is usable still");
        let mut heard = [0; 5];
        other.read_exact(&mut heard).expect("heard");
        assert_eq!(Blueprint::of(ours.as_fd()).expect("looked at"), None);

        let taken = take_down(ours);
        assert_eq!((seen.local, seen.peer), (taken.local, taken.peer));
        assert_eq!(seen.acknowledged + 5, taken.acknowledged);
        assert_eq!(seen.expected, taken.expected);
        let agreed = (seen.options.window_scales, seen.options.sack);
        assert_eq!(agreed, (taken.options.window_scales, true));
        assert!(seen.options.mss.is_some_and(|mss| mss > 1000));
        assert!(seen.timestamp.is_some());
        let goes_on = Blueprint {
            acknowledged: taken.acknowledged,
            send_window: taken.send_window,
            timestamp: taken.timestamp,
            ..seen
        };
        let mut ours = goes_on.build().expect("built");
        ours.write_all(b"again").expect("written");
        other.read_exact(&mut heard).expect("heard");
        assert_eq!(&heard, b"again");
        other.write_all(b"still").expect("written");
        ours.read_exact(&mut heard).expect("heard");
        assert_eq!(&heard, b"still");
    }
}

#[test]
fn unacknowledged_output_is_retransmitted() {
    goes_on((Ipv4Addr::LOCALHOST, 0).into(), 100);
    goes_on((Ipv6Addr::LOCALHOST, 0).into(), 3_000_000);
}

/// Parts of `struct tcp_info`: the agreed options, and the largest sent segment, bytes.
fn agreed_and_segment(socket: &TcpStream) -> (u8, u32) {
    const OPTIONS: usize = 5;
    const SEGMENT: usize = 16;
    let information: [u8; 20] = get(socket, libc::TCP_INFO);
    let segment = information[SEGMENT..].first_chunk().expect("four bytes");
    (information[OPTIONS], u32::from_ne_bytes(*segment))
}

/// A connection with a built socket at the server's end. `change` adapts the blueprint.
fn built(address: SocketAddr, change: impl FnOnce(&mut Blueprint)) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address"));
    let (server, _) = listener.accept().expect("accepted");
    let mut blueprint = take_down(server);
    change(&mut blueprint);
    (
        blueprint.build().expect("built"),
        client.expect("connected"),
    )
}

/// Without [`Blueprint::build`]'s MSS the segments had 524 bytes until the route changed.
#[test]
fn repaired_socket_keeps_mss() {
    /// Size of the timestamps option in a segment, bytes.
    const TIMESTAMPS: u32 = 12;
    for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        for mss in [88, 536, 1400, 8960, 32_767, u16::MAX] {
            let address = SocketAddr::new(address, 0);
            let (server, _client) = built(address, |blueprint| blueprint.options.mss = Some(mss));
            let (_, segment) = agreed_and_segment(&server);
            let expected = u32::from(mss).min(32_767) - TIMESTAMPS;
            assert_eq!(segment, expected, "{address} {mss}");
            let said: c_int = get(&server, libc::TCP_MAXSEG);
            assert_eq!(u32::try_from(said), Ok(segment), "{address} {mss}");
        }
    }
}

/// Since Linux 6.7 an odd TSval switches the socket to a clock of microseconds.
#[test]
fn repaired_timestamps_count_milliseconds() {
    /// `TCPI_OPT_USEC_TS` of linux/tcp.h.
    const MICROSECONDS: u8 = 64;
    for timestamp in [1000, 1001, u32::MAX] {
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let (server, _client) = built(address, |blueprint| blueprint.timestamp = Some(timestamp));
        let (agreed, _) = agreed_and_segment(&server);
        assert_eq!(agreed & MICROSECONDS, 0, "{timestamp}");
        set(&server, libc::TCP_REPAIR, 1);
        let now: u32 = get(&server, libc::TCP_TIMESTAMP);
        set(&server, libc::TCP_REPAIR, -1);
        // The kernel may report an even value, too.
        let passed = (now | 1).wrapping_sub(timestamp);
        assert!(passed < 1 << 31, "{timestamp} {now}");
    }
}

/// A client that has closed a connection resets the connection when more data arrives. This is no error of the
/// repair.
#[test]
fn repair_after_client_close_finds_client_gone() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address"));
    let (server, _) = listener.accept().expect("accepted");
    let blueprint = take_down(server);
    drop(client.expect("connected"));
    let server = blueprint.build().expect("built");
    let said = vec![b'x'; 16 << 20];
    let error = say_again(&server, &said).expect_err("the client is gone");
    assert!(is_gone(&error), "{error}");
}
