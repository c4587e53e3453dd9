//! Waiting until no program runs any more that was running before.

use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};

use crate::error::{DataplaneError, MapContext};

const DOING: &str = "wait until the kernel runs no old program";

/// Waits for all programs that run on any processor.
///
/// After a change of a map of maps, bpf(2) returns when no program can have the former map (`maybe_wait_bpf_programs`,
/// since Linux 5.0: synchronize_rcu). membarrier(2) gives no such guarantee: with `nohz_full` the call is refused, and
/// on one processor the call does not wait, though a preemptible kernel may have interrupted a program.
///
/// # Errors
/// The kernel makes no such map.
pub(super) fn wait_for_grace_period() -> Result<(), DataplaneError> {
    let mut options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>()
            .try_into()
            .unwrap_or_default(),
        ..Default::default()
    };
    let inner = MapHandle::create(MapType::Array, Some("inner"), 4, 4, 1, &options).doing(DOING)?;
    let descriptor = inner.as_fd().as_raw_fd();
    options.inner_map_fd = u32::try_from(descriptor).unwrap_or_default();
    let outer = MapHandle::create(MapType::ArrayOfMaps, Some("outer"), 4, 4, 1, &options);
    outer
        .doing(DOING)?
        .update(
            &0_u32.to_ne_bytes(),
            &descriptor.to_ne_bytes(),
            MapFlags::ANY,
        )
        .doing(DOING)
}
