//! Connections that several processes have: one process serves, and another process continues at the position where
//! the first has let the connection go.

use libc::c_int;
use north_abi::{
    Call,
    handover::{Ends, StreamOffsets},
    layout::{Claimed, Failure, Fate, Page},
};

use crate::{calls::refuse, descriptors::Connection, live, wrap::Wrap};

fn let_go(page: &Page, process: u32, connection: &mut Connection, is_replay: bool) {
    let place = connection.place();
    connection.is_served = false;
    if is_replay {
        live::report_served(connection);
    }
    page.serving.let_go(connection.number, process, place);
}

impl Wrap {
    /// This process claims the connections that it serves, before other processes inherit them. A replay serves all
    /// connections as recorded.
    pub(crate) fn claim_all(&mut self) {
        let (page, process, is_replay) = (self.page, self.process, self.is_replay);
        for connection in self.descriptors.connections_mut() {
            if connection.is_touched() && !connection.is_served && !connection.is_inherited {
                let is_own = || page.serving.claim(connection.number, process) == Claimed::Own;
                connection.is_served = is_replay || is_own();
            }
        }
    }

    /// The program is about to read from this connection, or to write.
    #[inline]
    pub(crate) fn serves(&mut self, fd: c_int) {
        let is_first = self.process == 0;
        if let Some(connection) = self.descriptors.connection(fd)
            && !connection.is_served
            && (connection.is_shared || !is_first && !connection.is_outgoing())
        {
            self.begins_to_serve(fd);
        }
    }

    #[cold]
    fn begins_to_serve(&mut self, fd: c_int) {
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        let (own, is_outgoing) = (connection.place(), connection.is_outgoing());
        let (number, ends) = (connection.number, live::ends(connection));
        let since = if self.process == 0 || is_outgoing {
            // No record would have the position of a takeover.
            match self.claim(number) {
                Claimed::Own => own,
                Claimed::No | Claimed::From(_) => self.is_served_by_two(),
            }
        } else {
            self.group.serves = true;
            self.check_group();
            self.serves_from(number, &ends, own)
        };
        if let Some(connection) = self.descriptors.connection(fd) {
            (connection.is_served, connection.since) = (true, since);
            (connection.instream, connection.outstream) = (since.instream, since.outstream);
        }
    }

    /// A replay serves as recorded; the claims are checked after the replay.
    fn claim(&self, connection: u32) -> Claimed {
        match self.is_replay {
            true => Claimed::Own,
            false => self.page.serving.claim(connection, self.process),
        }
    }

    fn is_served_by_two(&self) -> ! {
        refuse(&[b"two processes of the server serve one connection"]);
    }

    /// Start of this child's part of the connection: `own`, if no process has served before.
    fn serves_from(&mut self, connection: u32, ends: &Ends, own: StreamOffsets) -> StreamOffsets {
        let noted = self.replayed(Call::Fate, 0, |record| {
            let place = record.payload.last_chunk().map(StreamOffsets::from_bytes);
            place.filter(|_| record.outcome == Fate::Serves as i64)
        });
        let entry = &self.page.processes.0[self.process as usize];
        if let Some(noted) = noted {
            let Some(since) = noted else {
                self.fail(Failure::OtherCall, Call::Fate, Some(Call::Fate));
            };
            entry.set(Fate::Serves);
            return since;
        }
        let since = match self.claim(connection) {
            Claimed::Own => own,
            Claimed::From(since) => since,
            Claimed::No => self.is_served_by_two(),
        };
        let mut payload = [0; size_of::<Ends>() + StreamOffsets::SIZE];
        let (front, back) = payload.split_at_mut(size_of::<Ends>());
        front.copy_from_slice(&ends.0);
        back.copy_from_slice(&since.to_bytes());
        self.record_fate(Fate::Serves, &payload);
        since
    }

    /// This process serves the connection no longer: any holder may continue.
    pub(crate) fn lets_go_of(&mut self, fd: c_int) {
        let (page, process, is_replay) = (self.page, self.process, self.is_replay);
        if let Some(connection) = self.descriptors.connection(fd)
            && connection.is_served
            && !connection.is_outgoing()
            && process != 0
        {
            let_go(page, process, connection, is_replay);
        }
    }

    /// After the replay: this process claims the connections that it serves.
    pub(crate) fn serves_on(&mut self) {
        let (page, process) = (self.page, self.process);
        for (_, connection) in self.descriptors.connections() {
            if connection.is_served && page.serving.claim(connection.number, process) == Claimed::No
            {
                self.is_served_by_two();
            }
        }
    }

    /// Other processes may continue all connections that this process serves.
    pub(crate) fn lets_all_go(&mut self) {
        let (page, process, is_replay) = (self.page, self.process, self.is_replay);
        for connection in self.descriptors.connections_mut() {
            if connection.is_served && !connection.is_outgoing() {
                let_go(page, process, connection, is_replay);
            }
        }
    }
}
