"""What every KV-cache planner shares: specs, pages, groups and the plan they add up to."""
