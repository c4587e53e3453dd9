//! Debian's kernels, through apt, into a cache: with separate sources and lists, so that this machine's are not
//! touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Kernel;

/// The package that depends on a suite's kernel.
const META: &str = "linux-image-amd64";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel.
pub(super) struct Unpacked {
    /// As `uname -r` says.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// The modules.
    pub(super) modules: PathBuf,
}

/// The newest cached kernel of a suite; from the archive if the cache has none, or with `refresh`.
pub(super) fn get(kernel: Kernel, cache: &Path, mirror: &str, refresh: bool) -> Result<Unpacked> {
    let directory = cache.join(kernel.suite().0);
    let unpacked = directory.join("unpacked");
    if refresh || find(&unpacked).is_err() {
        fetch(kernel, &directory, mirror)?;
    }
    find(&unpacked)
}

/// The kernel in a directory. Newer packages have all files below /usr, and the image beside the modules.
fn find(unpacked: &Path) -> Result<Unpacked> {
    for place in ["lib/modules", "usr/lib/modules"] {
        let Ok(entries) = fs::read_dir(unpacked.join(place)) else {
            continue;
        };
        for entry in entries.flatten() {
            let release = entry.file_name().to_string_lossy().into_owned();
            let boot = unpacked.join("boot").join(format!("vmlinuz-{release}"));
            let images = [boot, entry.path().join("vmlinuz")];
            if let Some(image) = images.into_iter().find(|image| image.is_file()) {
                return Ok(Unpacked {
                    release,
                    image,
                    modules: entry.path(),
                });
            }
        }
    }
    bail!("no kernel in {}", unpacked.display())
}

fn fetch(kernel: Kernel, directory: &Path, mirror: &str) -> Result<()> {
    fs::create_dir_all(directory.join("lists/partial"))?;
    fs::create_dir_all(directory.join("cache/archives/partial"))?;
    fs::create_dir_all(directory.join("packages"))?;
    let (suite, security) = kernel.suite();
    let mut sources = format!("deb [signed-by={KEYRING}] {mirror}/debian {suite} main\n");
    if let Some(security) = security {
        sources += &format!("deb [signed-by={KEYRING}] {mirror}/debian-security {security} main\n");
    }
    let list = directory.join("sources.list");
    fs::write(&list, sources)?;
    let options = [
        ("Dir::Etc::sourcelist", list.as_path()),
        ("Dir::Etc::sourceparts", Path::new("/dev/null")),
        ("Dir::State::lists", &directory.join("lists")),
        ("Dir::Cache", &directory.join("cache")),
        // Only kernels are needed, and root may read the downloads.
        ("Acquire::Languages", Path::new("none")),
        ("APT::Sandbox::User", Path::new("root")),
    ];
    let apt = |program: &str, arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(program);
        for (name, value) in options {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        }
        command
            .args(arguments)
            .current_dir(directory.join("packages"));
        let output = command
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        ensure!(
            output.status.success(),
            "{program} {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    };
    println!("  looking for the kernel of {}", kernel.name());
    apt("apt-get", &["update", "--quiet"])?;
    let shown = apt("apt-cache", &["show", "--no-all-versions", META])?;
    let package = image_package(&shown).context("the archive's kernel has no image")?;
    // Since Linux 7 the image's package depends on packages with the files, of the same release.
    let release = package.trim_start_matches("linux-image-").to_owned();
    let shown = apt("apt-cache", &["show", "--no-all-versions", &package])?;
    let mut packages = depends(&shown);
    packages.retain(|name| name.starts_with("linux-") && name.ends_with(&release));
    packages.insert(0, package);
    let unpacked = directory.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    for package in packages {
        println!("  fetching {package}");
        apt("apt-get", &["download", "--quiet", &package])?;
        unpack(directory, &package)?;
    }
    Ok(())
}

/// `linux-image-6.1.0-56-amd64`, from the output of apt-cache(8) about the package that depends on the image.
fn image_package(shown: &str) -> Option<String> {
    let mut names = depends(shown).into_iter();
    names.find(|name| name.starts_with("linux-image-"))
}

/// The names of the packages that a package depends on.
fn depends(shown: &str) -> Vec<String> {
    let depends = shown
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "));
    let names = depends.unwrap_or_default().split(',');
    let names = names.filter_map(|one| one.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Puts the package's files where the kernel's are.
fn unpack(directory: &Path, package: &str) -> Result<()> {
    let packages = fs::read_dir(directory.join("packages"))?;
    let mut files: Vec<_> = packages.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{package}_"))
    });
    // Of several versions of a package, the newest download.
    files.sort_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    let file = files.last().context("apt-get has fetched nothing")?;
    let unpacked = directory.join("unpacked");
    let status = Command::new("dpkg-deb")
        .arg("--extract")
        .arg(file)
        .arg(&unpacked)
        .status()?;
    ensure!(
        status.success(),
        "dpkg-deb cannot unpack {}",
        file.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_dependency_of_meta_package() {
        let shown = "Package: linux-image-amd64\nVersion: 7.2.12-1\n\
             Depends: linux-base-amd64 (= 7.2.12-1), linux-image-7.2.12+deb13-amd64 (= 7.2.12-1)\n";
        assert_eq!(
            image_package(shown).as_deref(),
            Some("linux-image-7.2.12+deb13-amd64")
        );
        assert_eq!(image_package("Package: x\n"), None);
    }
}
