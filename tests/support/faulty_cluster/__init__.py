"""A cluster of real processes whose brokers are killed, frozen and cut off, and histories of what its clients saw.

    links      TCP proxies between the nodes, which know both ends of a connection: cuts in one direction or both
    cluster    a controller and three brokers of a mix such as TTJ (Tidelog, Tidelog, Java) behind the links
    machines   machines as network namespaces, whose cables are pulled
    clients    writers and readers that note what they were told
    history    what was told, and the rules it must hold (those of Jepsen's queue checker)
    report     figures of a run, for docs/internals/faults.md

Tests: ``tests/cluster_faults``; ``make cluster-faults`` runs them at length.
"""
