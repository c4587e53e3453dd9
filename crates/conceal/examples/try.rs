use conceal::{filesystem::Concealing, real::Real, store::Hidden};
use encapsulation::Encapsulation;
use fuser::{Config, MountOption, Session, SessionACL};
use std::{path::PathBuf, process::Command, sync::Arc, time::Instant};
fn main() {
    let mut args = std::env::args().skip(1);
    let tree: PathBuf = args.next().unwrap().into();
    let tree = tree.canonicalize().unwrap();
    let threads: usize = std::env::var("THREADS").map_or(1, |t| t.parse().unwrap());
    let command: Vec<String> = args.collect();
    let real = Arc::new(Real::open(&tree).unwrap());
    let hidden = Arc::new(Hidden::new(Arc::clone(&real)));
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS).unwrap() };
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .unwrap();
    let e = Encapsulation::new(Arc::clone(&real) as _, Arc::clone(&hidden) as _);
    let fs = Concealing::new(e, real, hidden);
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::FSName("outlive".into()),
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    let t = Instant::now();
    let session = Session::new(fs.clone(), &tree, &config).unwrap();
    let session = session.spawn().unwrap();
    eprintln!("mount {:?}", t.elapsed());
    let t = Instant::now();
    let status = Command::new(&command[0])
        .args(&command[1..])
        .current_dir(&tree)
        .status()
        .unwrap();
    eprintln!("command {:?} {status}", t.elapsed());
    let t = Instant::now();
    if std::env::var("MANDATE").is_ok() {
        eprintln!("mandate {:?}", fs.mandate());
        eprintln!("mandate took {:?}", t.elapsed());
    }
    let t = Instant::now();
    session.umount_and_join().unwrap();
    eprintln!("umount {:?}", t.elapsed());
}
