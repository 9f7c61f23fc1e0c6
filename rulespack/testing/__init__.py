"""Plans pinned in somebody's own tests: the pytest plugin ``rulespack`` and what it is made of."""
