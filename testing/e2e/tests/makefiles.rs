//! Makefiles of every shape: expected targets, other targets, and edits.

mod ab_builds;

use std::{fs, path::Path, process::Command};

use ab_builds::{AbBuilds, tree_contents};

/// A project, the usual request, the edits, and further requests.
struct Shape<'a> {
    files: &'a [(&'a str, &'a str)],
    usual: &'a [&'a str],
    edits: &'a [(&'a str, &'a str)],
    more: &'a [&'a [&'a str]],
}

impl Shape<'_> {
    /// Each edit twice: asked for when all is done, and at once.
    fn go_through(&self) {
        let mut builds = AbBuilds::new(self.files);
        builds.watch(self.usual);
        builds.await_speculation();
        let said = builds.make(self.usual);
        assert!(said.contains("revealed"), "{said}");
        for (name, text) in self.edits {
            builds.save(name, text);
            builds.await_speculation();
            let said = builds.make(self.usual);
            assert!(said.contains("revealed"), "{name}: {said}");
            builds.save(name, &format!("{text}\n"));
            builds.make(self.usual);
        }
        for arguments in self.more {
            builds.make(arguments);
        }
    }
}

#[test]
fn recursive_makes() {
    Shape {
        files: &[
            (
                "Makefile",
                "MAKEFLAGS += --no-print-directory\nall: one two\n\t+@echo plus >plus\none two:\n\t$(MAKE) -C $@ out\nclean:\n\tfor d in one two; do $(MAKE) -C $$d clean || exit 1; done\n.PHONY: all one two clean\n",
            ),
            ("one/Makefile", "out: in ../common\n\tcat in ../common >$@\nclean:\n\trm -f out\n"),
            ("two/Makefile", "include ../rules\n"),
            ("rules", "out: in\n\tsort in >$@\nclean:\n\trm -f out\n"),
            ("one/in", "1"),
            ("two/in", "b\na\n"),
            ("common", "all"),
        ],
        usual: &[],
        edits: &[("common", "others"), ("two/in", "d\nc\n"), ("rules", "out: in\n\tsort -r in >$@\nclean:\n\trm -f out\n")],
        more: &[&["clean"], &["-n"], &["one"], &["-B"], &["clean", "all"]],
    }
    .go_through();
}

#[test]
fn generated_makefiles() {
    Shape {
        files: &[
            (
                "Makefile",
                "all: out\ninclude parts.mk\nparts.mk: list\n\tsed 's/^/out: /' list >$@\nout:\n\tcat $^ >$@\n%.part: %.in\n\ttr a-z A-Z <$< >$@\n",
            ),
            ("list", "a.part b.part\n"),
            ("a.in", "a"),
            ("b.in", "b"),
            ("c.in", "c"),
        ],
        usual: &[],
        edits: &[("list", "c.part a.part"), ("b.in", "bb"), ("a.in", "aa")],
        more: &[&["-B"], &["b.part"]],
    }
    .go_through();
}

/// New names and the output of a shell change the targets.
#[test]
fn makefiles_with_wildcards_and_shell() {
    Shape {
        files: &[
            (
                "Makefile",
                "SOURCES := $(sort $(wildcard *.in))\nVERSION != cat version\nout: $(SOURCES) version\n\tcat $(SOURCES) >$@\n\techo $(VERSION) $(shell ls | wc -l) >>$@\n-include local.mk\n",
            ),
            ("version", "1"),
            ("a.in", "a\n"),
        ],
        usual: &[],
        edits: &[("b.in", "b\n"), ("version", "2"), ("local.mk", "SOURCES += version\n"), ("c.in", "c\n")],
        more: &[&["-B"], &["VERSION=3", "-B"]],
    }
    .go_through();
}

#[test]
fn builds_with_keep_going() {
    Shape {
        files: &[
            (
                "Makefile",
                ".DELETE_ON_ERROR:\nall: a b c d\na c:\n\techo $@ >$@\nb: in\n\techo half >$@; grep good in\nd: b\n\tcp b d\nignored:\n\t-false\n\techo $@\n",
            ),
            ("in", "bad"),
        ],
        usual: &["-k"],
        edits: &[("in", "good"), ("in", "worse")],
        more: &[&[], &["ignored"], &["-k", "-B"], &["-i"], &["-t"]],
    }
    .go_through();
}

