"""The event loop's helpers: deferred results, timers, worker threads, and jobs that run at an interval."""
