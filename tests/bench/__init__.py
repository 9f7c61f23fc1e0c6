"""How fast it answers, measured on demand: ``python -m tests.bench``. Never part of the test run."""
