//! The projects: foreign programs of different shapes.

use harness::archive::Archive;

/// A project with a makefile, and the files for the edits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Project {
    pub(super) name: &'static str,
    pub(super) archive: Archive,
    /// Shell commands that make the makefile, not measured.
    pub(super) prepare: &'static str,
    /// The directory of the makefile in the source.
    pub(super) directory: &'static str,
    /// The usual arguments of make.
    pub(super) arguments: &'static [&'static str],
    /// A source file, from `directory`.
    pub(super) source: &'static str,
    /// A header that many files include.
    pub(super) header: &'static str,
    /// Arguments that install the project into the directory `stage`.
    pub(super) install: &'static [&'static str],
}

/// Source of redis, which also has the tests of `make redis-suite`.
pub const REDIS: Archive = Archive {
    package: "redis",
    file: "redis_7.0.15.orig.tar.gz",
    directory: "redis-7.0.15",
    sha256: "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982",
};

pub(super) const PROJECTS: [Project; 10] = [
    // A single flat makefile.
    Project {
        name: "bzip2",
        archive: Archive {
            package: "bzip2",
            file: "bzip2_1.0.8.orig.tar.gz",
            directory: "bzip2-1.0.8",
            sha256: "ab5a03176ee106d3f0fa90e381da478ddae405918153cca248e682cd0c4a2269",
        },
        prepare: "true",
        directory: ".",
        arguments: &["libbz2.a", "bzip2", "bzip2recover"],
        source: "huffman.c",
        header: "bzlib_private.h",
        install: &["install", "PREFIX=stage"],
    },
    // Makefiles that call each other.
    Project {
        name: "lua",
        archive: Archive {
            package: "lua5.4",
            file: "lua5.4_5.4.4.orig.tar.gz",
            directory: "lua-5.4.4",
            sha256: "164c7849653b80ae67bec4b7473b884bf5cc8d2dca05653475ec2ed27b9ebf61",
        },
        prepare: "true",
        directory: ".",
        arguments: &["linux"],
        source: "src/lstrlib.c",
        header: "src/lobject.h",
        install: &["install", "INSTALL_TOP=../stage"],
    },
    // A configure script that is not from autoconf.
    Project {
        name: "zlib",
        archive: Archive {
            package: "zlib",
            file: "zlib_1.2.13.dfsg.orig.tar.bz2",
            directory: "zlib-1.2.13.dfsg",
            sha256: "71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1",
        },
        prepare: "./configure --prefix=/usr >/dev/null",
        directory: ".",
        arguments: &[],
        source: "inftrees.c",
        header: "zutil.h",
        install: &["install", "DESTDIR=stage"],
    },
    // Recursive, with shared rules.
    Project {
        name: "lz4",
        archive: Archive {
            package: "lz4",
            file: "lz4_1.9.4.orig.tar.gz",
            directory: "lz4-1.9.4",
            sha256: "0b0e3aa07c8c063ddf40b082bdf7e37a1562bda40a0ff5272957f3e987e0e54b",
        },
        prepare: "true",
        directory: ".",
        arguments: &[],
        source: "programs/bench.c",
        header: "lib/lz4.h",
        install: &["install", "PREFIX=/usr", "DESTDIR=stage"],
    },
    // autoconf alone.
    Project {
        name: "less",
        archive: Archive {
            package: "less",
            file: "less_590.orig.tar.gz",
            directory: "less-590",
            sha256: "6aadf54be8bf57d0e2999a3c5d67b1de63808bb90deb8f77b028eafae3a08e10",
        },
        prepare: "chmod +x configure; ./configure --prefix=/usr >/dev/null",
        directory: ".",
        arguments: &["less", "lesskey", "lessecho"],
        source: "search.c",
        header: "less.h",
        install: &["less"],
    },
    // automake and libtool.
    Project {
        name: "jq",
        archive: Archive {
            package: "jq",
            file: "jq_1.6.orig.tar.gz",
            directory: "jq-jq-1.6",
            sha256: "3ba940b97571c866923f0409678033d33b5a98758dfc174fad8397ed908bc4d9",
        },
        prepare: "autoreconf -fi >/dev/null 2>&1 && ./configure --prefix=/usr --disable-docs --disable-valgrind >/dev/null 2>&1",
        directory: ".",
        arguments: &[],
        source: "src/jv_print.c",
        header: "src/jv.h",
        install: &["install", "DESTDIR=$(CURDIR)/stage"],
    },
    // automake, many small files.
    Project {
        name: "tmux",
        archive: Archive {
            package: "tmux",
            file: "tmux_3.3a.orig.tar.gz",
            directory: "tmux-3.3a",
            sha256: "e4fd347843bd0772c4f48d6dde625b0b109b7a380ff15db21e97c11a4dcdf93f",
        },
        prepare: "(test -x configure || sh autogen.sh) >/dev/null 2>&1 && ./configure --prefix=/usr >/dev/null 2>&1",
        directory: ".",
        arguments: &[],
        source: "layout.c",
        header: "tmux.h",
        install: &["install", "DESTDIR=$(CURDIR)/stage"],
    },
    // Recursive, with a makefile that a script has to be asked for.
    Project {
        name: "redis",
        archive: REDIS,
        prepare: "true",
        directory: ".",
        arguments: &["MALLOC=libc", "BUILD_TLS=no"],
        source: "src/t_set.c",
        header: "src/server.h",
        install: &["install", "MALLOC=libc", "PREFIX=$(CURDIR)/stage"],
    },
    // A huge source, assembled by tools that are built first.
    Project {
        name: "sqlite",
        archive: Archive {
            package: "sqlite3",
            file: "sqlite3_3.40.1.orig.tar.xz",
            directory: "sqlite3-3.40.1",
            sha256: "aaa776260ab4dc976db34aa7891819484c8676b5b2783123ebc6301e2ca5d655",
        },
        prepare: "chmod +x configure; ./configure --disable-tcl --prefix=/usr >/dev/null 2>&1",
        directory: ".",
        arguments: &["sqlite3"],
        source: "src/func.c",
        header: "src/sqliteInt.h",
        install: &["sqlite3"],
    },
    // Large, with headers that scripts make of other files.
    Project {
        name: "git",
        archive: Archive {
            package: "git",
            file: "git_2.39.5.orig.tar.xz",
            directory: "git-2.39.5",
            sha256: "c58da92c378df4a986ca33266897a7397e86c22ee266a284d8c2432c39066b59",
        },
        prepare: "true",
        directory: ".",
        arguments: &[
            "NO_GETTEXT=1",
            "NO_TCLTK=1",
            "NO_PYTHON=1",
            "NO_CURL=1",
            "NO_EXPAT=1",
        ],
        source: "strbuf.c",
        header: "grep.h",
        install: &[
            "install",
            "NO_GETTEXT=1",
            "NO_TCLTK=1",
            "NO_PYTHON=1",
            "NO_CURL=1",
            "NO_EXPAT=1",
            "prefix=/usr",
            "DESTDIR=stage",
        ],
    },
];
