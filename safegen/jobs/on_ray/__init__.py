"""A job whose rows are answered by processes of a Ray cluster: `run_job(..., engine="ray", num_workers=N)`.

    driver: source -> pending rows -> chunks -[feed]-> Ray Data: read -> map_batches over N workers
    driver: output <- records <-----------------------[answers]------------------------'

- `shipment` is what a worker needs to be a worker, pickled; what cannot be is refused by name.
- `cluster` finds or starts Ray and says how many CPUs a worker gets.
- `feed` brings chunks of rows into a Ray Data stream, `worker` answers one, `answers` takes the records out again.
- `flow` is the driver: the one who reads, the one who writes.

Only the driver touches input and output. Keys, occurrences, resuming, the journal, its fsyncs and its lock are those of
every job, so exactly-once does not hang on Ray: a record is written for a chunk that is in flight, once, and a chunk
that comes a second time (its worker had died, or Ray made its block anew) is dropped. Rows are answered by the same
code with the same seeds as in one process, so the records are the same.

Memory: Ray Data wants to know its input beforehand, or to read it by itself on some machine. Here the driver must read
(it counts occurrences and knows what is done), so the dataset's one read task asks an actor on the driver's machine for
chunk after chunk, and the driver hands the next chunk in only when one has come back. What is in memory is the window,
at every place, whatever the size of the input. Windows as datasets of their own would be simpler, but each would load
the model anew and end with idle workers. Chunks are kept until their records are written, so a read task or a worker
that dies asks again.

`ray` is imported inside this folder, and nothing imports this folder but for engine="ray".
"""
