//! `outlive make` beside `make`: open descriptors of commands. Needs Python.

mod ab_builds;

use ab_builds::AbBuilds;

/// Runs `ab_builds/calls.py`, with files in that place. The script waits when opening a file that is not concealed. An
/// effect precedes the wait: the command continues after the request.
fn after_a_wait(place: &str) {
    let makefile = format!(
        "beside := $(CURDIR)-beside\nout: in\n\t@touch begun; /usr/bin/python3 calls.py {place} $(beside)-gate\n\tcp in out\n"
    );
    let mut builds = AbBuilds::new(&[
        ("Makefile", &makefile),
        ("calls.py", include_str!("ab_builds/calls.py")),
        ("in", "text\n"),
    ]);
    builds.watch(&[]);
    for number in 0..2 {
        builds.await_waiting_command();
        let said = builds.make(&[]);
        assert!(said.contains("went on with the rest"), "{said}");
        builds.save("in", &format!("text {number}\n"));
    }
}

#[test]
fn inherited_descriptors_are_open_as_under_make() {
    after_a_wait("$(beside)");
}

#[test]
fn early_descriptors_stay_as_under_make() {
    after_a_wait("files");
}

/// A shell's long here-document is a file without a name by then.
#[test]
fn unlinked_files_are_reopened() {
    let script = "\
        exec 5>f; echo text >&5; exec 6<f; rm f; cat /dev/fd/6; echo more >/dev/fd/5; cat /proc/self/fd/6\n\
        mkdir d; cd d; rmdir ../d; ls -a; ls -a .; cd ..\n\
        long=$(head -c 100000 /dev/zero | tr '\\0' x)\n\
        wc -c /dev/stdin <<end\n$long\nend\n";
    let makefile = "all: in\n\t@bash script; echo $$?\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("script", script), ("in", "")]);
    builds.watch(&[]);
    builds.await_speculation();
    let said = builds.make(&[]);
    assert!(said.contains("revealed"), "{said}");
}
