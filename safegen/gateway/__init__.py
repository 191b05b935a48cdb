"""`safegen gateway`: one address in OpenAI's shapes before several upstreams, safegen servers or others alike.

A request passes, in this order: what every HTTP front of ours has (`server.door`: id, key, rate, bounded body) ->
`calls` (model, prefix, stream or not) -> `router` (an upstream with room, favoured by prefix, or a bounded wait) ->
`attempts` (one try, until an answer begins) -> `dispatch` (another try where that failed; a hedge where it is slow) ->
`relay` (the answer, event by event).

Invariants:

- An answer begins for a client with the first whole event of a stream, or with the last byte of a document. Until then
  a failure is tried again elsewhere; after it a stream ends with an error event, and never half an event is sent.
- Upstreams are those of the configuration. Nothing in a request is a part of a URL, redirects are not followed, and
  proxies, cookies and `.netrc` are not looked at: upstreams are spoken to through httpx2's transport, below its client.
- Tries beyond the first are a bounded share of the requests (`budget`), and what fails rests (`breaker`).
- A client that leaves closes its upstream connection; a place at an upstream is given back whatever happens.

httpx2 brings connections and their pools. Retries, breakers and hedges are a page of code each here, since they hang
together: who may be asked, whether a try counts, and when it is too late are one decision (tenacity repeats a function,
and pybreaker guards one; neither knows of the others, or of a stream that has begun).
"""
