"""The packs' answers against recordings of real releases, field by field."""
