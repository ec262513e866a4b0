# How evenkeel is built, tested, measured and installed. `make help` lists the targets; `make demo` and
# `make test` are the two that are needed first.

PREFIX ?= /usr/local
INSTALLED = $(DESTDIR)$(PREFIX)
LAB := target/debug/evenkeel-lab
# What is installed.
RELEASE := target/release
EXECUTABLES := evenkeel evenkeel-lab
SHARES := libevenkeel_shares.so
# Loading BPF programs and real-time noise need root; building does not.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E)
# The test programs run as root, cargo as the user that calls it.
SUDO_RUNNER := --config 'target."cfg(all())".runner = ["sudo", "-E"]'
TEST_RUNNER := $(if $(AS_ROOT),$(SUDO_RUNNER))
# How long `make vm-soak` lasts on each machine, its tests together.
SOAK_MINUTES ?= 30
# How much `make fuzz` does for each target, in texts or in seconds, whichever is reached first, and its
# seed.
FUZZ ?= 10000000
FUZZ_SECONDS ?= 86400
FUZZ_SEED ?= 1
# How often `make kill-soak` kills each command and `make cluster-test` cancels a job, and the seed.
KILLS ?= 200
KILL_SEED ?= 1
# How long `make sim-soak` lasts, in events or in seconds, whichever is reached first, and its first
# seed.
SIM_EVENTS ?= 100000000
SIM_SECONDS ?= 86400
SIM_SEED ?= 1
SIM_KEEL := $(CURDIR)/target/keel-sanitized.so
UNITS := evenkeel.service evenkeel-keel.service
# Of the pages and the schemas of JSON, in the folders of the repository, so that their links hold. What
# only the site is made of is left out.
DOCS = $(INSTALLED)/share/doc/evenkeel
# The papers' names of commands, which are links to evenkeel.
NAMES := chcb capability-balancer set_ias_agg set_ias_alloc
COMPLETIONS := $(foreach name,$(EXECUTABLES),bash-completion/completions/$(name) \
	zsh/site-functions/_$(name) fish/vendor_completions.d/$(name).fish)

.PHONY: help demo test tidy native-test bench-test cluster-test fleet-test spank kill-soak vm-test \
	vm-test-if-fetched vm-lane-1 vm-lane-2 \
	vm-soak vm-hotplug vm-units vm-adversaries vm-irqbalance vm-card vm-kernels nightly vm-mutate \
	sim-soak sim-adversaries decisions fuzz demo-vm build build-all setup vm-setup lint \
	bench bench-programs bench-cluster bench-keel bench-balance bench-ias bench-zone bench-free bench-sim \
	bench-refill bench-sais bench-irq bench-scale cast \
	results-index release check-release install uninstall deb deb-test dist image image-test \
	packages-check cargo-install screenshots arm64 site

