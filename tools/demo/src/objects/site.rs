//! The objects of the pool, and their copies with which the downloads are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::clients::FILES_NAME;
use crate::stage::write_random;

/// Size of the object that most clients download.
pub(super) const OBJECT_BYTES: usize = 25_000_000;
/// Size of the object in eight parts, which are whole pieces of aria2 (1 MiB).
const IMAGE_BYTES: usize = 32 << 20;
/// Size of the contents of each package.
const PACKAGE_BYTES: usize = 15_000_000;
/// Number of small objects, which a client fetches on one connection.
pub(super) const SMALL_COUNT: usize = 60;
const SMALL_BYTES: usize = 3_000;
/// Length of the video, and of each of its segments.
const VIDEO_SECONDS: &str = "6";
const SEGMENT_SECONDS: &str = "2";

pub(super) const DEB: &str = "apt/object_1.0_all.deb";
pub(super) const WHEEL: &str = "pip/files/object-1.0-py3-none-any.whl";

/// Description of the package in both forms: apt's index has the same fields.
const CONTROL: &str = "Package: object\nVersion: 1.0\nArchitecture: all\nMaintainer: demo <demo@localhost>\nDescription: An object\n";
/// Without compression: random bytes have none, and the time is that of a copy.
const MAKE_WHEEL: &str = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    wheel.write(sys.argv[2], 'object.bin')
    info = 'object-1.0.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: object\\nVersion: 1.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: demo\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
";

/// The files of all servers, below `www` of a directory.
pub(super) struct Site {
    directory: PathBuf,
}

impl Site {
    /// Writes all objects, with contents from `seed`.
    pub(super) fn write(directory: &Path, seed: u64) -> Result<Self> {
        let site = Self {
            directory: directory.to_owned(),
        };
        for name in ["small", "video", "apt", "pip/simple/object", "pip/files"] {
            fs::create_dir_all(site.object(name))?;
        }
        let mut random = SmallRng::seed_from_u64(seed);
        write_random(&site.object("object"), OBJECT_BYTES, &mut random)?;
        write_random(&site.object("image"), IMAGE_BYTES, &mut random)?;
        for number in 1..=SMALL_COUNT {
            let path = site.object(&format!("small/{number}"));
            write_random(&path, SMALL_BYTES, &mut random)?;
        }
        let data = directory.join("package/data");
        fs::create_dir_all(directory.join("package/DEBIAN"))?;
        write_random(&data, PACKAGE_BYTES, &mut random)?;
        site.write_deb().context("no repository for apt")?;
        site.write_wheel(&data).context("no index for pip")?;
        site.write_video().context("no video")?;
        Ok(site)
    }

    /// Path of an object.
    pub(super) fn object(&self, name: &str) -> PathBuf {
        self.directory.join("www").join(name)
    }

    /// The video as ffmpeg writes it without a failure.
    pub(super) fn video(&self) -> PathBuf {
        self.directory.join("video.ts")
    }

    /// All small objects, one after the other.
    pub(super) fn all_small(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for number in 1..=SMALL_COUNT {
            all.extend(fs::read(self.object(&format!("small/{number}")))?);
        }
        Ok(all)
    }

    /// A flat repository: a package and its index.
    fn write_deb(&self) -> Result<()> {
        let package = self.directory.join("package");
        fs::write(package.join("DEBIAN/control"), CONTROL)?;
        let deb = self.object(DEB);
        let mut build = Command::new("dpkg-deb");
        run(build.args(["-Znone", "--build"]).arg(&package).arg(&deb))?;
        let sum = run(Command::new("sha256sum").arg(&deb))?;
        let sum = sum.split_whitespace().next().context("no checksum")?;
        let size = fs::metadata(&deb)?.len();
        let file = Path::new(DEB).file_name().context("a file")?;
        let file = file.to_string_lossy();
        let entry = format!("{CONTROL}Filename: ./{file}\nSize: {size}\nSHA256: {sum}\n");
        Ok(fs::write(self.object("apt/Packages"), entry)?)
    }

    /// A wheel, and the page of its project.
    fn write_wheel(&self, data: &Path) -> Result<()> {
        let wheel = self.object(WHEEL);
        let mut python = Command::new("/usr/bin/python3");
        run(python.args(["-c", MAKE_WHEEL]).arg(&wheel).arg(data))?;
        // PyPI has its index and its files at two names, so the wheel is the first response on its connection.
        let link = format!("http://{FILES_NAME}/{WHEEL}");
        let file = Path::new(WHEEL).file_name().context("a file")?;
        let file = file.to_string_lossy();
        let page = format!("<!DOCTYPE html>\n<a href=\"{link}\">{file}</a>\n");
        Ok(fs::write(
            self.object("pip/simple/object/index.html"),
            page,
        )?)
    }

    /// A playlist with its segments. Noise makes these large.
    fn write_video(&self) -> Result<()> {
        let playlist = self.object("video/index.m3u8");
        let source = "testsrc2=size=320x180:rate=25,noise=alls=20:allf=t";
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-loglevel", "error", "-f", "lavfi"]);
        ffmpeg.args(["-i", source, "-t", VIDEO_SECONDS, "-c:v", "mpeg2video"]);
        ffmpeg.args(["-q:v", "3", "-g", "25", "-f", "hls"]);
        ffmpeg.args(["-hls_time", SEGMENT_SECONDS, "-hls_list_size", "0"]);
        ffmpeg.arg("-hls_segment_filename");
        run(ffmpeg.arg(self.object("video/%d.ts")).arg(&playlist))?;
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-loglevel", "error", "-i"]);
        ffmpeg.arg(&playlist).args(["-c", "copy"]);
        run(ffmpeg.arg(self.video()))?;
        Ok(())
    }
}

/// Runs a program to its end, and returns the output.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let done = command.output();
    let done = done.with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{} failed: {said}",
        program.display()
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
