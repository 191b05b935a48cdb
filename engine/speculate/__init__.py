"""Speculation: several tokens a forward, with the output's law unchanged (DESIGN section 5).

base        what a drafter is and gives
forced      drafter: what the grammar forces, in canonical tokens
ngram       drafter: what followed the longest match of the last tokens
closers     which tokens end a value, by field
model       drafter: what a smaller model, or the model's first layers, would say
verify      which drafted tokens become output; the one place where that is decided
estimate    what a drafted token is worth: measured acceptance against measured step cost
speculator  asks the drafters, checks what they give, and lets through what pays
"""
