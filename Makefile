# The one door to the project: everything a person or CI runs is a target here.
#
# A machine needs make and Python 3.11 or newer with pip; not venv, not ensurepip, not a pip that may install for the system.
# Everything lands in the project's own folders (.uv, .venv, .cache, dist), and `make clean` takes it away again.
# What is tested is the wheel that users install, never the checkout: see docs/glossary.md, "wheel".

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
UV_VERSION := 0.13.9
# Processes that share the tests, for two cores: a test that starts servers waits more than it computes, and the slow ones wait most.
# PARALLEL= and PARALLEL_SLOW= run them one by one.
PARALLEL ?= -n 3 --dist worksteal
PARALLEL_SLOW ?= -n 4 --dist worksteal
PACKAGES := sickbay ingest streams projections responders migrations

CACHE := $(CURDIR)/.cache
BIN := $(CURDIR)/.venv/bin
KAFKA_POM := tests/services/kafka/pom.xml
UV := $(CURDIR)/.uv/bin/uv

export UV_CACHE_DIR := $(CACHE)/uv
export UV_PYTHON_DOWNLOADS := never
export PIP_CACHE_DIR := $(CACHE)/pip
export MYPY_CACHE_DIR := $(CACHE)/mypy
export RUFF_CACHE_DIR := $(CACHE)/ruff
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
export GOMODCACHE := $(CACHE)/go/mod
export GOCACHE := $(CACHE)/go/build

# Stamps: an empty file says that a step is done, so that a warm run does nothing twice.
UV_STAMP := .uv/.stamp-$(UV_VERSION)
DEV_STAMP := .venv/.stamp-dev
WHEEL_STAMP := .venv/.stamp-wheel

# Folders are named too: a deleted module changes only the folder it was in.
SOURCES := $(shell find $(PACKAGES) -name __pycache__ -prune -o -print) pyproject.toml README.md LICENSE

