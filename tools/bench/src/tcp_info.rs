//! The kernel's state of a TCP connection, by sock_diag(7).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{AF_INET, IPPROTO_TCP, SockDiagMessage};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// A socket for questions to the kernel of the network namespace in which the socket was opened.
pub(super) struct Asker(OwnedFd);

impl Asker {
    pub(super) fn open() -> Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        Ok(Self(socket))
    }

    /// Of the IPv4 connection with these ends.
    pub(super) fn ask(&self, [local, remote]: [SocketAddr; 2]) -> Result<TcpInfo> {
        let request = SockDiagMessage::InetRequest(InetRequest {
            family: AF_INET,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::INFO,
            states: StateFlags::all(),
            socket_id: SocketId {
                source_address: ipv4(local),
                source_port: local.port(),
                destination_address: ipv4(remote),
                destination_port: remote.port(),
                // Any cookie (INET_DIAG_NOCOOKIE).
                cookie: [0xff; 8],
                ..SocketId::new_v4()
            },
        });
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let mut message = NetlinkMessage::new(header, request.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.0, &bytes, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer[..length])?;
        match answer.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                for attribute in response.nlas.iter() {
                    if let Nla::TcpInfo(bytes) = attribute {
                        return TcpInfo::parse(bytes).context("the kernel tells too little");
                    }
                }
                bail!("the kernel does not tell of TCP")
            }
            NetlinkPayload::Error(error) => bail!("no such connection: {error}"),
            other => bail!("an answer that was not asked for: {other:?}"),
        }
    }
}

/// Some of `struct tcp_info` (linux/tcp.h). Times are in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct TcpInfo {
    pub(super) rto: u32,
    pub(super) rtt: u32,
    pub(super) rttvar: u32,
    /// In segments.
    pub(super) snd_cwnd: u32,
    pub(super) bytes_acked: u64,
}

impl TcpInfo {
    /// `None` for the shorter structure of an older kernel.
    fn parse(bytes: &[u8]) -> Option<Self> {
        // Eight fields of a byte come first, then fields of four bytes, and then fields of eight bytes, which are
        // aligned.
        let field = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Self {
            rto: field(8)?,
            rtt: field(68)?,
            rttvar: field(72)?,
            snd_cwnd: field(80)?,
            bytes_acked: u64::from_ne_bytes(bytes.get(120..128)?.try_into().ok()?),
        })
    }
}

fn ipv4(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn sent_bytes_are_acknowledged() -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        stream.write_all(&[7; 1000])?;
        server.read_exact(&mut [0; 1000])?;
        let ends = [stream.local_addr()?, stream.peer_addr()?];
        let info = Asker::open()?.ask(ends)?;
        // Microseconds: the least RTO is 200 ms, and an estimate is never 0.
        assert!(
            info.rto >= 1000 && info.rtt > 0 && info.rttvar > 0,
            "{info:?}"
        );
        assert!(info.snd_cwnd >= 2, "{info:?}");
        // The SYN counts as a byte.
        assert_eq!(info.bytes_acked, 1001, "{info:?}");
        drop(server);
        let nobody = [ends[0], SocketAddr::from(([127, 0, 0, 1], 1))];
        assert!(Asker::open()?.ask(nobody).is_err());
        Ok(())
    }
}
