"""`safegen serve --ray`: the server's application in replicas on a Ray cluster, behind Ray Serve's own proxy.

Ray Serve places the replicas, balances by how much each has in work, scales by that number, replaces replicas one after
the other when an application changes, and those that die; nothing of it is written again here. A replica is the very
application of `safegen serve` over a model of its own, so that every guarantee of an answer holds as it does there.
What is of one process there is of one replica here: queue, limits of keys, counters. Files and batches are of one
process by nature: they have a replica to themselves, to which the others pass what is theirs.
"""
