"""Batch jobs: every row of a file answered exactly once, however often the process dies on the way.

    source -> plan -> window over the engine -> sink -> output
    (rows)   (prompt, type,  (drive_each)      (records, in order   (journal, part files)
              key, seed)                        where asked for)

- `rows`, `csv_rows`, `parquet_rows`, `sources` read the input as a stream; what is wrong with a row is in the row.
- `keys` says who a row is: a digest of its content and of all that decides its answer, and which of its equals it is.
- `prompts`, `types`, `openai_rows`, `plan` make a call of a row; `flow` keeps a bounded number of calls going.
- `records`, `journal`, `parts`, `outputs`, `header`, `lock`, `index` keep what came out, on disk and once.
- `run` ties them together for `LLM.run_job`, `command` for `safegen job`; `progress` and `report` tell how it goes.

What is in memory does not grow with the input: the window, one chunk of rows, and an index on disk.
"""