# uv reads its own settings and never pip's. Where only pip was told about an index or a certificate, that is passed on.
define pip_settings_for_uv
pip_setting() { $(PYTHON) -m pip config list | sed -n "s/^[^.]*\.$$1='\(.*\)'$$/\1/p" | tail -n 1; }; \
index="$$(pip_setting index-url)"; certificate="$$(pip_setting cert)"; \
if [ -n "$$index" ] && [ -z "$${UV_DEFAULT_INDEX:-}$${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
if [ -n "$$certificate" ] && [ -z "$${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE="$$certificate"; fi
endef

# The tests start a cluster of their own from the binaries, so no cluster of the system is made, started or touched.
define install_postgresql
new_enough() { [ "$$("$$1" --version 2>/dev/null | sed 's/[^0-9]*\([0-9]*\).*/\1/')" -ge 15 ] 2>/dev/null; }; \
if [ -n "$${SICKBAY_POSTGRES:-}" ]; then exit 0; fi; \
for program in "$$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb; do \
	if [ -x "$$program" ] && new_enough "$$program"; then exit 0; fi; \
done; \
if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
	echo "the tests need PostgreSQL 15 or newer: install it so that initdb is on the PATH (Debian: the package postgresql)," >&2; \
	echo "or give the URL of a superuser in SICKBAY_POSTGRES" >&2; \
	exit 1; \
fi; \
echo "installing the Debian package postgresql, without a cluster"; \
export DEBIAN_FRONTEND=noninteractive; \
add() { apt-get install --quiet --quiet --yes --no-install-recommends -o Dpkg::Options::=--force-confold "$$1" >/dev/null; }; \
add postgresql-common 2>/dev/null || { apt-get update --quiet --quiet >/dev/null; add postgresql-common; }; \
settings=/etc/postgresql-common/createcluster.conf; \
if ! grep -qs '^create_main_cluster *= *false' "$$settings"; then echo 'create_main_cluster = false' >> "$$settings"; fi; \
add postgresql
endef

# An engine's image where there is one that can fetch it, else Apache's jars; tests/support/kafka_server.py looks in that order too.
define install_kafka
if [ -n "$${SICKBAY_KAFKA:-}" ]; then exit 0; fi; \
version="$$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' $(KAFKA_POM))"; \
jars="$(CACHE)/kafka/$$version"; \
if [ -e "$$jars/.stamp" ] && [ "$$jars/.stamp" -nt $(KAFKA_POM) ] && command -v java >/dev/null; then exit 0; fi; \
if command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; then \
	if docker image inspect "apache/kafka:$$version" >/dev/null 2>&1; then exit 0; fi; \
	echo "fetching the image apache/kafka:$$version"; \
	if docker pull --quiet "apache/kafka:$$version" >/dev/null; then exit 0; fi; \
fi; \
add() { apt-get install --quiet --quiet --yes --no-install-recommends "$$1" >/dev/null; }; \
need() { \
	command -v "$$1" >/dev/null && return; \
	if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "the tests need Kafka: install Java 17 or newer and Maven, so that java and mvn are on the PATH" >&2; \
		echo "(Debian: the packages default-jre-headless and maven), or give the bootstrap of a broker in SICKBAY_KAFKA" >&2; \
		exit 1; \
	fi; \
	echo "installing the Debian package $$2"; \
	export DEBIAN_FRONTEND=noninteractive; \
	add "$$2" 2>/dev/null || { apt-get update --quiet --quiet >/dev/null; add "$$2"; }; \
}; \
need java default-jre-headless; \
need mvn maven; \
echo "fetching the jars of Apache Kafka $$version into .cache/kafka"; \
told="$$(mvn --quiet --batch-mode --file $(KAFKA_POM) dependency:copy-dependencies \
	"-DoutputDirectory=$$jars" "-Dmaven.repo.local=$(CACHE)/m2" 2>&1)" || { echo "$$told" >&2; exit 1; }; \
touch "$$jars/.stamp"
endef

# One program for each version (tests/cluster/controlplane), linked once and called by the names of its components.
define build_control_plane
folder="$(CACHE)/control-plane"; source=tests/cluster/controlplane; \
version_of() { sed -n 's:^\tk8s.io/kubernetes v\(.*\)$$:\1:p' "$$1"; }; \
for module in $$source/kubernetes-*.mod; do \
	minor="$$(basename "$$module" .mod)"; minor="$${minor#kubernetes-}"; \
	stamp="$$folder/$$minor/.stamp"; \
	if [ -e "$$stamp" ] && [ "$$stamp" -nt "$$module" ] && [ "$$stamp" -nt "$${module%.mod}.sum" ] \
		&& [ "$$stamp" -nt $$source/main.go ]; then continue; fi; \
	if ! command -v go >/dev/null; then \
		echo "the control plane needs Go 1.26 to be built: install it so that go is on the PATH" >&2; exit 1; \
	fi; \
	version="$$(version_of "$$module")"; \
	echo "building the control plane of Kubernetes $$version into .cache/control-plane (some minutes, once)"; \
	mkdir -p "$$folder/$$minor"; \
	version_flag() { printf -- '-X k8s.io/component-base/version.%s=%s ' "$$1" "$$2"; }; \
	(cd $$source && go build -trimpath -mod=readonly -modcacherw "-modfile=$$(basename "$$module")" -o "$$folder/$$minor/control-plane" \
		-ldflags "-s -w $$(version_flag gitVersion "v$$version")$$(version_flag gitMajor 1)$$(version_flag gitMinor "$${minor#1.}")" .); \
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do ln -sf control-plane "$$folder/$$minor/$$name"; done; \
	touch "$$stamp"; \
done
endef

# What people install and watch deploy/ with, as their authors have it: the tests read their answers. Two modules, for their
# requirements differ.
define build_deploy_tools
folder="$(CACHE)/deploy-tools"; source=tests/cluster/deploytools; \
if [ -e "$$folder/.stamp" ] && [ -z "$$(find $$source -newer "$$folder/.stamp" -type f)" ]; then exit 0; fi; \
if ! command -v go >/dev/null; then \
	echo "kustomize and Helm need Go 1.26 to be built: install it so that go is on the PATH" >&2; exit 1; \
fi; \
echo "building kustomize and Helm into .cache/deploy-tools (some minutes, once)"; \
mkdir -p "$$folder"; \
build() { (cd $$source && go build -trimpath -mod=readonly -modcacherw "-modfile=$$1" -ldflags "-s -w" -o "$$folder/" "$${@:2}"); }; \
build go.mod sigs.k8s.io/kustomize/kustomize/v5 helm.sh/helm/v4/cmd/helm; \
touch "$$folder/.stamp"
endef

# A big program for a few rules, so it is built only when these are tried.
define build_promtool
folder="$(CACHE)/deploy-tools"; \
[ -x "$$folder/promtool" ] && exit 0; \
echo "building promtool into .cache/deploy-tools (some minutes, once)"; \
mkdir -p "$$folder"; \
cd tests/cluster/deploytools && go build -trimpath -mod=readonly -modcacherw -modfile=promtool.mod -ldflags "-s -w" -o "$$folder/" \
	github.com/prometheus/prometheus/cmd/promtool
endef

# Quix Streams goes together with none of our requirements, so it has an environment of its own; without it its rows are left out.
define install_quix
quix="$(CACHE)/bench-quix"; \
if [ -e "$$quix/.stamp" ] && [ "$$quix/.stamp" -nt bench/live/quix.in ] && [ "$$quix/.stamp" -nt $(WHEEL_STAMP) ]; then exit 0; fi; \
echo "installing bench/live/quix.in and the wheel into .cache/bench-quix"; \
$(pip_settings_for_uv); \
if $(UV) venv --quiet --allow-existing --python $(PYTHON) "$$quix" \
	&& $(UV) pip install --quiet --python "$$quix/bin/python" -r bench/live/quix.in \
	&& $(UV) pip install --quiet --python "$$quix/bin/python" --offline --no-deps --reinstall dist/*.whl; \
then touch "$$quix/.stamp"; \
else echo "Quix Streams cannot be installed: its rows are left out" >&2; rm -rf "$$quix"; fi
endef

.PHONY: help
help: ## list the targets (default)
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(WHEEL_STAMP) ## install the pinned requirements and the wheel into .venv

.PHONY: demo
demo: $(WHEEL_STAMP) ## replay examples/one-card into a throw-away database and show what came of it
	@SICKBAY=$(BIN)/sickbay bash examples/demo.sh .cache/demo/one-card.db

.PHONY: postgresql
postgresql: ## install the PostgreSQL server that the tests start: on Debian, as root, and only where none is found
	@$(install_postgresql)

.PHONY: kafka
kafka: ## fetch the Kafka that the tests start: its image, or its jars (Java and Maven too: on Debian, as root, where missing)
	@$(install_kafka)

.PHONY: chromium
chromium: ## install the browser that the slow tests drive: on Debian, as root, and only where none is found
	@command -v chromium >/dev/null && exit 0; \
	if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "the browser tests need chromium on the PATH (Debian: the package chromium)" >&2; exit 1; \
	fi; \
	echo "installing the Debian package chromium"; \
	export DEBIAN_FRONTEND=noninteractive; \
	add() { apt-get install --quiet --quiet --yes --no-install-recommends chromium >/dev/null; }; \
	add 2>/dev/null || { apt-get update --quiet --quiet >/dev/null; add; }

.PHONY: up
up: ## start Kafka, PostgreSQL and Sickbay in containers; needs Docker and SICKBAY_POSTGRES_PASSWORD, and for ingest secrets/kubeconfig
	@services="work project"; \
	if [ -f secrets/kubeconfig ]; then services="ingest $$services"; \
	else echo "no secrets/kubeconfig, so nothing is observed: put one there and run this again"; fi; \
	docker compose up --detach --build --wait $$services

.PHONY: test
test: $(WHEEL_STAMP) postgresql kafka ## build and install the wheel, then run the default tests against it
	$(BIN)/pytest -m "not slow and not cluster" $(PARALLEL)

.PHONY: test-slow
test-slow: $(WHEEL_STAMP) postgresql kafka chromium ## run the long suites
	$(BIN)/pytest -m "slow and not cluster" $(PARALLEL_SLOW)

.PHONY: control-plane
control-plane: ## build etcd, kube-apiserver, -scheduler and -controller-manager of 1.36 and 1.37 into .cache; needs Go
	@$(build_control_plane)

.PHONY: deploy-tools
deploy-tools: ## build kustomize and Helm into .cache, for the tests of deploy/; needs Go
	@$(build_deploy_tools)

.PHONY: test-cluster
test-cluster: $(WHEEL_STAMP) control-plane deploy-tools kafka ## run the tests against a real control plane of both versions
	$(BIN)/pytest -m "cluster and not alone and not promtool" -n 3 --dist worksteal
	$(BIN)/pytest -m "cluster and alone"

.PHONY: check-rules
check-rules: $(WHEEL_STAMP) ## build promtool and let it try the alerting rules of deploy/monitoring; needs Go
	@$(build_promtool)
	$(BIN)/pytest -m promtool tests/cluster/test_alerting_rules.py

.PHONY: judge
judge: $(WHEEL_STAMP) control-plane ## let the real scheduler judge the ledger, and write the report; ARGS="--decisions 2000 --seed 1"
	$(BIN)/python tests/cluster/judge.py $(ARGS)

.PHONY: drill
drill: $(WHEEL_STAMP) postgresql kafka ## start Kafka, PostgreSQL, ingest from a recording, two workers and a projector, kill each in turn, verify
	$(BIN)/pytest -v -k "comes_through_kills or in_turn" tests/recovery/test_live_kills.py

.PHONY: lint
lint: $(DEV_STAMP) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	MYPYPATH=examples $(BIN)/mypy -m build -m generate
	$(BIN)/lint-imports --cache-dir $(CACHE)/import-linter

.PHONY: format
format: $(DEV_STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(WHEEL_STAMP) ## measure throughput
	$(BIN)/python bench/run.py

.PHONY: bench-live
bench-live: $(WHEEL_STAMP) postgresql kafka ## measure the live path beside a plain loop and Quix Streams; ARGS="--quick" and others
	@$(install_quix)
	$(BIN)/python bench/run_live.py $(ARGS)

.PHONY: mutants
mutants: $(WHEEL_STAMP) postgresql ## break the core on purpose and see the tests fail
	$(BIN)/python tests/mutants/run.py

.PHONY: chart
chart: $(WHEEL_STAMP) ## make the Helm chart again from the kustomize base
	$(BIN)/python tests/packaging/make_chart.py

.PHONY: examples
examples: $(WHEEL_STAMP) ## build the shipped recordings again
	$(BIN)/python examples/build.py

.PHONY: recordings
recordings: $(WHEEL_STAMP) control-plane ## record the stories of real control planes again, new each time, and their golden logs
	$(BIN)/python tests/cluster/record.py
	$(BIN)/python tests/golden/make.py

.PHONY: requirements
requirements: $(UV_STAMP) ## pin what pyproject.toml and requirements/dev.in ask for; UPGRADE=--upgrade takes the newest
	@$(pip_settings_for_uv); \
	compile() { $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 $(UPGRADE) "$$@"; }; \
	compile pyproject.toml requirements/dev.in -o requirements/dev.txt; \
	compile pyproject.toml -o requirements/runtime.txt

.PHONY: clean
clean: ## remove everything that make put here
	rm -rf .uv .venv .cache dist

# `pip install --target` works where a system Python refuses installs (PEP 668) and where no venv module is present.
$(UV_STAMP):
	@echo "installing uv $(UV_VERSION) into .uv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@rm -rf .uv
	@PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip install --quiet --disable-pip-version-check \
		--target .uv uv==$(UV_VERSION)
	@touch $@

$(DEV_STAMP): $(UV_STAMP) requirements/dev.txt
	@echo "installing requirements/dev.txt into .venv"
	@$(pip_settings_for_uv); \
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv; \
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@touch $@

$(WHEEL_STAMP): $(DEV_STAMP) $(SOURCES)
	@echo "building the wheel and installing it into .venv"
	@rm -rf dist
	@$(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python -o dist
	@$(UV) pip install --quiet --python $(BIN)/python --offline --no-deps --reinstall dist/*.whl
	@touch $@
