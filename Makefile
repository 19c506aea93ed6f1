# Hearth's own commands. `make help` lists them. Everything is made below bin/ and .cache/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0

CACHE     := $(CURDIR)/.cache
AGENTS    ?= $(CACHE)/agents
CI_AGENTS ?= pi claude codex
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GVISOR    := $(shell sed -n 's/.*gvisor.dev\/gvisor \(v[^ ]*\).*/\1/p' go.mod)
LDFLAGS   := -s -w -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR) -X main.version=$(VERSION)
TOOL      := go tool -modfile=$(CURDIR)/tools/go.mod
SUDO      := $(shell [ "$$(id -u)" = 0 ] || command -v sudo 2>/dev/null)
NPMTEST   := $(CACHE)/npmtest
NGINX     := $(firstword $(wildcard /usr/sbin/nginx /usr/local/sbin/nginx /usr/bin/nginx /opt/homebrew/bin/nginx) $(CACHE)/nginx/usr/sbin/nginx)
PEERS     := $(CACHE)/peers
E2E       := HEARTH_BIN='$(CURDIR)/bin/hearth' HEARTH_TESTKIT='$(CURDIR)/bin/hearth-testkit' HEARTH_TEST_AGENTS='$(AGENTS)' HEARTH_TEST_NGINX='$(NGINX)' HEARTH_NPMTEST_DIR='$(NPMTEST)' CGO_ENABLED=1 go test -race -timeout 30m $(TESTFLAGS) ./internal/e2e

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build bin/hearth (one static file) and bin/hearth-testkit
	@mkdir -p bin internal/driverbin/dist
	go build -trimpath -ldflags '-s -w' -o internal/driverbin/dist/hearth-driver ./cmd/hearth-driver
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/hearth ./cmd/hearth
	go build -trimpath -o bin/hearth-testkit ./cmd/hearth-testkit

.PHONY: deps
deps: ## install what building, running and testing need (Debian packages, as root)
	@need=(); \
	command -v git >/dev/null || need+=(git); \
	command -v npm >/dev/null || need+=(npm); \
	command -v bwrap >/dev/null || need+=(bubblewrap); \
	command -v gcc >/dev/null || need+=(gcc libc6-dev); \
	command -v curl >/dev/null || need+=(curl); \
	[ -e /etc/ssl/certs/ca-certificates.crt ] || need+=(ca-certificates); \
	if [ $${#need[@]} -gt 0 ]; then \
	  command -v apt-get >/dev/null || { echo "please install: $${need[*]}"; exit 1; }; \
	  [ "$$(id -u)" = 0 ] || [ -n "$(SUDO)" ] || { echo "please install as root: apt-get install $${need[*]}"; exit 1; }; \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$${need[@]}"; \
	fi

.PHONY: agents
agents: build ## install the agents that the tests run, below .cache
	@for a in $(CI_AGENTS); do HEARTH_AGENTS_DIR='$(AGENTS)' ./bin/hearth agent install --state-dir '$(CACHE)/state' $$a; done

.PHONY: demo
demo: deps build ## run one task the whole way: real agent, sandbox, repository, pushed branch
	@./bin/hearth-testkit demo --hearth bin/hearth --dir .demo --agents-dir '$(AGENTS)'

.PHONY: run
run: build ## start the server on its default state folder
	./bin/hearth serve

$(NPMTEST)/.done: internal/uistream/npmtest/package-lock.json internal/uistream/npmtest/package.json
	@mkdir -p '$(NPMTEST)'
	cp internal/uistream/npmtest/package.json internal/uistream/npmtest/package-lock.json '$(NPMTEST)/'
	cd '$(NPMTEST)' && npm ci --ignore-scripts --no-audit --no-fund
	@touch '$@'

# Not installed: a package's service would take port 80.
$(CACHE)/nginx/usr/sbin/nginx:
	@command -v apt-get >/dev/null || { echo "please install: nginx"; exit 1; }
	@rm -rf '$(CACHE)/nginx' && mkdir -p '$(CACHE)/nginx'
	cd '$(CACHE)/nginx' && { apt-get download -q nginx || { $(SUDO) apt-get update -q && apt-get download -q nginx; }; }
	dpkg-deb -x '$(CACHE)'/nginx/nginx_*.deb '$(CACHE)/nginx'

.PHONY: test
test: deps agents $(NPMTEST)/.done $(NGINX) ## run every test, with the race detector and the shipped binary
	HEARTH_NPMTEST_DIR='$(NPMTEST)' CGO_ENABLED=1 go test -race -timeout 20m $(TESTFLAGS) $$(go list ./... | grep -v internal/e2e)
	$(E2E)

.PHONY: lint
lint: ## vet, format and lint, zero findings
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "gofmt: $$out"; exit 1; }
	@mkdir -p internal/driverbin/dist
	$(TOOL) golangci-lint run ./...

# Pinned servers of others. npm checks each against the lock's sum; no script of theirs runs at installation, so that a program may lack the execute bit.
$(PEERS)/.done: bench/peers/package-lock.json bench/peers/package.json
	@mkdir -p '$(PEERS)'
	cp bench/peers/package.json bench/peers/package-lock.json '$(PEERS)/'
	@if [ "$$(uname -sm)" = 'Linux x86_64' ]; then \
	  cd '$(PEERS)' && npm ci --ignore-scripts --no-audit --no-fund && chmod +x node_modules/@sandbox-agent/*/bin/sandbox-agent node_modules/opencode-*/bin/opencode; \
	else echo 'The peers are pinned for Linux on x86-64: they are not measured here.'; fi
	@touch '$@'

.PHONY: bench
bench: deps build agents $(PEERS)/.done ## measure against floors and peers in the same run; see docs/benchmarks.md
	HEARTH_BIN='$(CURDIR)/bin/hearth' HEARTH_TESTKIT='$(CURDIR)/bin/hearth-testkit' HEARTH_TEST_AGENTS='$(AGENTS)' HEARTH_BENCH_PEERS='$(PEERS)' go run ./bench $(BENCHFLAGS)

.PHONY: generate
generate: ## write generated code and documents anew
	go generate ./...

.PHONY: clean
clean: ## remove what was built
	rm -rf bin internal/driverbin/dist/hearth-driver
