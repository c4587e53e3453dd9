//! Shared maps of the former layout, and the entries of all other maps: read, converted, written.

use std::{collections::HashMap, ffi::c_void, io, os::fd::AsFd as _, ptr::NonNull, rc::Rc, slice};

use libbpf_rs::{
    AsRawLibbpf, ErrorKind, MapCore, MapFlags, MapHandle, MapInfo, MapType, OpenMap, OpenMapMut,
    OpenObject, libbpf_sys,
};

use super::{
    MigrationError,
    conversion::Conversion,
    layout::{Layout, Types},
};
use crate::{
    abi::{self, Abi},
    batches::{ROOM, each_entry},
    error::{DataplaneError, MapContext},
};

const READING_MAP: &str = "read a map of the former layout";
const WRITING_MAP: &str = "write what a map of the former layout had";

/// The maps whose size is decided when a service is begun.
const SIZED_MAPS: [&str; 3] = ["mirror", "flows", "read_cursors"];
/// Each program fills this map anew for each packet.
const SCRATCH_MAP: &str = "scratches";

/// A new map, and the former map with the entries.
pub(super) struct MapCopy {
    name: String,
    kind: Kind,
    former: MapHandle,
    own: MapHandle,
    key: Conversion,
    value: Conversion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Array,
    Hash,
    /// The kernel removes entries by itself.
    Evicting,
    PerCpu,
}

/// A map as the object file describes the map, beside the pinned map of the same name.
pub(super) struct Pair {
    name: String,
    former: MapHandle,
    kind: MapType,
    former_layouts: [Layout; 2],
    own_layouts: [Layout; 2],
}

impl Pair {
    /// `None`: no entry is to be copied, mostly because both are the same map from now on.
    ///
    /// # Errors
    /// Other processes have the map in use, or the types are unknown.
    pub(super) fn of(
        map: &mut OpenMapMut<'_>,
        former: MapHandle,
        kernel: &mut KernelTypes,
        own: &Types,
    ) -> Result<Option<Self>, DataplaneError> {
        let name = map.name().to_string_lossy().into_owned();
        let info = MapInfo::new(former.as_fd()).doing(READING_MAP)?.info;
        if SIZED_MAPS.contains(&&*name) {
            map.set_max_entries(info.max_entries).doing(WRITING_MAP)?;
        }
        let refused = |why| DataplaneError::Migration {
            map: name.clone(),
            why,
        };
        let kind = map.map_type();
        let is_defined_equally = kind == MapType::from(info.type_)
            && map.key_size() == info.key_size
            && map.value_size() == info.value_size
            && map.max_entries() == info.max_entries
            && map.map_flags() == info.map_flags;
        if name == SCRATCH_MAP {
            return Ok(None); // a map of its own, and nothing to be copied
        }
        let own_layouts = own_layouts(map, own).map_err(refused)?;
        let former_layouts = kernel.layouts(&info, &own_layouts).map_err(refused)?;
        if is_defined_equally && own_layouts == former_layouts {
            map.reuse_fd(former.as_fd())
                .doing("take over a map of an earlier outlive serve")?;
            return Ok(None);
        }
        let is_mapped = map.map_flags() & libbpf_sys::BPF_F_MMAPABLE != 0 && info.max_entries > 1;
        if kind == MapType::RingBuf || is_mapped || kind != MapType::from(info.type_) {
            return Err(refused(MigrationError::InUse));
        }
        Ok(Some(Self {
            name,
            former,
            kind,
            former_layouts,
            own_layouts,
        }))
    }

