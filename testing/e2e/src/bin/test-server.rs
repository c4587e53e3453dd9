//! A server that executes its client's commands, without any dependence on the time.
//!
//! `test-server [--die FILE] [--need FILE] ADDRESS:PORT...`: a thread for each connection. A word in the FILE of
//! `--die` (`exit`, `abort`, `panic`, `panic-main`), from another process, makes the server die: the input of
//! connections stays free of such a command. Without the FILE of `--need` the server does not start.
//!
//! A connection is a sequence of lines, each answered before the next is read:
//!
//! | line | what it does |
//! |---|---|
//! | `echo` | echoes everything up to the client's FIN, then closes |
//! | `pattern N` | sends N bytes without a short period |
//! | `sink N` | reads N bytes, then answers with a line: their number and a checksum |
//! | `say WORD` | answers `WORD` in a line |
//! | `wait FILE` | reads nothing more until the file is there |
//! | `pid` | answers its process number, ten digits: never the same after a restart |
//! | `keep N FILE` | reads N bytes, and then FILE is there, and has them |
//! | `half-close` | sends a FIN and goes on reading lines |
//! | `half-close FILE` | the same if the file is there, else nothing |
//! | `close` | closes |
//! | `reset` | resets |
//! | `exit N` | the process exits with that status |
//! | `abort` | the process aborts |
//! | `panic` | this connection's thread panics, which unwinds and ends this thread alone |

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{env, fs, process, thread};

use rustix::net::sockopt::set_socket_linger;

const POLL_INTERVAL: Duration = Duration::from_millis(1);

fn main() {
    let mut die = None;
    let mut addresses = Vec::new();
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--die" => die = arguments.next().map(PathBuf::from),
            "--need" => {
                let path = arguments.next().unwrap_or_default();
                if let Err(error) = fs::metadata(&path) {
                    eprintln!("test-server: {path}: {error}");
                    process::exit(1);
                }
            }
            address => addresses.push(address.to_owned()),
        }
    }
    let (to_main, orders) = channel();
    if let Some(file) = die {
        thread::spawn(move || await_death(&file, &to_main));
    }
    for address in addresses {
        let listener = TcpListener::bind(&address).unwrap_or_else(|error| {
            eprintln!("test-server: {address}: {error}");
            process::exit(1);
        });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // How a connection ends is for the client to judge.
                thread::spawn(move || serve(stream));
            }
        });
    }
    if orders.recv().is_ok() {
        // Unwinds this thread, which owns no connection; then the process leaves with 101.
        panic!("the main thread panics, as ordered");
    }
    loop {
        thread::park();
    }
}

/// Waits for the word, and dies as the word says.
fn await_death(file: &Path, main: &Sender<()>) {
    loop {
        thread::sleep(POLL_INTERVAL);
        let Ok(word) = fs::read_to_string(file) else {
            continue;
        };
        let _ = fs::remove_file(file);
        match word.trim() {
            "exit" => process::exit(1),
            "abort" => process::abort(),
            "panic" => {
                // As with `panic = "abort"` in a Cargo profile.
                std::panic::set_hook(Box::new(|_| process::abort()));
                panic!("a thread panics, as ordered");
            }
            "panic-main" => {
                let _ = main.send(());
            }
            other => eprintln!("test-server: {other:?} is no way to die"),
        }
    }
}

fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (word, rest) = line
            .trim_end()
            .split_once(' ')
            .unwrap_or((line.trim_end(), ""));
        let number: usize = rest.parse().unwrap_or(0);
        match word {
            "echo" => return echo(&mut input, &mut output),
            "pattern" => output.write_all(&e2e::pattern(number))?,
            "sink" => {
                let sum = sink(&mut input, number)?;
                output.write_all(format!("{number} {sum:016x}\n").as_bytes())?;
            }
            "keep" => {
                let (number, file) = rest.split_once(' ').unwrap_or_default();
                keep(&mut input, number.parse().unwrap_or(0), Path::new(file))?;
            }
            "say" => output.write_all(format!("{rest}\n").as_bytes())?,
            "wait" => {
                while !Path::new(rest).exists() {
                    thread::sleep(POLL_INTERVAL);
                }
            }
            "pid" => output.write_all(format!("{:010}\n", process::id()).as_bytes())?,
            "half-close" if !rest.is_empty() && !Path::new(rest).exists() => {}
            "half-close" => output.shutdown(Shutdown::Write)?,
            "close" => return Ok(()),
            "reset" => {
                set_socket_linger(&output, Some(Duration::ZERO))?;
                return Ok(());
            }
            "exit" => process::exit(rest.parse().unwrap_or(1)),
            "abort" => process::abort(),
            "panic" => panic!("this thread panics, as asked"),
            _ => output.write_all(b"what?\n")?,
        }
    }
}

fn echo(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(()),
            length => output.write_all(&buffer[..length])?,
        }
    }
}

/// Renames the file into place after the last byte: a visible file is complete.
fn keep(input: &mut impl Read, length: usize, file: &Path) -> io::Result<()> {
    let mut heard = vec![0; length];
    input.read_exact(&mut heard)?;
    let part = file.with_extension("part");
    fs::write(&part, heard)?;
    fs::rename(part, file)
}

/// Reads `length` bytes and returns their checksum, see [`e2e::checksum`].
fn sink(input: &mut impl Read, length: usize) -> io::Result<u64> {
    let mut sum = e2e::Checksum::default();
    let mut buffer = vec![0; 65_536];
    let mut left = length;
    while left > 0 {
        let most = left.min(buffer.len());
        let got = input.read(&mut buffer[..most])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sum.add(&buffer[..got]);
        left -= got;
    }
    Ok(sum.value())
}
