# make demo         clients that do not notice that their servers are killed again and again
# make test         every check that CI runs, with a drawn share of the long matrices: 20 minutes on two cores
# make test-all     every check there is, whole: an hour
# make test-loaded  the end-to-end tests beside four busy processes; ARGS='--runs 3' repeats that
# make lint         format, clippy and tidy only; ARGS=--update lowers the limits of tidy
# make msrv         whether the oldest Rust that is supported compiles all
# make deny         licences, advisories and sources of the dependencies
# make fuzz         the parsers of outside bytes, a minute each; SECONDS=600 for longer
# make soak         some tests for longer: hundreds of deaths of a logger, many random histories
# make bench        what the protection costs
# make paper        the experiments of the FT-TCP paper, repeated; ARGS=--objects, --blast: of the papers on objects and bulk data
# make simulate     the simulation of the optimistic make paper, repeated (ARGS=--blast: of the bulk transfer paper)
# make redis-suite  redis' own tests against a redis that is killed again and again
# make kernels      the data plane on Debian's kernels, in qemu
# make setup        the packages that all of these need; each of them installs its own by itself
# make criu         CRIU for checkpoints, where the system's is missing or too old (make test calls it itself)
# make builds       programs of others, built by make and by outlive make through a history of edits, and compared
# make newer-make   the tests of outlive make with GNU make 4.4, which Debian 12 does not have
# make rivals       what the bench compares outlive make with: tup and watchexec
#
# All but build, simulate, lint, msrv, deny, fuzz and clean need root: they make network namespaces and load BPF programs.

# Where rustup and Debian put programs, for shells that do not look there.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

CARGO ?= cargo
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

# Arguments for the program behind a target: make demo ARGS='--seed 7 --kills 20'
ARGS ?=
# How long each target is fuzzed for.
SECONDS ?= 60

# The programs of tools/, built.
TOOLS = $(CARGO_TARGET_DIR)/release
# Tests that run outlive find it here. The profile is that of the tests, so that they share
# all that was compiled: half of a release build's time.
TESTED = $(abspath $(CARGO_TARGET_DIR))/debug/outlive
# The program that runs the checks, with the profile of the tests, too.
CHECKS = $(CARGO_TARGET_DIR)/debug/checks

CRIU_DIR = $(abspath $(CARGO_TARGET_DIR))/criu

NEWER_MAKE_DIR = $(abspath $(CARGO_TARGET_DIR))/newer-make

.PHONY: all setup criu rivals build demo bench paper simulate kernels redis-suite builds lint test test-all \
        test-loaded checks msrv deny fuzz newer-make soak clean
all: build

setup:
	@packaging/setup.sh build demo test bench paper redis-suite kernels builds msrv deny fuzz criu newer-make rivals

# $(call set,NAME): the packages of one purpose.
set = @packaging/setup.sh $(1)

criu:
	@packaging/criu.sh $(CRIU_DIR)

# Where the tools and the lab take part in what is measured.
ifneq ($(filter bench builds paper kernels,$(MAKECMDGOALS)),)
FULL_SPEED = $(foreach package,bench builds experiments harness kernels lab,--config 'profile.release.package.$(package).opt-level=3')
endif

# All that a make of this kind may run: with one list, no target builds again what another one built.
BUILT = outlive bench builds demo experiments harness kernels

build:
	$(call set,build)
	$(CARGO) build --locked --release $(BUILT:%=--package %) $(FULL_SPEED)
	@packaging/symbols.sh $(CARGO_TARGET_DIR)/release/outlive

demo: build
	$(call set,demo)
	@$(TOOLS)/demo $(ARGS)

bench: build criu rivals
	$(call set,bench)
	@$(TOOLS)/bench $(ARGS)

# What others have that `outlive make` is compared with.
rivals:
	@packaging/rivals.sh $(abspath $(CARGO_TARGET_DIR))/rivals

builds: build
	$(call set,builds)
	@$(TOOLS)/builds $(ARGS)

paper: build
	$(call set,paper)
	@$(TOOLS)/experiments paper $(ARGS)

simulate: build
	@$(TOOLS)/experiments simulate $(ARGS)

redis-suite: build
	$(call set,redis-suite)
	@$(TOOLS)/experiments redis-suite $(ARGS)

kernels: build
	$(call set,kernels)
	@$(TOOLS)/kernels $(ARGS)

lint:
	$(call set,build)
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets --profile test -- -D warnings
	$(CARGO) run --quiet --locked --profile test --package tidy -- $(ARGS)

checks:
	$(call set,test)
	@$(CARGO) build --quiet --locked --profile test --package checks

test: checks
	@$(CHECKS) test $(ARGS)

test-all: checks
	$(call set,deny fuzz)
	@$(CHECKS) all $(ARGS)

test-loaded: checks
	@$(CHECKS) loaded $(ARGS)

msrv:
	@packaging/msrv.sh

deny:
	@packaging/deny.sh

fuzz:
	$(call set,fuzz)
	@packaging/fuzz.sh $(SECONDS)

newer-make:
	$(call set,test)
	@packaging/newer-make.sh $(NEWER_MAKE_DIR)
	$(CARGO) build --locked --profile test --package outlive
	PATH=$(NEWER_MAKE_DIR):$$PATH OUTLIVE_BIN=$(TESTED) $(CARGO) test --locked --package e2e --test 'speculation*' --test 'make*' -- --test-threads=1

# Deaths of the logger in each of two tests; schedules of the simulator; histories for the programs;
# how long a download goes from host to host; moments at which something is saved and asked for.
SOAK = OUTLIVE_KILLS=300 OUTLIVE_SIM_RUNS=20000 OUTLIVE_FUZZ_CASES=2000 OUTLIVE_STREAM_SECONDS=300 \
       OUTLIVE_PHASES=alone OUTLIVE_TIMINGS=1000

soak:
	$(call set,test)
	$(CARGO) build --locked --profile test --package outlive --package e2e --bins
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --locked --package e2e --test logger again_and_again -- --nocapture
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --locked --package e2e --test takeover -- --test-threads=1 --nocapture matrix:: long_download
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --locked --package e2e --test make at_any_time -- --test-threads=1
	$(SOAK) $(CARGO) test --locked --package outlive --test logger kill_9 -- --nocapture
	$(SOAK) $(CARGO) test --locked --package sim --test schedules
	$(SOAK) $(CARGO) test --locked --package dataplane --test it fuzz -- --nocapture

clean:
	$(CARGO) clean