## make help           list the targets
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo           set up, build, and show the main job on this machine: three programs (three
##                     minutes, and the build)
demo: build
	$(AS_ROOT) $(LAB) bench programs --demo --json target/demo.json

## make test           set up, build, and pass every test, those in virtual machines included
test:
	@scripts/tests begin
	@$(MAKE) --no-print-directory native-test
	@$(MAKE) --no-print-directory vm-test-if-fetched
	@scripts/tests end

# Where the kernels cannot be fetched, the tests that need them are left out, and `scripts/tests end`
# says so.
vm-test-if-fetched:
	@if $(MAKE) --no-print-directory vm-setup; then $(MAKE) --no-print-directory vm-test; else \
		scripts/tests leave-out 'the tests in virtual machines' \
			'see above what could not be fetched'; fi

## make native-test    all tests but those in virtual machines
# Without Slurm, or where it cannot be installed, the tests in tests/cluster are skipped; without Dask
# those of sweeps on it; without Perfetto's schema the one that reads traces by it.
native-test: build-all
	-@scripts/slurm
	-@scripts/setup dask
	-@scripts/setup perfetto
	CLANG=$$(scripts/clang) scripts/tests run native \
		cargo test --workspace --locked --no-fail-fast $(TEST_RUNNER) -- --skip vm::

## make kill-soak      kill run, the daemon, sais and irq run at KILLS (200) random moments each, by
##                     KILL_SEED (1): all that is left is undone (twenty minutes)
kill-soak: build
	EVENKEEL_KILLS=$(KILLS) EVENKEEL_KILL_SEED=$(KILL_SEED) CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test host $(TEST_RUNNER) -- --nocapture --test-threads=1 \
		kill_moments

## make cluster-test   jobs of a real Slurm, cancelled at KILLS (200) random moments, by KILL_SEED (1),
##                     what the plugin adds to the start of a job, what it gains on a node with a
##                     noisy CPU, and what a sweep of 1,000 simulations takes on each engine (an hour)
cluster-test: build
	@scripts/slurm
	-@scripts/setup dask
	-@scripts/setup mpi
	CLANG=$$(scripts/clang) cargo build --release --locked -p evenkeel
	EVENKEEL_KILLS=$(KILLS) EVENKEEL_KILL_SEED=$(KILL_SEED) \
		EVENKEEL_STARTED=$(CURDIR)/$(RELEASE)/evenkeel CLANG=$$(scripts/clang) \
		cargo test -p evenkeel-tests --locked --test cluster $(TEST_RUNNER) -- \
		--include-ignored --nocapture --test-threads=1

## make bench-test     the short forms of benchmarks and reproductions that measure for longer than CI
##                     has time for (five minutes)
bench-test: build
	CLANG=$$(scripts/clang) cargo test -p evenkeel-tests --locked --test host $(TEST_RUNNER) -- \
		--ignored sais::bench:: repro:: bench_scale:: bench_costs:: bench_irq::

## make fleet-test     the metrics, the dashboard, the alerts and the manifests for Kubernetes, by the
##                     tools that read them, and containers that join by an annotation
fleet-test: build
	@scripts/setup fleet
	CLANG=$$(scripts/clang) cargo test -p evenkeel-tests --locked --test fleet --test host \
		$(TEST_RUNNER) -- kubernetes:: prometheus:: queries:: tables:: containers:: metrics::

## make spank          build the plugin for the Slurm whose headers are here:
##                     target/spank_evenkeel.so
spank:
	packaging/slurm/build target/spank_evenkeel.so $(PREFIX)/bin/evenkeel

## make tidy           check the project's own files: lengths, words, links, commands, dependencies
tidy: setup
	CLANG=$$(scripts/clang) cargo test -p evenkeel-tests --test tidy --locked

## make vm-test        the tests on real kernels in virtual machines (ONLY=6.18 picks by name)
# Two guests run at once, because one keeps little more than one CPU busy. A failure in one of them
# does not stop the other.
vm-test: vm-setup build-all
ifeq ($(ONLY),)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 vm-lane-1 vm-lane-2
else
	CLANG=$$(scripts/clang) cargo test --workspace --locked --test vm -- $(ONLY)
endif

VM_LANE = @bash -o pipefail -c 'CLANG=$$(scripts/clang) scripts/tests run "$$0" \
	cargo test --workspace --locked --test vm -- "$$@" 2>&1 | \
	sed --unbuffered "s/^/$@: /"' $@

# So that both take about as long, the policies of 7.2 are tested by the second one.
vm-lane-1:
	$(VM_LANE) --skip vm::6.1:: --skip vm::6.18- --skip vm::7.2::policies::

vm-lane-2:
	$(VM_LANE) --skip vm::6.18:: --skip vm::7.0:: --skip vm::7.2::keel:: \
		--skip vm::7.2::user_level:: --skip vm::7.2::interrupts:: --skip vm::7.2::sais::

## make build          set up and build
build: setup
	CLANG=$$(scripts/clang) cargo build --workspace --locked

# The executables, which the tests start (tests/build.rs), and the tests in one build. In two, cargo
# would compile much of it twice, because the tests ask for other features of some crates.
build-all: setup
	CLANG=$$(scripts/clang) cargo build --workspace --locked --all-targets

## make setup          install the packages that building and testing need
setup:
	@scripts/setup

## make demo-vm        show the keel beside the kernel's own scheduler, in a virtual machine (two
##                     minutes)
demo-vm: vm-setup build
	CLANG=$$(scripts/clang) cargo test --workspace --locked --test vm -- --ignored --nocapture vm::demo

## make vm-soak        the schedulers' tests there for SOAK_MINUTES (30) on 4 CPUs, and again on 8
vm-soak: vm-setup build
	EVENKEEL_SOAK_S=$$(($(SOAK_MINUTES) * 60)) CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::soak

## make vm-hotplug     a thousand rounds of CPUs that go and come back, on each of three kernels (hours)
vm-hotplug: vm-setup build
	EVENKEEL_SOAK_S=20000 CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::hotplug

## make vm-units       both systemd units with all their features, in a guest with systemd
vm-units: vm-setup build
	@scripts/systemd
	CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::units

## make vm-adversaries users that try to make others wait, in a guest
vm-adversaries: vm-setup build
	CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::adversaries

## make vm-irqbalance  interrupts are moved beside Debian's irqbalance, in a guest
vm-irqbalance: vm-setup build
	@scripts/irqbalance
	CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::irqbalance

## make vm-card        buckets of an emulated network card's indirection table are moved, in a guest
vm-card: vm-setup build
	@scripts/card
	CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::card

## make vm-kernels     on each kernel what other tests do on some only: what else interrupts, the keel
##                     and sais do, and all combinations of policies
vm-kernels: vm-setup build
	CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test vm -- --ignored --nocapture vm::kernels

## make nightly        what takes longer than CI may: the units in a guest with systemd, adversaries,
##                     irqbalance, a network card, each kernel, benchmarks, Slurm, alerts and
##                     containers, the packages and the image installed and used, `cargo install`, the
##                     site, reports in a browser, arm64, the bounds of the release and its archive
nightly: vm-units vm-adversaries vm-irqbalance vm-card vm-kernels bench-test cluster-test fleet-test \
	deb-test image-test cargo-install site screenshots arm64 check-release dist

## make vm-mutate      take out each guard of the keel in turn: which test notices? (ten minutes)
vm-mutate: vm-setup build
	@CLANG=$$(scripts/clang) scripts/mutate-keel $(ONLY)

## make sim-soak       the keel in the simulator for SIM_EVENTS (100 million) events under faults, or
##                     SIM_SECONDS of them, with sanitizers
# The keel is compiled with sanitizers. Their library must be loaded before all others, and memory
# that Rust's runtime never frees is no leak.
sim-soak: setup
	cc -std=gnu17 -O1 -g -Wall -Werror -fno-strict-aliasing -fPIC -shared -Wl,-Bsymbolic \
		-fsanitize=address,undefined -fno-sanitize-recover=all -I lab/sim/native \
		-o $(SIM_KEEL) bpf/keel/keel.bpf.c
	CLANG=$$(scripts/clang) cargo test --workspace --locked --test faults --no-run
	EVENKEEL_SIM_KEEL=$(SIM_KEEL) EVENKEEL_SIM_EVENTS=$(SIM_EVENTS) EVENKEEL_SIM_SECONDS=$(SIM_SECONDS) \
		EVENKEEL_SIM_SEED=$(SIM_SEED) ASAN_OPTIONS=detect_leaks=0 \
		CLANG=$$(scripts/clang) cargo test --workspace --locked --test faults \
		--config "target.'cfg(all())'.runner = ['env', 'LD_PRELOAD=$$(cc -print-file-name=libasan.so)']" \
		-- --ignored --nocapture soak

## make sim-adversaries    twenty simulated minutes of users that try to make others wait; ONLY: part of
##                         a world's name
sim-adversaries: setup
	$(if $(ONLY),EVENKEEL_WORLD="$(ONLY)") CLANG=$$(scripts/clang) \
		cargo test --workspace --locked --test adversary -- --ignored --nocapture soak

## make decisions      record anew what the keel decides in lab/sim/tests/decisions.txt
decisions: setup
	EVENKEEL_RECORD_DECISIONS=1 CLANG=$$(scripts/clang) cargo test --workspace --locked --test decisions
	@git diff --stat -- lab/sim/tests/decisions.txt

## make fuzz           fuzz all that reads what comes from users, files or the network: control
##                     messages, configuration, journals, metrics requests, packets, workloads,
##                     machines. FUZZ (10 million) texts for each, or FUZZ_SECONDS of them, by
##                     FUZZ_SEED (1)
fuzz: setup
	EVENKEEL_FUZZ=$(FUZZ) EVENKEEL_FUZZ_SECONDS=$(FUZZ_SECONDS) EVENKEEL_FUZZ_SEED=$(FUZZ_SEED) \
		CLANG=$$(scripts/clang) cargo test --workspace --locked --test fuzz -- --nocapture

vm-setup: setup
	@scripts/setup vm
	@scripts/emulator
	@scripts/kernel

## make lint           formatting and lints
lint: setup
	@scripts/setup lint
	cargo fmt --all --check
	CLANG=$$(scripts/clang) cargo clippy --workspace --all-targets --locked
	shellcheck $$(grep -rlE '^#!.*/(env bash|sh)$$|^# shellcheck shell=' .ci scripts packaging lab)

## make bench          the benchmark of `evenkeel run` in full (half an hour); writes
##                     docs/results/capability.md
bench: build
	$(AS_ROOT) $(LAB) bench capability --json target/capability.json --markdown docs/results/capability.md

## make cast           record the README's picture and draw it: docs/cast.svg (ten minutes,
##                     once built)
cast: release
	@scripts/setup cast
	scripts/cast $(RELEASE) docs/cast.svg

## make bench-programs the three levers on parallel programs (three hours for what is claimed; goes on
##                     where it stopped); writes docs/results/programs.md
# Programs of packages that cannot be installed are left out; the page says so.
# By the release build, which users have: what evenkeel itself takes counts in runs of some seconds.
bench-programs: release
	-@scripts/setup programs
	$(AS_ROOT) $(RELEASE)/evenkeel-lab bench programs --json target/programs.json \
		--markdown docs/results/programs.md

## make bench-cluster  what `srun --evenkeel` gains a job on a node with a noisy CPU, in a Slurm that
##                     this sets up and takes down (twenty minutes); writes docs/results/cluster.md
# By the release build, which users have, as Slurm starts it.
bench-cluster: build
	@scripts/slurm
	@scripts/setup mpi
	CLANG=$$(scripts/clang) cargo build --release --locked -p evenkeel
	EVENKEEL_STARTED=$(CURDIR)/$(RELEASE)/evenkeel EVENKEEL_GAIN_JSON=target/cluster.json \
		EVENKEEL_GAIN_MARKDOWN=docs/results/cluster.md CLANG=$$(scripts/clang) \
		cargo test -p evenkeel-tests --locked --test cluster $(TEST_RUNNER) -- \
		--ignored --nocapture the_gain_of_a_job

## make bench-keel     the keel beside other schedulers, in virtual machines; writes
##                     docs/results/keel.md
bench-keel: build
	@scripts/setup keel
	@scripts/emulator
	@scripts/kernel 6.18
	-@scripts/peers
	$(LAB) bench keel --json target/keel.json --markdown docs/results/keel.md

## make bench-ias      sibling aggregation, in a virtual machine (twenty minutes); writes
##                     docs/results/ias.md
bench-ias: build
	@scripts/setup keel
	@scripts/emulator
	@scripts/kernel 6.18
	-@scripts/peers scx_lavd
	$(LAB) bench ias --rounds 6 --json target/ias.json --markdown docs/results/ias.md

## make bench-balance  programs on unequal CPUs, in virtual machines; writes docs/results/balance.md
bench-balance: build
	@scripts/setup keel
	@scripts/emulator
	@scripts/kernel 6.18
	-@scripts/peers scx_lavd
	$(LAB) bench balance --json target/balance.json --markdown docs/results/balance.md

## make bench-zone     urgent tasks under the keel's gate, in a virtual machine; writes
##                     docs/results/zone.md
bench-zone: build
	@scripts/setup keel
	@scripts/emulator
	@scripts/kernel 6.18
	-@scripts/peers scx_lavd
	$(LAB) bench zone --rounds 6 --json target/zone.json --markdown docs/results/zone.md

## make bench-free     programs under the keel on a real kernel, in virtual machines, and in the
##                     simulator; writes docs/results/free.md
bench-free: build
	@scripts/setup keel
	@scripts/emulator
	@scripts/kernel 6.18
	$(LAB) bench free --json target/free.json --markdown docs/results/free.md

## make bench-sim      how fast the simulator is; writes docs/results/sim.md
bench-sim: build
	$(LAB) sim bench --json target/sim.json --markdown docs/results/sim.md

## make bench-refill   what it costs to refill caches on this machine (some minutes, on a machine that
##                     does nothing else); writes docs/results/refill.md and
##                     product/machine/presets/measured.toml
bench-refill: build
	$(LAB) bench refill --json target/refill.json --machine product/machine/presets/measured.toml \
		--markdown docs/results/refill.md

## make bench-sais     packets steered by every policy and by the kernel (30 to 40 minutes); writes
##                     docs/results/sais.md
# Real programs are left out where they cannot be fetched; the page says so.
bench-sais: build vm-setup
	-@scripts/programs
	$(AS_ROOT) $(LAB) bench sais --json target/sais.json --markdown docs/results/sais.md

## make bench-irq      where interrupts run, on a virtual card with many queues, beside the kernel's
##                     ways and irqbalance (about an hour); writes docs/results/irq.md
# irqbalance is left out where it cannot be fetched; the page says so. By the release build, which users
# have: what evenkeel itself takes counts in runs of some seconds.
bench-irq: release
	-@scripts/irqbalance
	$(AS_ROOT) $(RELEASE)/evenkeel-lab bench irq --json target/irq.json --markdown docs/results/irq.md

## make bench-scale    what noise costs jobs on many nodes, calculated and simulated (a few minutes);
##                     writes docs/results/scale.md
bench-scale: build
	$(AS_ROOT) $(LAB) bench scale --json target/scale.json --markdown docs/results/scale.md

## make results-index  list the pages of docs/results, and which are older than what they measure
# Needs the whole history: it compares commits.
results-index:
	@scripts/results-index

## make release        build both executables and the library as they are installed: optimised and
##                     stripped
release: setup
	CLANG=$$(scripts/clang) cargo build --release --locked $(addprefix -p ,$(EXECUTABLES)) \
		-p evenkeel-shares-preload

## make check-release  check size, start-up time, libraries, and the first screen and the cost of top of
##                     the release binary of evenkeel
check-release: release build
	scripts/check-release $(RELEASE)/evenkeel
	EVENKEEL_STARTED=$(CURDIR)/$(RELEASE)/evenkeel CLANG=$$(scripts/clang) \
		cargo test -p evenkeel-tests --locked --test host $(TEST_RUNNER) -- top::top_costs_little

## make install        build the release, and install it under PREFIX (/usr/local)
install: release
	for name in $(EXECUTABLES); do \
		install -Dm755 $(RELEASE)/$$name $(INSTALLED)/bin/$$name || exit 1; \
	done
	for name in $(NAMES); do ln -sf evenkeel $(INSTALLED)/bin/$$name || exit 1; done
	install -Dm644 $(RELEASE)/$(SHARES) $(INSTALLED)/lib/evenkeel/$(SHARES)
	install -Dm644 include/evenkeel.h $(INSTALLED)/include/evenkeel.h
	install -d $(INSTALLED)/lib/systemd/system
	for unit in $(UNITS); do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' packaging/systemd/$$unit \
			> $(INSTALLED)/lib/systemd/system/$$unit || exit 1; \
	done
	rm -rf target/man target/completions
	for name in $(EXECUTABLES); do \
		$(RELEASE)/$$name generate man target/man || exit 1; \
		$(RELEASE)/$$name generate completions target/completions || exit 1; \
		install -Dm644 target/completions/$$name.bash \
			$(INSTALLED)/share/bash-completion/completions/$$name || exit 1; \
		install -Dm644 target/completions/_$$name \
			$(INSTALLED)/share/zsh/site-functions/_$$name || exit 1; \
		install -Dm644 target/completions/$$name.fish \
			$(INSTALLED)/share/fish/vendor_completions.d/$$name.fish || exit 1; \
	done
	for page in target/man/*.1; do \
		install -Dm644 $$page $(INSTALLED)/share/man/man1/$${page##*/} || exit 1; \
	done
	install -Dm644 target/man/evenkeel.toml.5 $(INSTALLED)/share/man/man5/evenkeel.toml.5
	for file in README.md $$(find docs -type f ! -name SUMMARY.md ! -name book.toml); do \
		install -Dm644 $$file $(DOCS)/$$file || exit 1; \
	done

