"""The page at `/` of `safegen serve`: an output type, a prompt, and the answer as it comes, token by token.

One document (`page`) that holds its style and script and asks for nothing else; its policy forbids all other code, and
its script writes what the model or the server said as text nodes alone. It asks for no more than any client may: a run
(`run`) is a chat request under the same key, limits and guards, and `explain` is compiled on the threads that compile
for everyone. Tokens are told apart only where no guard has edited the text; of guards' records only what the answer
shows anyhow is told, never where in the text a match was.

The page's two endpoints are its own and may change with it; they are not in the OpenAPI document.
"""
