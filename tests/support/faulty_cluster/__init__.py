"""A cluster of real processes whose brokers are killed, frozen and cut off, and histories of what its clients observed.

    links      TCP proxies between the nodes, which know both ends of a connection: cuts in one direction or both
    cluster    a controller and three brokers of a mix such as TTJ (Tidelog, Tidelog, Java), connected by the links
    machines   machines as network namespaces, whose network links can be cut
    clients    writers and readers that record the responses they get
    history    the recorded responses, and the rules that they must satisfy (those of Jepsen's queue checker)
    report     figures of a run, for docs/internals/faults.md

Tests: ``tests/cluster_faults``; ``make cluster-faults`` runs them at length.
"""