## make uninstall      remove what `make install` has installed
uninstall:
	rm -f $(addprefix $(INSTALLED)/bin/,$(EXECUTABLES) $(NAMES))
	rm -f $(INSTALLED)/include/evenkeel.h $(INSTALLED)/lib/evenkeel/$(SHARES)
	rm -f $(addprefix $(INSTALLED)/lib/systemd/system/,$(UNITS))
	rm -f $(INSTALLED)/share/man/man1/evenkeel.1 $(INSTALLED)/share/man/man1/evenkeel-*.1
	rm -f $(patsubst %,$(INSTALLED)/share/man/man1/%.1,$(NAMES))
	rm -f $(INSTALLED)/share/man/man5/evenkeel.toml.5
	rm -f $(addprefix $(INSTALLED)/share/,$(COMPLETIONS))
	rm -f $(DOCS)/README.md
	rm -rf $(DOCS)/docs

## make deb            Debian's source and binary packages, from the release, in target/deb
deb: release
	@scripts/setup deb
	@scripts/deb

## make deb-test       install, use and purge the packages in clean Debian systems (root), which is to
##                     take at most 30 s from the clean system to the answer of `evenkeel doctor`
# The suites have tests of their names.
deb-test: deb
	@$(AS_ROOT) scripts/debian-system bookworm trixie
	EVENKEEL_PACKAGES=$(CURDIR)/target/deb CLANG=$$(scripts/clang) \
		bash -o pipefail -c '"$$@" | tee target/deb-test.log' deb-test \
		cargo test -p evenkeel-tests --locked --test packages $(TEST_RUNNER) -- \
		--ignored --nocapture --test-threads=1
	@! grep 'goal missed' target/deb-test.log

