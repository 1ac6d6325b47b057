"""What every coordinator runs on: shards over an internal topic, results with records, replay, timers and
durability."""
