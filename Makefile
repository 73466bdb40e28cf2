# The whole life of a checkout. `make help` lists the targets. Everything is built in cargo's release profile, so that
# demo, test, check and bench share one compiled RocksDB.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export CARGO_TARGET_DIR ?= $(CURDIR)/target

CARGO := scripts/progress.sh cargo
ECOTONE := $(CARGO_TARGET_DIR)/release/ecotone

# A test that hangs ends the run here, with all its processes (on a terminal Ctrl-C must reach them, so there it ends
# cargo alone). The clock starts after the build.
TEST_MINUTES ?= 60
# Tests of one program that run at once; scripts/test-times.sh must know it. More would need more file descriptors than
# a process has by default.
export RUST_TEST_THREADS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? cores : 8)))
# How long `make soak` gives each seeded test, and the seed that all begin with: chosen anew, unless it is given.
SOAK_MINUTES ?= 5
# Seeds of each of the simulator's worlds in a soak: six of the control plane (100,000 in all, within an hour), a dozen of
# replication (minutes each).
SIM_SEEDS ?= 17000
SEED := $(or $(SEED),$(shell od -A n -N 4 -t u4 /dev/urandom | tr -d ' '))
# What has seeded tests, and those of proptest.
SEEDED := --lib $(addprefix --test ,clients_kills commands compaction control copies_power damage differential \
	federation_faults follows histories kills power protocol replication space store whole)
# Arguments of the demo: the papers' experiment, made short.
DEMO_SECONDS ?= 45
DEMO_ARGS ?= fillrandom --profile three-tier --policies local,local-split,edgepilot,eco --seconds $(DEMO_SECONDS) --papers

# The lab makes cgroups. sudo passes no variables on, but for those that are named.
IS_ROOT := $(shell [ "$$(id -u)" -ne 0 ] || echo yes)
PASSED := $(foreach name,CARGO_TARGET_DIR ECOTONE_BENCH_DIR ECOTONE_BENCH_VALUES TMPDIR,$(if $($(name)),$(name)='$($(name))'))
AS_ROOT := $(if $(IS_ROOT),,sudo env $(PASSED))

# The measurements of `make bench`, by a shell pattern of their names.
ONLY ?= *

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: ## Three unequal servers under a flood of writes, a client's session with a kill, and a federation that loses a server under load (about 3 minutes after the build)
	@scripts/ask-root.sh demo $(MAKE) build
	$(AS_ROOT) $(ECOTONE) lab $(DEMO_ARGS)
	@$(if $(IS_ROOT),,find . -maxdepth 1 -name 'lab-*.html' -user root -exec sudo chown "$$(id -u):$$(id -g)" {} +)
	scripts/session.sh $(ECOTONE)
	scripts/federation.sh $(ECOTONE)

.PHONY: test
test: setup ## Run all tests, and list those that took longer than 20 s
	$(CARGO) test --release --workspace --no-run
	timeout $$(test -t 0 && echo --foreground) --kill-after=30s $(TEST_MINUTES)m \
		cargo test --release --workspace --no-fail-fast 2>&1 | scripts/test-times.sh

.PHONY: soak
soak: setup ## Seeded tests for long, with a fresh seed (hours; SEED=... repeats a run, SOAK_MINUTES=5 for each test)
	$(CARGO) test --release --workspace --no-run
	@echo "make soak SEED=$(SEED) SOAK_MINUTES=$(SOAK_MINUTES)"
	ECOTONE_SEED=$(SEED) PROPTEST_RNG_SEED=$(SEED) ECOTONE_SOAK_SECONDS=$$(($(SOAK_MINUTES) * 60)) \
		ECOTONE_SIM_SEEDS=$(SIM_SEEDS) \
		cargo test --release --workspace --no-fail-fast $(SEEDED) 2>&1 | scripts/test-times.sh

.PHONY: check
check: tools ## Formatting, licences, dependency arrows, lints, fuzz targets; writes nothing into the checkout
	cargo fmt --all --check
	scripts/deny.sh
	$(CARGO) clippy --release --workspace --all-targets --locked -- -D warnings
	$(CARGO) check --release --locked --manifest-path crates/resp/fuzz/Cargo.toml
	$(CARGO) check --release --locked --manifest-path crates/valuelog/fuzz/Cargo.toml
	$(CARGO) test --release --workspace --locked --test architecture

.PHONY: fix
fix: tools ## Let rustfmt and clippy mend what they can
	cargo fmt --all
	$(CARGO) clippy --release --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

.PHONY: bench
bench: ## Measure what the docs state (about nine hours; ONLY='separated-*', or another pattern of names in scripts/bench.sh, for a part)
	@scripts/ask-root.sh bench $(MAKE) build
	$(AS_ROOT) scripts/bench.sh $(ECOTONE) '$(ONLY)'

.PHONY: sanitize
sanitize: tools ## Test the C++ under AddressSanitizer and UBSan
	ECOTONE_SANITIZE=1 $(CARGO) test --release -p ecotone-io -p ecotone-rocks

.PHONY: build
build: tools ## Build everything; the first build compiles RocksDB (minutes, once for all checkouts)
	$(CARGO) build --release --workspace

.PHONY: setup
setup: ## Install the system packages that are missing for building, demo and tests, if any are
	@scripts/setup.sh tests

# Without those that only tests need.
.PHONY: tools
tools:
	@scripts/setup.sh
