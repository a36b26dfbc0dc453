# Short names for what is done often. `make` alone lists them.
#   NATIVE=OFF  portable code instead of code for this machine's processor
#   WERROR=ON   warnings are errors
#   PREFIX=DIR  where `make install` puts things
#   JOBS=N      parallel jobs
#   FUZZ_SECONDS=N  how long `make fuzz` looks for inputs that break the scenario reader

NATIVE ?= ON
WERROR ?= OFF
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 600

PACKAGES := sh cmake/install_packages.sh
SOURCES = $$(find src cli tests -name '*.h' -o -name '*.cc')
CTEST := ctest --output-on-failure -LE slow
DEMO := scenarios/fsdp/a2_uneven_7x8_over_4.json

.PHONY: help demo build configure test fuzz asan tsan style lint tidy format golden bench install clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     build, then run a scenario with uneven shards over real Gloo collectives"
	@echo "make build    build/hpsim, optimised (NATIVE=OFF: for any processor)"
	@echo "make test     build and run all tests but the slow ones"
	@echo "make fuzz     fuzz the scenario reader for FUZZ_SECONDS ($(FUZZ_SECONDS))"
	@echo "make asan     the same tests under address and undefined-behaviour sanitizers"
	@echo "make tsan     the same tests under the thread sanitizer"
	@echo "make style    format and include layers"
	@echo "make lint     the same, and a build in which warnings are errors"
	@echo "make tidy     clang-tidy"
	@echo "make format   format all sources in place"
	@echo "make golden   write the goldens of the shipped scenarios anew, and say what changes"
	@echo "make bench    build and run the benchmarks"
	@echo "make install  hpsim, scenarios and schema under PREFIX ($(PREFIX))"
	@echo "make clean    remove all build folders"
	@echo "Missing Debian packages are installed first; that takes root or sudo."

demo: build
	@echo
	build/hpsim run $(DEMO)

build: configure
	@cmake --build --preset release -j $(JOBS) --target hpsim

configure:
	@$(PACKAGES) build speed $(MORE_PURPOSES)
	@cmake --preset release -DHPSIM_NATIVE=$(NATIVE) -DHPSIM_WARNINGS_AS_ERRORS=$(WERROR) \
	  -DCMAKE_INSTALL_PREFIX=$(PREFIX) > /dev/null

test fuzz: MORE_PURPOSES := fuzz
test: configure
	@cmake --build --preset release -j $(JOBS)
	$(CTEST) --test-dir build -j 2

fuzz: configure
	@cmake --build --preset release -j $(JOBS) --target fuzz_scenario
	sh tests/fuzz/run_fuzzer.sh build/tests/fuzz/scenario_fuzzer $(FUZZ_SECONDS) build/fuzz

asan tsan:
	@$(PACKAGES) build speed
	@cmake --preset $@ > /dev/null
	@cmake --build --preset $@ -j $(JOBS)
	$(CTEST) --test-dir build-$@ -j 2

style:
	@$(PACKAGES) build lint
	clang-format --dry-run -Werror $(SOURCES)
	cmake -P cmake/check_layers.cmake

lint: style
	@$(PACKAGES) build speed
	@cmake --preset dev > /dev/null
	cmake --build --preset dev -j $(JOBS)

tidy:
	@$(PACKAGES) build speed tidy
	@cmake --preset dev > /dev/null
	clang-tidy -p build-dev --quiet $$(find src cli -name '*.cc')

format:
	@$(PACKAGES) lint
	clang-format -i $(SOURCES)

golden: build
	build/hpsim golden update

bench: build
	ctest --test-dir build -L bench --verbose

install: build
	cmake --install build

clean:
	rm -rf build build-dev build-asan build-tsan
