//! A client of redis that expects an answer, a reset, or silence.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use e2e::{EVENT_TIMEOUT, Scene, servers::SERVER_PORT};

/// A client of redis, and the connection.
pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) fn new(scene: &Scene) -> Self {
        Self::to(scene, scene.ipv4(SERVER_PORT))
    }

    pub(super) fn to(scene: &Scene, address: SocketAddr) -> Self {
        Self(BufReader::new(scene.connect_to(address)))
    }

    pub(super) fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    pub(super) fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
    }

    /// The first line of the answer, if the answer comes in time.
    #[track_caller]
    pub(super) fn answer_within(&mut self, time: Duration) -> Option<String> {
        let limit = |client: &Self, time| {
            let limited = client.stream().set_read_timeout(Some(time));
            limited.expect("a timeout");
        };
        limit(self, time);
        let beginning = self.beginning();
        limit(self, EVENT_TIMEOUT);
        self.answer_unless(beginning, ErrorKind::WouldBlock)
    }

    /// `None`: the connection was reset. Silence is no reset.
    #[track_caller]
    pub(super) fn answer_or_error(&mut self) -> Option<String> {
        let beginning = self.beginning();
        self.answer_unless(beginning, ErrorKind::ConnectionReset)
    }

    /// No host knows the connection any more. The client has to send first: a host without the connection sends no
    /// reset by itself.
    #[track_caller]
    pub(super) fn is_reset_when_it_speaks(&mut self) {
        let said = self.0.get_mut().write_all(b"PING\r\n");
        let kind = match said {
            Ok(()) => self.beginning().err(),
            Err(error) => Some(error.kind()),
        };
        assert_eq!(kind, Some(ErrorKind::ConnectionReset));
    }

    /// Whether the server answers; otherwise the connection is reset.
    #[track_caller]
    pub(super) fn is_alive(&mut self) -> bool {
        let said = self.0.get_mut().write_all(b"PING\r\n");
        let heard = said
            .map_err(|error| error.kind())
            .and_then(|()| self.beginning());
        match heard {
            Ok(()) => self.answer() == "+PONG",
            Err(kind) => {
                assert!(
                    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                    "{kind}"
                );
                false
            }
        }
    }

    /// Waits for the first bytes of an answer.
    fn beginning(&mut self) -> Result<(), ErrorKind> {
        loop {
            match self.0.fill_buf().map_err(|error| error.kind()) {
                Err(ErrorKind::Interrupted) => {} // which says nothing of the connection
                heard => return heard.map(drop),
            }
        }
    }

    #[track_caller]
    fn answer_unless(
        &mut self,
        beginning: Result<(), ErrorKind>,
        expected: ErrorKind,
    ) -> Option<String> {
        match beginning {
            Ok(()) => Some(self.answer()),
            Err(kind) => {
                assert_eq!(kind, expected);
                None
            }
        }
    }

    pub(super) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        assert!(line.ends_with("\r\n"), "the connection has ended: {line:?}");
        line.truncate(line.len() - 2);
        match line.as_bytes().first() {
            Some(b'$') if line != "$-1" => {
                let length: usize = line[1..].parse().expect("a length");
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes).expect("a value");
                String::from_utf8_lossy(&bytes[..length]).into_owned()
            }
            Some(b'*') => {
                let count: usize = line[1..].parse().unwrap_or(0);
                (0..count)
                    .map(|_| self.answer())
                    .collect::<Vec<_>>()
                    .join(" ")
            }
            _ => line,
        }
    }

    /// The beginning of a replica's stream: empty lines during the wait, then the whole data set.
    pub(super) fn dump(&mut self) -> Vec<u8> {
        let mut line = String::new();
        while line.trim_end().is_empty() {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).expect("a line"), 0, "the end");
        }
        let length = line.trim_end().strip_prefix('$');
        let length = length.and_then(|length| length.parse().ok());
        let mut bytes = vec![0; length.unwrap_or_else(|| panic!("{line:?}"))];
        self.0.read_exact(&mut bytes).expect("all of it");
        bytes
    }

    #[track_caller]
    pub(super) fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }
}
