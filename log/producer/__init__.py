"""What a log knows of its idempotent and transactional producers: the state, its snapshots on disk, and its replay."""
