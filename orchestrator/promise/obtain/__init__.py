"""From a plan to a READY slice: drafts under names that were never used, the search over candidates, intent before create."""