    /// The name of the map.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the copy of the entries into `own`.
    ///
    /// # Errors
    /// The layouts have too little in common.
    pub(super) fn copied_to(self, own: MapHandle) -> Result<MapCopy, DataplaneError> {
        let [former_key, former_value] = &self.former_layouts;
        let [own_key, own_value] = &self.own_layouts;
        let name = self.name;
        let refused = |why| DataplaneError::Migration {
            map: name.clone(),
            why,
        };
        let key = Conversion::between(former_key, own_key).map_err(refused)?;
        let value = Conversion::between(former_value, own_value).map_err(refused)?;
        let kind = match self.kind {
            MapType::Array => Kind::Array,
            MapType::Hash => Kind::Hash,
            MapType::LruHash => Kind::Evicting,
            MapType::PercpuArray => Kind::PerCpu,
            _ => return Err(refused(MigrationError::Unsupported)),
        };
        if kind == Kind::Array && !key.is_identity() {
            return Err(refused(MigrationError::OtherKind));
        }
        let is_array = matches!(kind, Kind::Array | Kind::PerCpu);
        if is_array && own.max_entries() < self.former.max_entries() {
            return Err(refused(MigrationError::Shorter));
        }
        Ok(MapCopy {
            name,
            kind,
            former: self.former,
            own,
            key,
            value,
        })
    }
}

/// Entries of a pass over a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pass {
    /// Entries that differed in the new map, or were missing.
    pub(super) differed: usize,
    /// Of these, the kernel did not write.
    pub(super) refused: usize,
}

impl MapCopy {
    /// Whether further passes can complete the copy of this map.
    pub(super) fn converges(&self) -> bool {
        matches!(self.kind, Kind::Array | Kind::Hash)
    }

    /// Makes the new map equal to the former map. If connections come and go meanwhile, or the
    /// kernel has no memory or no lock at once, another pass is needed.
    ///
    /// # Errors
    /// A map cannot be read or written.
    pub(super) fn copy(&self) -> Result<Pass, DataplaneError> {
        match self.kind {
            Kind::Array => self.copy_array(),
            Kind::Hash | Kind::Evicting => self.copy_hash(),
            Kind::PerCpu => self.copy_per_cpu(),
        }
    }

    fn indices(&self) -> impl Iterator<Item = [u8; 4]> {
        (0..self.former.max_entries()).map(u32::to_ne_bytes)
    }

    fn copy_array(&self) -> Result<Pass, DataplaneError> {
        let mut pass = Pass::default();
        for index in self.indices() {
            let read = |map: &MapHandle| map.lookup(&index, MapFlags::ANY).doing(READING_MAP);
            let Some(former) = read(&self.former)? else {
                continue;
            };
            let present = read(&self.own)?.unwrap_or_default();
            let wanted = self.without_opening(self.value.apply(&former), &present);
            if wanted != present {
                self.write(&index, &wanted, &mut pass)?;
            }
        }
        Ok(pass)
    }

    /// Both latches are there while the maps are copied. Ours may have shut the gate a moment before the other.
    fn without_opening(&self, wanted: Vec<u8>, present: &[u8]) -> Vec<u8> {
        let both = (
            abi::service::from_bytes(&wanted),
            abi::service::from_bytes(present),
        );
        match both {
            (Some(mut service), Some(present))
                if self.name == "service" && service.gated == 0 && present.gated != 0 =>
            {
                service.gated = present.gated;
                service.gated_ns = present.gated_ns;
                service.as_bytes().to_vec()
            }
            _ => wanted,
        }
    }

    fn copy_hash(&self) -> Result<Pass, DataplaneError> {
        let mut pass = Pass::default();
        let mut present: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut wanted = Vec::new();
        let read = each_entry(&self.own, ROOM, |key, value| {
            present.insert(key.to_vec(), value.to_vec());
        })
        .and_then(|()| {
            each_entry(&self.former, ROOM, |key, value| {
                let (key, value) = (self.key.apply(key), self.value.apply(value));
                if present.remove(&key).is_none_or(|is| is != value) {
                    wanted.push((key, value));
                }
            })
        });
        if pass.counts_refusal(read, READING_MAP)? {
            return Ok(pass); // a part of the entries says nothing about the others
        }
        // Before the writes: a full map has no space for new entries.
        for key in present.keys() {
            pass.differed += 1;
            match self.own.delete(key) {
                Err(error) if error.kind() == ErrorKind::NotFound => {} // the latch was faster
                deleted => drop(pass.counts_refusal(deleted, WRITING_MAP)?),
            }
        }
        for (key, value) in wanted {
            self.write(&key, &value, &mut pass)?;
        }
        Ok(pass)
    }

