# The recipes of the workshop; `make` alone lists them. Each installs what it needs when it is missing, or says in one
# line what to install. A Rust toolchain (rustup.rs) and a C compiler are taken for granted.

CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.2
FUZZ := tests/fuzz
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# What `restante serve` uses. The benches would double the time of a first build.
SERVER_FEATURES := waku,mail,sqlite,postgres,redis

.DEFAULT_GOAL := help
.PHONY: help run dist test test-servers test-programs test-cluster test-jmap test-embedded power-cuts kills sim data-folder mutants loom interop console check bench compare fuzz man install toolchain lints scripts deny fuzzer

help: ## List the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: toolchain ## Run the server; settings from restante.toml, data below ./data (ARGS="--rest-port 9000" adds flags)
	cargo run --profile quick --package restante --no-default-features --features $(SERVER_FEATURES) -- serve $(ARGS)

dist: toolchain ## Build the optimised binary that servers run (takes longer than what `make run` builds)
	cargo build --release --locked --package restante
	@echo "$(TARGET_DIR)/release/restante"

test: toolchain ## Run all tests, on the embedded engines, on one server of each other engine that is started for them, with foreign clients, and in a browser
	$(MAKE) --no-print-directory --jobs=2 test-servers test-programs
	$(TEST_FILES) $(TEST_JAVA) dev/services/with $(TEST_SERVICES) -- tests/run
	RESTANTE_BIN=$(TARGET_DIR)/debug/restante $(MAKE) --no-print-directory --jobs=2 --output-sync interop console
	@$(LOOM_SUM) | cmp -s - $(LOOM_PASSED) && echo "loom: these sources passed before; make loom runs them again" || $(MAKE) --no-print-directory loom

test-embedded: toolchain ## Run the tests that need no server; those of other engines are reported as ignored
	$(TEST_FILES) tests/run

test-cluster: toolchain ## Run the tests of faults and of several servers at length, on three Cassandra nodes too: more than an hour (MINUTES=1 CUTS=40 OPERATIONS=2000 for less)
	dev/services/up --install-only $(CLUSTER_SERVICES)
	cargo test $(CLUSTER_TESTS) --locked --no-run
	$(TEST_FILES) RESTANTE_FAULT_CUTS=$(or $(CUTS),400) RESTANTE_FAULT_SECONDS=$(CLUSTER_SECONDS) RESTANTE_SEVERAL_SECONDS=$(CLUSTER_SECONDS) \
	RESTANTE_FAULT_DEATHS=$(or $(CUTS),400) RESTANTE_TEST_OPERATIONS=$(or $(OPERATIONS),50000) \
	dev/services/with $(CLUSTER_SERVICES) -- cargo test $(CLUSTER_TESTS) --locked --no-fail-fast -- --nocapture

test-jmap: toolchain ## Run the tests of JMAP with records in PostgreSQL, then in Cassandra, blobs in S3, search in OpenSearch (RECORDS=cassandra for one)
	dev/services/up --install-only postgres cassandra s3 opensearch
	cargo test --package restante-jmap --lib --locked --no-run
	for records in $(or $(RECORDS),postgres cassandra); do \
	RESTANTE_TEST_RECORDS=$$records RESTANTE_TEST_BLOBS=s3 RESTANTE_TEST_SEARCH=opensearch $(TEST_JAVA) \
	dev/services/with $$records s3 opensearch -- cargo test --package restante-jmap --lib --locked || exit 1; done

power-cuts: toolchain ## Replay 1,000 power cuts in each test of them, some minutes (CUTS=100 for less)
	RESTANTE_POWER_CUTS=$(or $(CUTS),1000) cargo test --package restante-lmdb --package restante-records --package restante-blobs \
	--package restante-search --package restante-smtp --package restante-delivery --locked --test power_cut --test power_cut_submission \
	--test power_cut_quarantine --test power_cut_sending -- --nocapture
	RESTANTE_POWER_CUTS=$(or $(CUTS),1000) cargo test --package restante-backup --locked --lib power_cut -- --nocapture

kills: toolchain ## Kill a server that sends mail 200 times, at each stage of a mail's way (KILLS=40 for less)
	RESTANTE_KILLS=$(or $(KILLS),200) cargo test --package restante --locked --test e2e survives_kills_at_each_stage -- --nocapture

sim: toolchain ## Simulate submission, queue and senders from 10,000 seeds (SEEDS=1000 for less, SEED=17 for one that failed)
	SIM_SEEDS=$(or $(SEEDS),10000) $(if $(SEED),SIM_SEED=$(SEED)) cargo test --release --package restante-delivery --locked --test simulation -- --nocapture

data-folder: toolchain ## Write the data folder that every later version must open into crates/restante/tests/fixtures, before a release
	cargo test --package restante --locked --test e2e make_data_folder -- --ignored

mutants: toolchain ## Break the code in ways that once went unnoticed, and see that tests fail (MUTANTS="index_not_synced" for one)
	tests/mutants/run $(MUTANTS)

loom: toolchain ## Try every order in which readers and writers of the session table may meet (ALL=1 adds what takes minutes)
	cargo test --manifest-path tests/loom/Cargo.toml --target-dir $(TARGET_DIR)/loom --locked $(if $(ALL),-- --include-ignored)
	@$(LOOM_SUM) >$(LOOM_PASSED)