#[test]
fn out_of_tree_builds() {
    Shape {
        files: &[
            (
                "build/Makefile",
                "VPATH = ../src\nall: obj/one obj/two\nobj/%: %.in | obj\n\tcp $< $@\nobj:\n\tmkdir $@\nclean:\n\trm -r obj\n",
            ),
            ("src/one.in", "1"),
            ("src/two.in", "2"),
        ],
        usual: &["--no-print-directory", "-C", "build"],
        edits: &[("src/one.in", "one"), ("build/one.in", "nearer")],
        more: &[&["--no-print-directory", "-C", "build", "clean"], &["-s", "-C", "build", "-B"]],
    }
    .go_through();
}

/// In any order, without output.
#[test]
fn parallel_targets() {
    Shape {
        files: &[
            (
                "Makefile",
                "all: $(addprefix out,1 2 3 4 5 6 7 8) sub\nout%: in\n\t@sleep 0.02; cat in >$@\nsub:\n\t@$(MAKE) -s --no-print-directory -f rest.make\n.PHONY: sub\n",
            ),
            ("rest.make", "all: $(addprefix sub,1 2 3 4)\nsub%: in\n\t@cat in in >$@\n"),
            ("in", "1"),
        ],
        usual: &["-j4"],
        edits: &[("in", "2"), ("rest.make", "all: sub1\nsub%: in\n\t@cat in >$@\n")],
        more: &[&["-j2", "-B"], &["-j"], &[]],
    }
    .go_through();
}

#[test]
fn rules_of_every_kind() {
    Shape {
        files: &[
            (
                "Makefile",
                ".SECONDEXPANSION:\n.ONESHELL:\nall: a.two both lib.a(x.o) $$(addsuffix .two,b)\n%.two: %.one\n\tx=$$(cat $<)\n\techo $$x $$x >$@\n%.one: %.in\n\tcp $< $@\nboth: one.txt two.txt\n\tcat $^ >$@\n%.txt: %.src\n\tcp $< $@\ndouble:: in1\n\t@echo first >>$@\ndouble:: in2\n\t@echo second >>$@\nx.c: a.in\n\techo 'int x;' >$@\n",
            ),
            ("a.in", "a"),
            ("b.in", "b"),
            ("in1", ""),
            ("in2", ""),
            ("one.src", "1"),
            ("two.src", "2"),
        ],
        usual: &[],
        edits: &[("a.in", "aa"), ("two.src", "22")],
        more: &[&["double"], &["-B", "both"], &["-r", "-R", "both"], &["-q"]],
    }
    .go_through();
}

/// In a concealed directory of the tree, and beside the tree, where effects wait for the request.
#[test]
fn installed_files() {
    let makefile = "PREFIX = $(CURDIR)/stage\nprog: in\n\tcat in >$@\ninstall: prog\n\t@install -d $(PREFIX)/bin\n\t@install -m 755 prog $(PREFIX)/bin/prog\n\t@ln -sf prog $(PREFIX)/bin/other\nbeside:\n\t@$(MAKE) -s --no-print-directory install PREFIX=$(CURDIR).stage\n";
    let files = [("Makefile", makefile), ("in", "1")];
    Shape {
        files: &files,
        usual: &["install"],
        edits: &[("in", "2")],
        more: &[&["-B", "install"]],
    }
    .go_through();
    let mut builds = AbBuilds::new(&files);
    let stages = [&builds.ours, &builds.theirs].map(|tree| tree.with_extension("stage"));
    for stage in &stages {
        fs::create_dir(stage).expect("a directory");
    }
    builds.watch(&["beside"]);
    builds.await_waiting_command();
    assert!(tree_contents(&stages[0]).is_empty(), "something leaked");
    let said = builds.make(&["beside"]);
    assert!(said.contains("went on with the rest"), "{said}");
    assert_eq!(tree_contents(&stages[0]), tree_contents(&stages[1]));
    assert!(!tree_contents(&stages[0]).is_empty());
}

