"""What is not collected here: somebody else's project, which tests/faces/test_downstream.py runs away from this one."""

collect_ignore = ["downstream"]
