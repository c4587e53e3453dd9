//! The runner, in the place of each command of a make: asks the engine for the command, or becomes the command. A small
//! program, because a build begins the runner as often as commands.

use make_rpc::runner;

/// `RUNNER make-command SOCKET PROGRAM NAME ARGUMENTS…`.
fn main() {
    let mut words = std::env::args_os().skip(2);
    let socket = words.next().and_then(|socket| socket.into_string().ok());
    let (Some(socket), Some(program)) = (socket, words.next()) else {
        eprintln!("make: a command is begun by make only");
        std::process::exit(2);
    };
    let status = runner::for_make(&socket, program, words.collect());
    runner::end_as(status)
}