/// The cache is concealed as well, and serves later commands.
#[test]
fn ccache_stays_useful() {
    let makefile = "prog: a.o\n\tcc -o $@ $^\na.o: a.c\n\tccache cc -c -o $@ $<\n";
    let text = |number: u64| format!("int main(void) {{ return {number}; }}\n");
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("a.c", &text(7))]);
    // The directories exist before: a command that creates a cache directory would wait for the request.
    for tree in [&builds.ours, &builds.theirs] {
        fs::create_dir(tree.with_extension("cache")).expect("a directory");
    }
    let script = "export CCACHE_DIR=$PWD.cache; $M";
    builds.watch_in_shell(&format!("{script} --watch"));
    for number in [7, 8, 7, 8] {
        builds.save("a.c", &text(number));
        builds.await_speculation();
        let said = builds.shell(script);
        assert!(said.contains("revealed"), "{said}");
    }
    builds.shell(&format!("{script} -B"));
    let [ours, theirs] = [&builds.ours, &builds.theirs].map(|tree| found(tree));
    assert_eq!(ours, theirs);
    assert!(ours >= 3, "{ours}");
}

/// How often a compiler's output was found in the cache beside that tree.
fn found(tree: &Path) -> u64 {
    let mut ccache = Command::new("ccache");
    ccache.env("CCACHE_DIR", tree.with_extension("cache"));
    let told = ccache.arg("--print-stats").output().expect("ccache");
    let told = String::from_utf8(told.stdout).expect("text");
    let hits = told.lines().filter_map(|line| {
        let (what, count) = line.split_once('\t')?;
        let is_hit = ["direct_cache_hit", "preprocessed_cache_hit"].contains(&what);
        is_hit.then(|| count.parse::<u64>().expect("a number"))
    });
    hits.sum()
}

/// A repository in which something has changed.
fn repository_in(top: &Path) {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), "a");
            git.env(format!("GIT_{who}_EMAIL"), "a@b");
            git.env(format!("GIT_{who}_DATE"), "2026-01-01T00:00:00Z");
        }
        let done = git.args(arguments).current_dir(top).output().expect("git");
        assert!(done.status.success(), "{done:?}");
    };
    fs::write(top.join("README"), "text").expect("a file");
    git(&["init", "-q"]);
    git(&["add", "README"]);
    git(&["commit", "-q", "-m", "one"]);
    fs::write(top.join("README"), "other text").expect("a file");
}

/// A project outside a repository, within a repository, and with its own repository.
#[test]
fn makefiles_with_git_queries() {
    let makefile = "UP := $(shell git rev-parse --show-cdup)\nall: version\n\t@echo '$(UP)'\n\
        version: in\n\t-git rev-parse --is-inside-work-tree >$@\n\t-git describe --always --dirty >>$@\n";
    for is_in in ["none", "around", "own"] {
        let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "1")]);
        match is_in {
            "around" => repository_in(builds.directory.path()),
            "own" => [&builds.ours, &builds.theirs]
                .into_iter()
                .for_each(|tree| repository_in(tree)),
            _ => {}
        }
        builds.watch(&[]);
        for text in ["2", "3"] {
            builds.await_speculation();
            let ours = ab_builds::outlive()
                .arg("make")
                .current_dir(&builds.ours)
                .output();
            let theirs = ab_builds::make().current_dir(&builds.theirs).output();
            let said = builds.compare(&ours.expect("outlive make"), &theirs.expect("make"));
            assert!(said.contains("revealed"), "{is_in}: {said}");
            let version = |tree: &Path| fs::read_to_string(tree.join("version")).expect("a file");
            assert_eq!(version(&builds.ours), version(&builds.theirs), "{is_in}");
            assert_eq!(version(&builds.ours).contains("dirty"), is_in != "none");
            builds.save("in", text);
        }
    }
}

/// Variables in the order of make, and a removed directory.
#[test]
fn commands_get_environment_of_make() {
    let makefile = "all: in\n\t@env | grep -v -e ^GIT_DISCOVERY -e ^_= -e ours -e their\n\
        \tmkdir -p below; cp other below/Makefile\n\t-$(MAKE) --no-print-directory -C below\n\ttouch $@\n";
    let other = "all:\n\t-@./nothing-of-the-kind\n\t@rm -rf '$(CURDIR)'\n\t@/bin/echo gone\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("other", other), ("in", "1")]);
    let variables = "export Z=1 A=2 Q=3";
    builds.watch_in_shell(&format!("{variables}; $M --watch"));
    for text in ["2", "3"] {
        builds.await_speculation();
        let said = builds.shell(&format!("{variables}; $M"));
        assert!(said.contains("revealed"), "{said}");
        builds.save("in", text);
    }
    builds.shell(&format!("{variables}; $M"));
}
