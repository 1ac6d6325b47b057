# Tidelog's own targets. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA_DIR ?= data
MINUTES ?= 10
PORT ?= 9092
# Number of test modules that run at the same time; one worker runs all tests of a module. Clients, faults and contracts wait for
# other processes half of their time, so there are two workers for each processor, and one more. There are no more workers than
# gigabytes of memory (but two at least), because many tests start JVMs. With three for each processor tests ran into their time-outs.
MEMORY_TABLE ?= /proc/meminfo
WORKERS ?= $(shell awk -v most=$$(($$(nproc) * 2 + 1)) '/^MemTotal/ { gb = int($$2 / 1e6); print (gb < 2 ? 2 : gb < most ? gb : most) }' $(MEMORY_TABLE))
PYTEST_OPTIONS ?=
# Tests run the compiled modules. Without a C compiler: make test TIDELOG_REQUIRE_EXTENSIONS=0
TIDELOG_REQUIRE_EXTENSIONS ?= 1
export TIDELOG_REQUIRE_EXTENSIONS
# Without bytecode on disk each of the hundreds of processes that the tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# The modules that are compiled, and what they include.
COMPILED := $(shell cat extensions.txt) $(shell find protocol log cleaner broker pipeline -name '*.pxd' -o -name '*.h')
EXTENSIONS := build/.extensions

.PHONY: extensions wheels run test unit contract clients faults fuzz fuzz-deep sanitize sanitize-quick deletions soak tls-scan manifests login-storms monitoring console frameworks site authorization-oracle client-matrix kerberos power-loss kafka-versions simulation cluster-faults follow-kills spark-tables lint types imports fmt check bench load churn docs image kafka-jars clean help

help: ## show the targets
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{ n = split($$1, names, " "); for (i = 1; i <= n; i++) printf "  %-20s %s\n", names[i], $$2 }'

# The environment, setuptools and Cython come first: with `make -j2` the modules are compiled while pip installs the rest.
$(VENV)/.build:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'setuptools>=77' 'cython>=3.3'
	@touch $@

# `make extensions` compiles the modules, so pip does not: the build system would compile all of them a second time.
INSTALL := TIDELOG_EXTENSIONS_LATER=1 $(BIN)/python -m pip install --quiet --editable

$(BIN)/tidelog: pyproject.toml | $(VENV)/.build
	$(INSTALL) '.[build]'
	@touch $@

# uv gets pip's settings from the environment, but does not read pip.conf: if uv fails, pip installs.
UV_INSTALL := TIDELOG_EXTENSIONS_LATER=1 env $${PIP_INDEX_URL:+UV_DEFAULT_INDEX="$$PIP_INDEX_URL"} \
  $${PIP_FIND_LINKS:+UV_FIND_LINKS="$$PIP_FIND_LINKS"} $(BIN)/uv pip install --quiet --python $(BIN)/python

# PySpark is published only as sources. uv keeps the wheel that it builds of them, here uncompressed. Of the one version that fits, the
# wheel is never too old: the registry, which may send all 450 MB again, is asked only if there is none.
PYSPARK = $(shell grep -o 'pyspark==[0-9.]*' pyproject.toml)
PYSPARK_INSTALL = --no-deps --config-settings=--build-option=--compression=stored $(PYSPARK)

# Spark's JVM puts archives of PySpark's and Py4J's sources before all else on the path of its workers' Python. There is no
# bytecode in them, so each worker would compile what it imports, 1.0 s of CPU time in place of 0.4. They are removed below:
# then a worker imports the installed packages.

