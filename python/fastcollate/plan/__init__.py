"""Plans from lengths and ids alone: rows, steps, shards, bins and parts."""
