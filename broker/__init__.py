"""The server: sockets, dispatch, partitions, coordinators. Depends on protocol, log and cleaner."""