# Modules are compiled to bytecode when tests import them. All 13,600 modules of the packages take 43 s of CPU time, and most are never imported.
$(VENV)/.test: pyproject.toml | $(VENV)/.build
	-$(BIN)/python -m pip install --quiet --no-compile uv
	-$(UV_INSTALL) --offline $(PYSPARK_INSTALL) 2>/dev/null || $(UV_INSTALL) $(PYSPARK_INSTALL)
	$(UV_INSTALL) --editable '.[test,lint]' || $(INSTALL) '.[test,lint]' --no-compile
	rm -f $(VENV)/lib/python3*/site-packages/pyspark/python/lib/*.zip
	@touch $@ $(BIN)/tidelog

# Python prefers a compiled module to its source: every target that runs or tests the checkout first compiles what has changed.
$(EXTENSIONS): $(COMPILED) extensions.txt setup.py | $(VENV)/.build
	$(BIN)/python -W ignore setup.py --quiet build_ext --inplace
	@mkdir -p build && touch $@

extensions: $(EXTENSIONS) ## compile what has changed of the modules in extensions.txt, in place

wheels: $(VENV)/.test ## build a wheel for this Python and processor into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

run: TIDELOG_REQUIRE_EXTENSIONS = 0
run: $(BIN)/tidelog $(EXTENSIONS) ## install into .venv and serve on 127.0.0.1:9092, data below ./data
	exec $(BIN)/tidelog serve --data-dir $(DATA_DIR) --port $(PORT)

test: $(VENV)/.test $(EXTENSIONS) ## install what the tests need and run them all
	$(BIN)/pytest tests --numprocesses=$(WORKERS) --dist=loadfile $(PYTEST_OPTIONS)

unit contract clients faults fuzz: $(VENV)/.test $(EXTENSIONS) ## the tests in the directory of tests/ of this name
	$(BIN)/pytest tests/$@ --numprocesses=$(WORKERS) --dist=loadfile $(PYTEST_OPTIONS)

fuzz-deep: $(VENV)/.test $(EXTENSIONS) ## property tests with twenty times the examples: for the night
	TIDELOG_FUZZ_DEEP=1 $(BIN)/pytest tests/fuzz tests/unit -m hypothesis --timeout=6000 \
	  --numprocesses=$(WORKERS) --dist=loadfile $(PYTEST_OPTIONS)
	TIDELOG_LOGIN_CASES=1000000 $(BIN)/pytest tests/fuzz/test_login_fuzz.py --timeout=6000 \
	  --numprocesses=$(WORKERS) $(PYTEST_OPTIONS)

# Bounds checks, AddressSanitizer and UBSan. With PYTHONMALLOC=malloc each object has memory of its own, with guards around it.
SANITIZE_TESTS := tests/fuzz/test_records.py tests/fuzz/test_messages_fuzz.py tests/unit/protocol tests/unit/log/records \
  tests/unit/log/validation tests/unit/log/recovery tests/unit/log/producer tests/unit/log/index tests/unit/log/files \
  tests/unit/log/find tests/unit/log/test_unified_log.py tests/unit/cleaner/engine tests/unit/pipeline/engine \
  tests/unit/pipeline/decode tests/unit/pipeline/sink
sanitize: SANITIZED = $(shell cat extensions.txt)
# For CI, a minute: the modules that every request's bytes go through first.
SANITIZE_QUICK_TESTS := tests/unit/protocol/schema/test_coders.py tests/unit/log/validation/test_single_batch.py tests/unit/log/records
sanitize-quick: SANITIZED = protocol/schema/walker.py log/records/section_walk.py log/validation/single_batch.py
sanitize-quick: SANITIZE_TESTS = $(SANITIZE_QUICK_TESTS)
sanitize sanitize-quick: $(VENV)/.test $(EXTENSIONS) ## compile with every check (gcc's sanitizers) and test what reads bytes from outside
	TIDELOG_SANITIZE="$(SANITIZED)" $(BIN)/python -W ignore setup.py --quiet build --build-base build/$@ --build-lib build/$@/lib
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	  $(BIN)/python -m pytest -o "pythonpath=build/$@/lib src" $(SANITIZE_TESTS) $(PYTEST_OPTIONS)

deletions: $(VENV)/.test $(EXTENSIONS) ## topics are created and deleted while every background job runs: make deletions MINUTES=10
	TIDELOG_STORM_SECONDS=$$(( $(MINUTES) * 60 )) $(BIN)/python -m pytest -s tests/faults/test_deletion_storm.py

soak: $(VENV)/.test $(EXTENSIONS) ## clients of every kind beside kills, deletions, changes; nothing is lost, nothing grows: make soak MINUTES=15
	TIDELOG_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(BIN)/python -m pytest -s tests/faults/test_soak.py -p no:randomly

REQUESTS ?= 1000
authorization-oracle: $(VENV)/.test $(EXTENSIONS) ## random ACLs and REQUESTS random requests beside Apache Kafka's authorizer
	TIDELOG_ORACLE_REQUESTS=$(REQUESTS) $(BIN)/pytest tests/contract/test_authorization_oracle.py -p no:randomly

kerberos: $(VENV)/.test $(EXTENSIONS) ## clients with tickets of a KDC; needs krb5-kdc, krb5-admin-server and krb5-user, and builds gssapi
	$(INSTALL) '.[kerberos]'
	$(BIN)/pytest tests/clients/test_kerberos.py -p no:randomly

client-matrix: $(VENV)/.test $(EXTENSIONS) ## every client with every security protocol and mechanism, with right and wrong credentials
	TIDELOG_CLIENT_MATRIX=1 $(BIN)/pytest tests/clients/test_secured_languages.py tests/clients/test_sasl.py tests/clients/test_tls.py -p no:randomly

login-storms: $(VENV)/.test $(EXTENSIONS) ## half logins, handshakes and wrong passwords at full size; prints how long other clients wait
	TIDELOG_LOGIN_STORMS=1 $(BIN)/pytest -s tests/faults/test_login_storms.py --timeout=600 -p no:randomly

tls-scan: $(VENV)/.test $(EXTENSIONS) ## a TLS listener under sslyze, which is installed below build/
	TIDELOG_TLS_SCAN=1 $(BIN)/pytest tests/clients/test_tls_scan.py -p no:randomly

manifests: $(VENV)/.test $(EXTENSIONS) ## Compose files and Kubernetes manifests, checked by Compose and by the schemas of Kubernetes
	TIDELOG_MANIFESTS=1 $(BIN)/pytest tests/clients/test_manifests.py -p no:randomly

monitoring: $(VENV)/.test $(EXTENSIONS) ## dashboard and alerts under a real Prometheus (Debian's package, 100 MB)
	$(BIN)/python -m pip install --quiet grafana-foundation-sdk
	TIDELOG_MONITORING=1 $(BIN)/pytest tests/clients/test_monitoring.py -p no:randomly

console: $(VENV)/.test $(EXTENSIONS) ## the console in headless Chromium (Debian's package, 300 MB); RECORD=1 writes docs/images
	$(BIN)/python -m pip install --quiet 'playwright>=1.49'
	TIDELOG_CONSOLE=1 TIDELOG_RECORD=$(RECORD) $(BIN)/pytest tests/clients/test_console.py tests/clients/test_console_cluster.py -p no:randomly

# Quix Streams asks for an older confluent-kafka than the tests, so these have an environment of their own.
FRAMEWORKS := build/frameworks
$(FRAMEWORKS)/.installed: Makefile
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet quixstreams celery confluent-kafka
	@touch $@

frameworks: $(VENV)/.test $(EXTENSIONS) $(FRAMEWORKS)/.installed ## every example of docs/frameworks.md; needs rsyslog-kafka, Maven, Java
	TIDELOG_FRAMEWORKS=$(abspath $(FRAMEWORKS)/bin/python) $(BIN)/pytest tests/clients/test_frameworks.py -p no:randomly

SITE := build/site
$(SITE)/.installed: Makefile
	$(PYTHON) -m venv $(SITE)/venv
	$(SITE)/venv/bin/python -m pip install --quiet 'mkdocs-material>=9.5,<10' 'mkdocs<2'
	@touch $@

# Pages keep their paths in the repository, so that links between them work.
site: $(SITE)/.installed ## the documentation as a site, in build/site/html; every page and link is checked
	rm -rf $(SITE)/pages && mkdir -p $(SITE)/pages/benchmarks/results
	cp -r README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs $(SITE)/pages
	cp benchmarks/*.md $(SITE)/pages/benchmarks
	cp benchmarks/results/*.svg $(SITE)/pages/benchmarks/results
	NO_MKDOCS_2_WARNING=1 $(SITE)/venv/bin/mkdocs build --strict --quiet

STATES ?= 1000
power-loss: $(VENV)/.test $(EXTENSIONS) ## power loss at STATES moments of each workload: make power-loss STATES=5000
	TIDELOG_POWER_STATES=$(STATES) $(BIN)/python -m pytest tests/faults/test_power_loss.py -p no:randomly

FAULTS_EACH ?= 10
FOLLOW_SEED ?= 20261122
FOLLOW_MASTER ?= none
follow-kills: $(VENV)/.test $(EXTENSIONS) ## export --follow while its process, broker and store are killed: make follow-kills FAULTS_EACH=20 FOLLOW_MASTER='local[2]'
	TIDELOG_FOLLOW_FAULTS=$(FAULTS_EACH) TIDELOG_FOLLOW_SEED=$(FOLLOW_SEED) TIDELOG_FOLLOW_MASTER='$(FOLLOW_MASTER)' \
	  $(BIN)/pytest tests/faults/test_follow_kills.py --timeout=1800 -p no:randomly

spark-tables: $(VENV)/.test $(EXTENSIONS) ## Spark reads the exports' Iceberg and Delta tables (Spark 4.1.0 and both packages below build/, 500 MB)
	test -x build/spark-4.1.0/bin/python || $(PYTHON) -m venv build/spark-4.1.0
	build/spark-4.1.0/bin/python -m pip install --quiet 'pyspark==4.1.0'
	TIDELOG_SPARK_TABLES=1 $(BIN)/pytest tests/spark/test_tables.py -p no:randomly

SEEDS ?= 2000
FIRST_SEED ?= 0
simulation: $(VENV)/.test $(EXTENSIONS) ## a simulated cluster under SEEDS schedules of faults: make simulation SEEDS=20000 FIRST_SEED=5000
	TIDELOG_SIMULATION_SEEDS=$(SEEDS) TIDELOG_SIMULATION_FIRST_SEED=$(FIRST_SEED) $(BIN)/pytest tests/simulation \
	  -p no:randomly --numprocesses=$(WORKERS) $(PYTEST_OPTIONS)

CYCLES ?= 20
MIXES ?= TTT,TTJ,TJJ
FAULTS ?=
cluster-faults: $(VENV)/.test $(EXTENSIONS) ## clusters of real brokers under faults, R1 to R7: make cluster-faults CYCLES=100 MIXES=TTJ MINUTES=5 FAULTS=leaders; CUTS=controller,flapping
	TIDELOG_CLUSTER_CYCLES=$(CYCLES) TIDELOG_CLUSTER_MIXES=$(MIXES) TIDELOG_CLUSTER_MINUTES=$(MINUTES) TIDELOG_CLUSTER_CUTS='$(CUTS)' \
	  $(BIN)/pytest tests/cluster_faults -k '$(FAULTS)' -s -p no:randomly --timeout=7200 $(PYTEST_OPTIONS)

KAFKAS ?= 3.9.2,4.0.0,4.1.1,4.2.0
comma := ,
kafka-versions: $(VENV)/.test $(EXTENSIONS) ## other Kafka releases: they and Tidelog open each other's directories, and Tidelog follows their controllers: make kafka-versions KAFKAS=4.2.0
	TIDELOG_IN_PLACE_VERSIONS=$(KAFKAS) $(BIN)/pytest tests/clients/test_in_place.py -k 'gives_it_back or its_release or lowered' -p no:randomly
	for version in $(filter 4.%,$(subst $(comma), ,$(KAFKAS))); do \
	  TIDELOG_OBSERVER_VERSION=$$version $(BIN)/pytest tests/clients/test_observer.py -p no:randomly || exit 1; done

lint: $(VENV)/.test $(EXTENSIONS) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test ## mypy strict
	$(BIN)/mypy

imports: $(VENV)/.test ## the import contracts
	$(BIN)/lint-imports

check: lint types imports ## all checks that run no broker

fmt: $(VENV)/.test ## format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

kafka-jars: ## fetch the jars that tests run Kafka and its clients from; needs Maven and Java
	PYTHONPATH=src $(PYTHON) -P -m benchmarks.rivals.kafka_jars

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) '.[bench]'
	@touch $@

bench: $(VENV)/.bench $(EXTENSIONS) ## the table of benchmarks/RESULTS.md, Tidelog and Apache Kafka in turn (Java 17, Maven, gcc)
	$(BIN)/python -m benchmarks.run $(BENCH)

load: $(VENV)/.bench $(EXTENSIONS) ## load test of any broker: make load LOAD="--bootstrap HOST:PORT"
	$(BIN)/python -m benchmarks.load $(LOAD)

churn: $(VENV)/.test $(EXTENSIONS) ## a minute of connections that are reset at every moment, more than the 1,024 descriptors
	TIDELOG_CHURN_S=60 $(BIN)/python -m pytest -s tests/faults/test_network_departures.py -k churn

docs: $(VENV)/.test $(EXTENSIONS) ## rebuild the generated pages: configuration, command-line, metrics, internals/authorization
	$(BIN)/python -m tidelog.configuration_page > docs/configuration.md
	$(BIN)/python -m tidelog.command_page > docs/command-line.md
	$(BIN)/python -m tidelog.broker.security.authorization.table > docs/internals/authorization.md
	$(BIN)/python -m tidelog.broker.metrics.families > docs/metrics.md

image: $(VENV)/.test ## build the container image without a Docker engine and try it (root, buildah, mmdebstrap, kcat)
	PYTHON=$(abspath $(BIN)/python) docker/verify.sh

clean: ## remove what the build made (not data/)
	rm -rf $(VENV) build dist *.egg-info
	find protocol log cleaner broker pipeline tidelog -name '*.so' -delete