## make dist           an archive of what is installed, with SHA-256 sums, in target/dist
dist: release
	rm -rf target/dist
	@$(MAKE) --no-print-directory install --old-file=release PREFIX=/usr/local DESTDIR=target/dist/root
	@scripts/dist target/dist/root/usr/local
	rm -r target/dist/root

## make image          a container image for podman and docker, in target/image
image: deb
	@scripts/setup image
	@$(AS_ROOT) scripts/image build

## make image-test     run the image without privileges, and the daemon with those of its unit (root)
image-test: image
	@$(AS_ROOT) scripts/image test

## make packages-check the packages by lintian, and the site with its links, from the build for work,
##                     which is there sooner than the release
packages-check: build-all
	@scripts/setup deb
	@scripts/deb --check
	@$(MAKE) --no-print-directory site --old-file=release RELEASE=target/debug

## make cargo-install  install evenkeel by cargo, without the rest, into target/cargo-install, and start
##                     it
cargo-install: setup
	CLANG=$$(scripts/clang) cargo install --locked --force --path product/evenkeel \
		--root target/cargo-install
	[ "$$(target/cargo-install/bin/evenkeel --version)" = "evenkeel $$(scripts/version)" ]

## make screenshots    draw reports in headless Chromium, light and dark, narrow and wide, into
##                     target/screenshots: none asks for another file or is wider than its window
screenshots: build
	@scripts/setup screenshots
	target/debug/evenkeel compare --rounds 2 --html target/compare.html -- sleep 0.1
	$(LAB) repro 002 --quick --html target
	$(LAB) bench refill --quick --html target/refill.html
	scripts/screenshots target/compare.html target/002.html target/refill.html

## make arm64          on arm64, emulated: the tests of crates without BPF; evenkeel built and started
arm64: setup
	@scripts/setup arm64
	@scripts/arm64

## make site           the docs as a site with search, and the reference of all commands, in target/site
site: release
	@scripts/setup site
	@scripts/site "$$(scripts/mdbook)" $(addprefix $(RELEASE)/,$(EXECUTABLES))
