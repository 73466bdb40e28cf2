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
TEST_MINUTES ?= 30
# Arguments of the demo: the papers' experiment, made short.
DEMO_SECONDS ?= 45
DEMO_ARGS ?= fillrandom --profile three-tier --policies local,local-split,edgepilot,eco --seconds $(DEMO_SECONDS) --papers

# The lab makes cgroups.
AS_ROOT := $(shell [ "$$(id -u)" -eq 0 ] || echo sudo env CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)")

# The measurements of `make bench`, by a shell pattern of their names.
ONLY ?= *

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: root build ## Three unequal servers under a flood of writes, then a client's session with a kill (about 3 minutes after the build)
	$(AS_ROOT) $(ECOTONE) lab $(DEMO_ARGS)
	scripts/session.sh $(ECOTONE)

# Asked before the build, so that nobody waits for it in vain.
.PHONY: root
root:
	@if [ "$$(id -u)" -ne 0 ]; then \
	  if ! command -v sudo >/dev/null; then \
	    echo 'demo: unequal cores are made with cgroups, which takes root, and there is no sudo; run make demo as root' >&2; exit 1; \
	  fi; \
	  echo 'demo: unequal cores are made with cgroups, which takes root; sudo may ask for your password' >&2; \
	  sudo -v; \
	fi

.PHONY: test
test: setup ## Run all tests
	$(CARGO) test --release --workspace --no-run
	timeout $$(test -t 0 && echo --foreground) --kill-after=30s $(TEST_MINUTES)m cargo test --release --workspace

.PHONY: check
check: tools ## Formatting, licences, dependency arrows, lints; writes nothing into the checkout
	cargo fmt --all --check
	scripts/deny.sh
	$(CARGO) clippy --release --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --release --workspace --locked --test architecture

.PHONY: fix
fix: tools ## Let rustfmt and clippy mend what they can
	cargo fmt --all
	$(CARGO) clippy --release --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

.PHONY: bench
bench: root build ## Measure what the docs state (about three hours; ONLY='store-*' or ONLY='lab-*' for a part)
	$(AS_ROOT) scripts/bench.sh $(ECOTONE) '$(ONLY)'

.PHONY: sanitize
sanitize: tools ## Test the C++ shim under AddressSanitizer and UBSan
	ECOTONE_SANITIZE=1 $(CARGO) test --release -p ecotone-rocks-sys

.PHONY: build
build: tools ## Build everything; the first build compiles RocksDB (about 19 minutes on two cores)
	$(CARGO) build --release --workspace

.PHONY: setup
setup: ## Install the system packages that are missing for building, demo and tests, if any are
	@scripts/setup.sh tests

# Without those that only tests need.
.PHONY: tools
tools:
	@scripts/setup.sh