interop: toolchain ## Let js-waku, go-waku and clients of mail talk to the server (CLIENTS=js, go or mail for one of them)
	tests/interop/run $(CLIENTS)

console: toolchain ## Use the console page in headless Chromium; its pictures go to console/ in the target folder
	tests/console/run

check: toolchain lints scripts deny ## Formatting, lints (also of each door alone), licences and sources of dependencies, who imports whom, tidiness
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --package restante --no-default-features --features mail --locked -- -D warnings
	cargo clippy --package restante --no-default-features --features waku --locked -- -D warnings
	cargo deny --locked check bans licenses sources
	cargo test --package restante-tidy --locked

bench: toolchain ## Measure the optimised binary on this machine (BENCH=ingest, ARGS="--messages 100000" for less)
	cargo run --release --package restante -- bench $(or $(BENCH),history) $(ARGS)

compare: toolchain ## Compare with the mailserver's and nwaku's tables, and with other session tables (ARGS="--messages 150000" for less)
	RESTANTE_POSTGRES_SHARED_BUFFERS=2GB dev/services/with postgres -- cargo run --release \
	--manifest-path tests/compare/Cargo.toml --target-dir $(TARGET_DIR) -- $(ARGS)

fuzz: toolchain fuzzer ## Throw bytes at a parser: TARGET=name SECONDS=60; without TARGET the targets are listed
	$(if $(TARGET),@mkdir -p $(FUZZ)/target/corpus/$(TARGET))
	$(if $(TARGET),cargo fuzz run --fuzz-dir $(FUZZ) --sanitizer none $(TARGET) $(FUZZ)/target/corpus/$(TARGET) \
	$(FUZZ)/corpus/$(TARGET) -- -max_total_time=$(or $(SECONDS),60),cargo fuzz list --fuzz-dir $(FUZZ))

man: toolchain ## Write man pages to man/ in the target folder
	cargo run --quiet --package restante -- man --out $(TARGET_DIR)/man
	@echo "man -l $(TARGET_DIR)/man/restante.1"

install: toolchain ## Install the optimised binary into cargo's bin folder
	cargo install --path crates/restante --locked

# What the recipes above need.

# Tests sync thousands of files. No test depends on the disk behind them: power cuts are replayed from a recording, and full disks
# are mounted. So their files are in memory where that has 4 GB free, unless TMPDIR says otherwise.
MEMORY_FREE_KB := $(shell df --output=avail /dev/shm 2>/dev/null | tail -1)
TEST_FILES := $(if $(TMPDIR),,$(shell [ -w /dev/shm ] && [ "$(or $(MEMORY_FREE_KB),0)" -gt 4000000 ] && echo TMPDIR=/dev/shm))

# One server of each engine. The Java servers need less memory for tests than for benches. OpenSearch takes little more than half of the
# processor time without the second of Java's two compilers; Cassandra takes half as much again without it.
TEST_SERVICES := postgres redis s3 opensearch cassandra rabbitmq
TEST_JAVA := RESTANTE_CASSANDRA_HEAP=512m RESTANTE_OPENSEARCH_HEAP=512m \
	RESTANTE_OPENSEARCH_JAVA_OPTIONS=-XX:TieredStopAtLevel=1

# The servers are downloaded while the tests are compiled.
test-servers:
	dev/services/up --install-only $(TEST_SERVICES)

test-programs: toolchain
	cargo test --workspace --locked --no-run

CLUSTER_SERVICES := postgres redis cassandra3 s3 opensearch rabbitmq
CLUSTER_TESTS := --workspace --test conformance --test model --test faults --test servers --test redis --test several --test broker --test s3 --test opensearch
CLUSTER_SECONDS := $(shell echo $$(($(or $(MINUTES),10) * 60)))

# Loom takes minutes, and its result depends on these files and the compiler alone: sources that passed before are not tried again.
LOOM_SOURCES := $(wildcard tests/loom/Cargo.* tests/loom/src/*.rs) crates/sessions/src/memory/cell.rs crates/sessions/src/memory/table.rs
LOOM_SUM := { rustc --version; cat $(LOOM_SOURCES); } | sha256sum
LOOM_PASSED := $(TARGET_DIR)/loom/passed

toolchain:
	@command -v cargo >/dev/null || { echo "install Rust first: https://rustup.rs"; exit 1; }
	@command -v cc >/dev/null || { echo "install a C compiler first: apt-get install gcc libc6-dev"; exit 1; }

lints: toolchain
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy

# shellcheck is no condition: without it the scripts are checked by running them.
scripts:
	@if command -v shellcheck >/dev/null; then cd dev/services && shellcheck --external-sources --severity=warning up down with node *.sh \
	&& shellcheck --severity=warning ../../tests/run ../../tests/interop/run ../../tests/console/run ../../tests/mutants/run; \
	else echo "shellcheck is not here: no script was checked with it"; fi

# Built without optimisation: it is run for seconds and would take minutes more to build.
deny: toolchain
	@cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked --debug --version $(CARGO_DENY_VERSION)

# libFuzzer is C++. What a run finds interesting is kept in the first corpus folder, below target/.
fuzzer: toolchain
	@command -v c++ >/dev/null || { echo "install a C++ compiler first: apt-get install g++"; exit 1; }
	@cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked --version '$(CARGO_FUZZ_VERSION)'
