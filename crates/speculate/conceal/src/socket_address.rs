//! Addresses of sockets that programs connect to.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::FileTypeExt as _,
        },
    },
    path::PathBuf,
};

use rustix::{
    io::Errno,
    net::{SocketAddrUnix, connect},
    process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

use crate::processes::process_of;

/// Offset of the path in `struct sockaddr_un`.
const PATH_OFFSET: usize = 2;
/// Size of `struct sockaddr_un`.
const ADDRESS_BYTES: usize = 110;

/// Address of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// An abstract name, without the leading zero byte.
    Abstract(Vec<u8>),
    /// A path.
    Path(PathBuf),
}

impl Address {
    /// Reads the address in the memory of a process that calls connect(2).
    pub(crate) fn of(process: u32, at: u64, length: u64) -> io::Result<Self> {
        let mut bytes = [0; ADDRESS_BYTES];
        let length = usize::try_from(length)
            .unwrap_or(ADDRESS_BYTES)
            .min(ADDRESS_BYTES);
        read(process, at, &mut bytes[..length])?;
        Self::from_bytes(&bytes[..length])
            .ok_or_else(|| io::Error::other("not the name of a socket of this host"))
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (family, name) = bytes.split_at_checked(PATH_OFFSET)?;
        let family = i32::from(u16::from_ne_bytes(family.try_into().ok()?));
        if family != libc::AF_UNIX {
            return None;
        }
        match name.split_first()? {
            (0, name) => Some(Self::Abstract(name.to_vec())),
            _ => {
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                Some(Self::Path(OsString::from_vec(name.to_vec()).into()))
            }
        }
    }

    /// The path as this process sees it.
    fn path(&self, process: u32) -> Option<PathBuf> {
        match self {
            Self::Abstract(_) => None,
            Self::Path(path) if path.is_absolute() => Some(path.clone()),
            Self::Path(path) => Some(
                fs::read_link(format!("/proc/{process}/cwd"))
                    .ok()?
                    .join(path),
            ),
        }
    }

    /// Whether a connect concerns no other process: the name is known, or is a file that only the program sees.
    pub(crate) fn is_own(&self, process: u32, known: &[Vec<u8>]) -> bool {
        match self {
            Self::Abstract(name) => known.contains(name),
            Self::Path(_) => self
                .path(process)
                .is_some_and(|path| !fs::metadata(path).is_ok_and(|it| it.file_type().is_socket())),
        }
    }

    /// The socket to connect in the place of the process, if the socket belongs to that process. `None`: the process
    /// connects by itself.
    pub(crate) fn asked_by(
        &self,
        process: u32,
        descriptor: i32,
        is_its: impl FnOnce() -> bool,
    ) -> Option<Connection> {
        let path = self.path(process)?;
        let address = SocketAddrUnix::new(path.as_os_str().as_bytes()).ok()?;
        let process = pidfd_open(process_of(process).ok()?, PidfdFlags::empty()).ok()?;
        let socket = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()?;
        is_its().then_some(Connection { socket, address })
    }
}

/// A socket of a process, and its peer address.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl Connection {
    /// Connects as soon as the listener has room. `None`: the process connects by itself.
    pub(crate) fn connect(self) -> Option<Result<(), Errno>> {
        match connect(&self.socket, &self.address) {
            // The name may be bound in the mounts of the process alone.
            Err(Errno::CONNREFUSED) => None,
            done => Some(done),
        }
    }
}

/// Reads the memory of a process.
pub(crate) fn read(process: u32, at: u64, into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the memory to write belongs to this process, and has the stated length; the kernel checks the memory to
    // read.
    let read = unsafe {
        libc::process_vm_readv(
            process.cast_signed(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    match usize::try_from(read) {
        Ok(length) if length == into.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &[u8]) -> Option<Address> {
        let family = u16::try_from(libc::AF_UNIX).expect("small").to_ne_bytes();
        Address::from_bytes(&[&family, name].concat())
    }

    #[test]
    fn address_is_path_or_abstract_name() {
        assert_eq!(
            address(b"/run/x\0rest"),
            Some(Address::Path("/run/x".into()))
        );
        assert_eq!(address(b"/run/x"), Some(Address::Path("/run/x".into())));
        assert_eq!(
            address(b"\0x\0y"),
            Some(Address::Abstract(b"x\0y".to_vec()))
        );
        assert_eq!(address(b""), None);
        assert_eq!(Address::from_bytes(&[2, 0, 1, 2, 3, 4]), None);
        assert_eq!(Address::from_bytes(&[1]), None);
    }

    #[test]
    fn process_memory_is_read() {
        let name = [&1u16.to_ne_bytes()[..], b"\0known"].concat();
        let (at, length) = (name.as_ptr() as u64, name.len() as u64);
        let address = Address::of(std::process::id(), at, length).expect("it is ours");
        assert!(address.is_own(std::process::id(), &[b"known".to_vec()]));
        assert!(!address.is_own(std::process::id(), &[]));
        assert!(Address::of(std::process::id(), 8, 20).is_err());
    }
}