    fn copy_per_cpu(&self) -> Result<Pass, DataplaneError> {
        for index in self.indices() {
            let former = self.former.lookup_percpu(&index, MapFlags::ANY);
            let Some(former) = former.doing(READING_MAP)? else {
                continue;
            };
            let values: Vec<_> = former.iter().map(|value| self.value.apply(value)).collect();
            let written = self.own.update_percpu(&index, &values, MapFlags::ANY);
            written.doing(WRITING_MAP)?;
        }
        Ok(Pass::default())
    }

    fn write(&self, key: &[u8], value: &[u8], pass: &mut Pass) -> Result<(), DataplaneError> {
        pass.differed += 1;
        let written = self.own.update(key, value, MapFlags::ANY);
        pass.counts_refusal(written, WRITING_MAP).map(drop)
    }
}

impl Pass {
    /// Was the operation refused for this moment?
    ///
    /// A map without preallocation takes memory from a small reserve that is refilled in the background (`ENOMEM`), and
    /// does not wait for the lock of a bucket (`EBUSY`). A full map may have had other entries when the former map was
    /// read (`E2BIG`).
    fn counts_refusal(
        &mut self,
        result: Result<(), libbpf_rs::Error>,
        doing: &'static str,
    ) -> Result<bool, DataplaneError> {
        let Err(error) = result else { return Ok(false) };
        match error.kind() {
            // `EBUSY` has no error kind.
            ErrorKind::OutOfMemory | ErrorKind::TooBig | ErrorKind::Other => {
                self.refused += 1;
                Ok(true)
            }
            _ => Err(error).doing(doing),
        }
    }
}

/// The types of maps that are in the kernel, each BTF read once.
#[derive(Default)]
pub(super) struct KernelTypes(HashMap<u32, Rc<Types>>);

impl KernelTypes {
    /// The layouts of keys and values. `own`: the layouts of the new map, where the kernel takes no
    /// types.
    fn layouts(
        &mut self,
        info: &libbpf_sys::bpf_map_info,
        own: &[Layout; 2],
    ) -> Result<[Layout; 2], MigrationError> {
        let size = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
        let sizes = [size(info.key_size), size(info.value_size)];
        if info.btf_id == 0 || info.btf_value_type_id == 0 {
            // Rings have none, and a hash map with an untyped key can have none.
            let untyped = sizes.map(|size| Layout::Untyped { size });
            return match own {
                [Layout::Untyped { .. }, _] => Ok(untyped),
                _ => Err(MigrationError::NoTypes),
            };
        }
        let types = match self.0.get(&info.btf_id) {
            Some(types) => Rc::clone(types),
            None => {
                let types = Rc::new(types_in_kernel(info.btf_id)?);
                self.0.insert(info.btf_id, Rc::clone(&types));
                types
            }
        };
        let of = |number, size| layout_of(&types, number, size);
        Ok([
            of(info.btf_key_type_id, sizes[0])?,
            of(info.btf_value_type_id, sizes[1])?,
        ])
    }
}

fn layout_of(types: &Types, number: u32, size: usize) -> Result<Layout, MigrationError> {
    let layout = types.layout(number)?;
    if layout.size() != size {
        return Err(MigrationError::Malformed);
    }
    Ok(layout)
}

fn types_in_kernel(number: u32) -> Result<Types, MigrationError> {
    // SAFETY: the call takes a number alone.
    let btf = unsafe { libbpf_sys::btf__load_from_kernel_by_id(number) };
    let btf =
        NonNull::new(btf).ok_or_else(|| MigrationError::Unread(io::Error::last_os_error()))?;
    let types = types_of(btf);
    // SAFETY: libbpf has just made this BTF for the caller, and no part of the BTF is used any
    // more.
    unsafe { libbpf_sys::btf__free(btf.as_ptr()) };
    types
}

