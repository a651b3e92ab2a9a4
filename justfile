# Commands of daily work. `scripts/setup` first; then `.venv/bin/just`, or any `just`.
# Recipes take tools from .venv/bin where it exists and from PATH where not.

set shell := ["bash", "-euo", "pipefail", "-c"]

export PATH := justfile_directory() / ".venv/bin" + ":" + env("PATH")

# What there is to run
default:
    @just --list --unsorted

# Everything that must hold before a commit; under a minute on two cores
check: lint types imports quick

# Formatting and lint rules
lint:
    ruff format --check .
    ruff check .

# mypy: strict in the pure rooms, typed everywhere
types:
    mypy

# The import arrows of docs/design.md
imports:
    lint-imports

# The tests that take no time
quick *ARGS:
    pytest -q -n 2 -m "not slow and not system and not model and not netns and not sglang" {{ ARGS }}

# The fast tests, those that drive a screen or a server inside the test process included
fast *ARGS:
    pytest -q -n 2 -m "not system and not model and not netns and not sglang" {{ ARGS }}

# Any tests: just test tests/wire -k key
test *ARGS:
    pytest {{ ARGS }}

# The tests that spawn engine processes and open sockets
system *ARGS:
    pytest -q -m "system and not model and not netns" {{ ARGS }}

# The tests in network namespaces of their own (as root)
netns *ARGS:
    pytest -q -m netns {{ ARGS }}

# The tests with the real language model
model *ARGS:
    scripts/setup-transformers
    python -m evengine.models fetch smollm2-135m
    pytest -q -m "model and not netns" {{ ARGS }}

# The tests with SGLang itself (as root; makes .venv-sglang, 3.6 GB)
sglang *ARGS:
    scripts/setup-sglang
    pytest -q -m sglang {{ ARGS }}

# Format, and fix what can be fixed without thought
fmt:
    ruff format .
    ruff check --fix .

# Remove what tools leave behind; environments and the model cache stay
clean:
    rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
    find . -name __pycache__ -not -path './.venv*' -type d -prune -exec rm -rf {} +

# Tokens a second of each model's prefill and decode
bench-tokens *MODELS:
    python -m tests.perf.tokens {{ MODELS }}

# CPU of an idle engine, in per cent of a core
bench-idle *SECONDS:
    python -m tests.perf.idle {{ SECONDS }}

# 32 clients stream for a minute from a cluster that is up: slowest TTFT over the median
bench-fairness URL *ARGS:
    python -m tests.perf.fairness {{ URL }} {{ ARGS }}
