//! Which modules a machine needs, and in what order.
//!
//! The kernel's own index of modules (`modules.dep`) is made at the installation of a package, and these packages are
//! only unpacked. But each module names the modules on which the module depends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The modules that the machine and the tests use, unless built in: for this machine's files, and for the network.
const WANTED: [&str; 26] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "dummy",
    "bridge",
    "ifb",
    "sch_ingress",
    "sch_tbf",
    "cls_bpf",
    "cls_u32",
    "act_mirred",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "tcp_cubic",
    "tcp_bbr",
    "af_packet",
    "tun",
    "8021q",
    "bonding",
    "ipvlan",
    "macvlan",
    "macvtap",
    "vrf",
];

/// A module, ready to be loaded.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The modules, each after the modules on which it depends. A missing module is built in, or not in this kernel.
pub(super) fn wanted(directory: &Path) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    index(&directory.join("kernel"), &mut files)?;
    let mut order = Vec::new();
    for name in WANTED {
        add(name, &files, &mut order)?;
    }
    Ok(order)
}

/// Paths by names.
fn index(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            index(&entry.path(), files)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(name.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn add(name: &str, files: &BTreeMap<String, PathBuf>, order: &mut Vec<Module>) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = files.get(&name) else {
        return Ok(());
    };
    if order.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let bytes = read(path)?;
    for needed in depends(&bytes) {
        add(&needed, files, order)?;
    }
    order.push(Module { name, bytes });
    Ok(())
}

/// A module's bytes, unpacked.
fn read(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let output = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(path)
        .output()?;
    ensure!(output.status.success(), "xz cannot read {}", path.display());
    Ok(output.stdout)
}

/// The names after `depends=` in a module's description.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let rest = &module[at + KEY.len()..];
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(depends: &str) -> Vec<u8> {
        format!("\x7fELF...license=GPL\0depends={depends}\0retpoline=Y\0").into_bytes()
    }

    #[test]
    fn module_follows_dependencies() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let net = directory.path().join("kernel/net");
        fs::create_dir_all(&net)?;
        for (name, needs) in [
            ("bridge", "stp,llc"),
            ("stp", "llc"),
            ("llc", ""),
            ("tcp_diag", "inet-diag"),
            ("inet-diag", ""),
        ] {
            fs::write(net.join(format!("{name}.ko")), module(needs))?;
        }
        let order = wanted(directory.path())?;
        let names: Vec<_> = order.iter().map(|module| &*module.name).collect();
        assert_eq!(names, ["llc", "stp", "bridge", "inet_diag", "tcp_diag"]);
        Ok(())
    }
}
