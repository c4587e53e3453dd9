//! Three small servers: `echo` sends back all input, `sink` reads all input and reports the number of bytes at the
//! end, `source` sends without an end. Each connection has a thread.

#![forbid(unsafe_code)]

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;

use clap::{Parser, Subcommand};
use rustix::net::sockopt::set_tcp_congestion;

/// Servers of demo, bench, experiments and kernels
#[derive(Debug, Parser)]
#[command(name = "reference-server", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Server {
    /// Send back all input
    Echo(Listen),
    /// Count all input
    Sink(Sink),
    /// Send without an end
    Source(Source),
}

fn main() -> ExitCode {
    match Arguments::parse().server {
        Server::Echo(listen) => echo(&listen),
        Server::Sink(options) => sink(&options),
        Server::Source(options) => source(&options),
    }
}

/// The address of a server.
#[derive(Debug, clap::Args)]
struct Listen {
    /// Address and port to listen on
    address: SocketAddr,
}

/// The address of a server, and the size of its receive buffers.
#[derive(Debug, clap::Args)]
struct Sink {
    #[command(flatten)]
    listen: Listen,
    /// SO_RCVBUF of each connection, in bytes [default: the size that the kernel chooses and adapts]
    #[arg(long)]
    receive_buffer: Option<usize>,
}

/// The address of a server, and the congestion control of its connections.
#[derive(Debug, clap::Args)]
struct Source {
    #[command(flatten)]
    listen: Listen,
    /// TCP_CONGESTION of each connection
    #[arg(long)]
    congestion: String,
}

/// Sends back all input.
fn echo(listen: &Listen) -> ExitCode {
    serve(
        listen,
        |_| Ok(()),
        |mut stream| {
            stream.set_nodelay(true)?;
            let mut buffer = [0; 4096];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => stream.write_all(&buffer[..n])?,
                }
            }
        },
    )
}

/// Discards all input, and sends the number of bytes when the client has sent all.
fn sink(sink: &Sink) -> ExitCode {
    let prepare = |listener: &TcpListener| match sink.receive_buffer {
        Some(bytes) => rustix::net::sockopt::set_socket_recv_buffer_size(listener, bytes),
        None => Ok(()),
    };
    serve(&sink.listen, prepare, |mut stream| {
        let mut buffer = vec![0; 256 << 10];
        let mut total: u64 = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return write!(stream, "{total}"),
                n => total += u64::try_from(n).unwrap_or(0),
            }
        }
    })
}

/// Sends zeros until the client has enough.
fn source(source: &Source) -> ExitCode {
    let prepare = |listener: &TcpListener| set_tcp_congestion(listener, &source.congestion);
    serve(&source.listen, prepare, |mut stream| {
        let zeros = vec![0; 256 << 10];
        loop {
            stream.write_all(&zeros)?;
        }
    })
}

/// Serves each connection in a thread. Connections inherit socket options from the listener, so `prepare` sets options
/// before the first connection.
fn serve(
    listen: &Listen,
    prepare: impl Fn(&TcpListener) -> rustix::io::Result<()>,
    each: fn(TcpStream) -> io::Result<()>,
) -> ExitCode {
    let bound = TcpListener::bind(listen.address).and_then(|listener| {
        prepare(&listener)?;
        Ok(listener)
    });
    let listener = match bound {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen on {}: {error}", listen.address);
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming().flatten() {
        // A client may disconnect without consequences.
        thread::spawn(move || each(stream));
    }
    ExitCode::SUCCESS
}
