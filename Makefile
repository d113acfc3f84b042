# Each target does its own set-up (tools/setup.sh). Build folders: build/<preset>.
.PHONY: all demo test check install neon asan ubsan tsan fuzz bench bench-quick bench-kernels format tidy clean

all:
	@tools/build.sh release

demo: all
	@tools/demo.sh

test: all
	@tools/test.sh release

# What CI runs.
check:
	@tools/check.sh

# The kernels for ARM, under an emulator.
neon:
	@tools/neon.sh

asan ubsan tsan:
	@tools/build.sh $@
	@tools/test.sh $@

# Each fuzz target for FUZZ_SECONDS (60).
fuzz:
	@tools/build.sh fuzz
	@tools/fuzz.sh

# Kernels, then receivers of cards against llama.cpp's own caches, with this CPU's instructions and with AVX2's (where it
# is an x86): hours. Results in docs/results/.
bench: all
	@tools/build.sh release bench
	@tools/bench.sh kernels
	@tools/bench.sh speed
	@tools/bench.sh avx2

# Receivers of cards at a small depth: minutes.
bench-quick: all
	@tools/bench.sh quick

# The kernels alone.
bench-kernels:
	@tools/build.sh release bench
	@tools/bench.sh kernels

# Into PREFIX (below DESTDIR, if given). Under sudo: what `make` has built, since set-up is the user's.
PREFIX ?= /usr/local
install: $(if $(SUDO_USER),,all)
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"

format:
	@tools/format.sh

tidy:
	@tools/setup.sh --check
	@tools/build.sh clang
	@tools/tidy.py build/clang

clean:
	rm -rf build
