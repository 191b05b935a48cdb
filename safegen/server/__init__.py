"""`safegen serve`: one model behind an HTTP API in OpenAI's shapes, with the SDK's guarantees.

A request passes, in this order: `middleware` (id, log, counts) -> `auth` (who) -> `admission` (how often) -> `bodies`
(bounded, strict JSON) -> `schemas` (shape; what is unknown is refused by name) -> `translate` (to a prompt, an output
type and parameters of the SDK) -> `answers` (the engine's events) -> `choices` and `shapes` (OpenAI's deltas and
messages) -> `replies` (one JSON document, or server-sent events, for as long as the client is there).

The page at `/` (`playground`) asks through the same steps as any client.

Invariants:

- A message that is not streamed is the fold of the deltas that its stream would have sent: both come from `choices`.
- Nothing in a request can turn off a guard, a limit or the validation that the server was started with.
- A request that ends, in whatever way, gives back its place in the queue and its blocks of the cache.
- No prompt, answer or key is ever logged; errors name fields and rules.

FastAPI, uvicorn, python-multipart and PyYAML come with the extra `server`; `import safegen` imports nothing of this.
"""
