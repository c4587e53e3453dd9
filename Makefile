# make demo   clients that do not notice that their servers are killed again and again
# make test   every check that CI runs
# make soak   some of them for longer: hundreds of deaths of a logger, many random histories
# make bench  what the protection costs
# make paper  the experiments of the FT-TCP paper, repeated
# make simulate  the simulation of the optimistic make paper, repeated
# make redis-suite  redis' own tests against a redis that is killed again and again
# make kernels  the data plane on Debian's kernels, in qemu
# make setup  the packages that these need (they call it themselves)
# make criu   CRIU for checkpoints, where the system's is missing or too old (make test calls it itself)
# make builds  programs of others, built by make and by outlive make through a history of edits, and compared
# make newer-make  the tests of outlive make with GNU make 4.4, which Debian 12 does not have
# make rivals  what the bench compares outlive make with: tup and watchexec
#
# All but build, simulate, lint and clean need root: they make network namespaces and load BPF programs.

# Where rustup and Debian put programs, for shells that do not look there.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

CARGO ?= cargo
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

# Arguments for the demo and the bench: make demo ARGS='--seed 7 --kills 20'
ARGS ?=
# End-to-end tests at a time. They measure pauses and use both cores of a small machine.
E2E_THREADS ?= 1

XTASK = $(CARGO_TARGET_DIR)/release/xtask
# Tests that run outlive find it here. The profile is that of the tests, so that they share
# all that was compiled: half of a release build's time.
TESTED = $(abspath $(CARGO_TARGET_DIR))/debug/outlive
TIMES = $(CARGO_TARGET_DIR)/times

# $(call timed,NAME,COMMAND) runs a step of the tests and notes how long it took.
define timed
@echo "==> $(1)"
@start=$$(date +%s); $(2) && \
	printf '%5d s  %s\n' $$(($$(date +%s) - start)) '$(1)' >>$(TIMES)
endef

CRIU_DIR = $(abspath $(CARGO_TARGET_DIR))/criu

NEWER_MAKE_DIR = $(abspath $(CARGO_TARGET_DIR))/newer-make

.PHONY: all setup criu rivals build demo bench paper simulate kernels redis-suite builds lint test newer-make soak clean
all: build

setup:
	@packaging/setup.sh

criu:
	@packaging/criu.sh $(CRIU_DIR)

build: setup
	$(CARGO) build --release --package outlive --package xtask

demo: build
	@$(XTASK) demo $(ARGS)

bench: build criu rivals
	@packaging/builds.sh
	@$(XTASK) bench $(ARGS)

# What others have that `outlive make` is compared with.
rivals: setup
	@packaging/rivals.sh $(abspath $(CARGO_TARGET_DIR))/rivals

builds: build
	@packaging/builds.sh
	@$(XTASK) builds $(ARGS)

paper: build
	@$(XTASK) paper $(ARGS)

simulate: build
	@$(XTASK) simulate $(ARGS)

redis-suite: build
	@$(XTASK) redis-suite $(ARGS)

kernels: build
	@$(XTASK) kernels $(ARGS)

lint: setup
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

test: setup
	@mkdir -p $(CARGO_TARGET_DIR) && rm -f $(TIMES)
	$(call timed,CRIU,packaging/criu.sh $(CRIU_DIR))
	$(call timed,format,$(CARGO) fmt --check)
	$(call timed,clippy,$(CARGO) clippy --workspace --all-targets -- -D warnings)
	$(call timed,documentation,RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps)
	$(call timed,build for the tests,$(CARGO) build --profile test --workspace --bins)
	$(call timed,tests of the crates,OUTLIVE_BIN=$(TESTED) $(CARGO) test --workspace --exclude e2e)
	$(call timed,end-to-end tests,OUTLIVE_BIN=$(TESTED) $(CARGO) test --package e2e -- --test-threads=$(E2E_THREADS))
	$(call timed,the same with a logger on another machine,OUTLIVE_BIN=$(TESTED) OUTLIVE_E2E_LINK=1 $(CARGO) test --package e2e --test kill_matrix --test recovery --test network -- --test-threads=$(E2E_THREADS))
	@echo "==> all checks passed" && cat $(TIMES)

newer-make: setup
	@packaging/newer-make.sh $(NEWER_MAKE_DIR)
	$(CARGO) build --profile test --package outlive
	PATH=$(NEWER_MAKE_DIR):$$PATH OUTLIVE_BIN=$(TESTED) $(CARGO) test --package e2e --test encapsulating --test 'making*' -- --test-threads=$(E2E_THREADS)

# Deaths of the logger in each of two tests; schedules of the simulator; histories for the programs;
# how long a download goes from host to host; moments at which something is saved and asked for.
SOAK = OUTLIVE_KILLS=300 OUTLIVE_SIM_RUNS=20000 OUTLIVE_FUZZ_CASES=2000 OUTLIVE_STREAM_SECONDS=300 \
       OUTLIVE_PHASES=alone OUTLIVE_TIMINGS=1000

soak: setup
	$(CARGO) build --profile test --package outlive --package e2e --bins
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --package e2e --test logger again_and_again -- --nocapture
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --package e2e --test takeover -- --test-threads=1 --nocapture matrix:: long_download
	$(SOAK) OUTLIVE_BIN=$(TESTED) $(CARGO) test --package e2e --test making at_any_time -- --test-threads=1
	$(SOAK) $(CARGO) test --package outlive --test logger kill_9 -- --nocapture
	$(SOAK) $(CARGO) test --package sim --test schedules
	$(SOAK) $(CARGO) test --package dataplane --test it fuzz -- --nocapture

clean:
	$(CARGO) clean
	rm -f $(TIMES)