/// The types of an object file that is open.
pub(super) fn types_of_object(object: &OpenObject) -> Result<Types, MigrationError> {
    // SAFETY: the object is open as long as the borrow lasts.
    let btf = unsafe { libbpf_sys::bpf_object__btf(object.as_libbpf_object().as_ptr()) };
    types_of(NonNull::new(btf).ok_or(MigrationError::NoTypes)?)
}

fn types_of(btf: NonNull<libbpf_sys::btf>) -> Result<Types, MigrationError> {
    let mut length = 0;
    // SAFETY: the caller has a BTF that lives, and libbpf writes the length.
    let raw: *const c_void = unsafe { libbpf_sys::btf__raw_data(btf.as_ptr(), &raw mut length) };
    if raw.is_null() {
        return Err(MigrationError::Malformed);
    }
    let length = usize::try_from(length).map_err(|_| MigrationError::Malformed)?;
    // SAFETY: `length` bytes belong to the BTF, and no other call on the BTF is made while these
    // are read.
    Types::parse(unsafe { slice::from_raw_parts(raw.cast::<u8>(), length) })
}

/// The layouts of keys and values in a new map, as far as the kernel will know the layouts: the
/// kernel takes either both types or none.
fn own_layouts(map: &OpenMap<'_>, types: &Types) -> Result<[Layout; 2], MigrationError> {
    let size = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
    let sizes = [size(map.key_size()), size(map.value_size())];
    let raw = map.as_libbpf_object().as_ptr();
    // SAFETY: the map belongs to an open object, which is borrowed.
    let key = unsafe { libbpf_sys::bpf_map__btf_key_type_id(raw) };
    // SAFETY: as above.
    let value = unsafe { libbpf_sys::bpf_map__btf_value_type_id(raw) };
    if key == 0 || value == 0 {
        return Ok(sizes.map(|size| Layout::Untyped { size }));
    }
    Ok([
        layout_of(types, key, sizes[0])?,
        layout_of(types, value, sizes[1])?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_of(kind: MapType, max_entries: u32) -> MapHandle {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>()
                .try_into()
                .unwrap(),
            ..Default::default()
        };
        MapHandle::create(kind, Some("copied"), 4, 4, max_entries, &options).unwrap()
    }

    fn copied(former: MapHandle, own: MapHandle) -> Result<MapCopy, DataplaneError> {
        let layouts = || [4, 4].map(|size| Layout::Untyped { size });
        let pair = Pair {
            name: "copied".to_owned(),
            kind: former.map_type(),
            former,
            former_layouts: layouts(),
            own_layouts: layouts(),
        };
        pair.copied_to(own)
    }

    #[test]
    fn entries_beyond_capacity_are_copied_by_later_pass() {
        let (former, own) = (map_of(MapType::Hash, 4), map_of(MapType::Hash, 2));
        let put = |map: &MapHandle, key: u8| map.update(&[key; 4], &[key; 4], MapFlags::ANY);
        (0..4).for_each(|key| put(&former, key).unwrap());
        (8..10).for_each(|key| put(&own, key).unwrap());
        let copy = copied(former, own).unwrap();
        let pass = copy.copy().unwrap();
        let expected = Pass {
            differed: 6,
            refused: 2,
        };
        assert_eq!(pass, expected, "two removed, two of four written");
        // Two connections end.
        (0..2).for_each(|key| copy.former.delete(&[key; 4]).unwrap());
        assert_eq!(copy.copy().unwrap().refused, 0);
        assert_eq!(copy.copy().unwrap(), Pass::default());
        let mut keys: Vec<_> = copy.own.keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, [[2; 4], [3; 4]]);
    }

    #[test]
    fn array_with_fewer_entries_is_refused() {
        for kind in [MapType::Array, MapType::PercpuArray] {
            let refused = copied(map_of(kind, 4), map_of(kind, 3));
            let Err(DataplaneError::Migration { map, why }) = refused else {
                panic!("it is copied");
            };
            assert_eq!(map, "copied");
            assert!(matches!(why, MigrationError::Shorter), "{why}");
            assert!(copied(map_of(kind, 3), map_of(kind, 4)).is_ok());
        }
    }
}
